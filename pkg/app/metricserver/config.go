package metricserver

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
)

// Names of the files in [Config.CertDir], as a secret of type kubernetes.io/tls
// has them.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
)

// Config says where metrics are served, and to whom.
type Config struct {
	// Address is host:port; empty serves nothing.
	Address string
	// Secure asks for TLS, and for a token whose account may get /metrics.
	// Without it, everybody who reaches the address reads the metrics.
	Secure bool
	// CertDir has tls.crt and tls.key, which are read again when they change.
	// Empty makes a self-signed certificate at each start.
	CertDir string
}

// AddFlags defines the flags.
func (c *Config) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.Address, "metrics-address", "", "`host:port` for /metrics; empty for none")
	fs.BoolVar(&c.Secure, "metrics-secure", true, "serve /metrics over TLS, to bearer tokens that the API server lets get /metrics; false serves everybody in plain text")
	fs.StringVar(&c.CertDir, "metrics-cert-dir", "", "`directory` with tls.crt and tls.key for /metrics (default a self-signed certificate)")
}

// Validate reports everything that is wrong with the flags at once.
func (c *Config) Validate() error {
	if c.CertDir == "" {
		return nil
	}
	var errs []error
	if c.Address == "" {
		errs = append(errs, errors.New("--metrics-cert-dir without --metrics-address"))
	}
	if !c.Secure {
		errs = append(errs, errors.New("--metrics-cert-dir with --metrics-secure=false: nothing would be encrypted"))
	}
	if !filepath.IsAbs(c.CertDir) {
		errs = append(errs, fmt.Errorf("--metrics-cert-dir %q: accepted is an absolute path", c.CertDir))
	}
	return errors.Join(errs...)
}
