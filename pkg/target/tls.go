package target

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"
)

// ServerTLS returns the TLS configuration of the service: TLS 1.3, and clients
// must show a certificate of the client CA. Whether its name is allowed, and whether
// it is still good at a later call, is for NewGRPC to say. The files are read again
// for each new connection, so that renewed certificates need no restart. It fails if
// they cannot be used now.
func ServerTLS(c TLSConfig) (*tls.Config, error) {
	return c.files().config()
}

func (c TLSConfig) files() tlsFiles {
	return tlsFiles{TLSConfig: c, caKey: "tls.clientCAFile", protocol: "h2"}
}

// CheckTLS makes sure that all files of certificates can be used.
func (c Config) CheckTLS() error {
	_, err := ServerTLS(c.TLS)
	if c.Metrics.encrypted() {
		_, metricsErr := c.metricsTLS().config()
		err = errors.Join(err, metricsErr)
	}
	return err
}

// metricsTLS are the files of /metrics: the server is the same, its clients need not be.
func (c Config) metricsTLS() tlsFiles {
	f := tlsFiles{TLSConfig: c.TLS, caKey: "tls.clientCAFile", protocol: "http/1.1"}
	if c.Metrics.ClientCAFile != "" {
		f.ClientCAFile, f.caKey = c.Metrics.ClientCAFile, "metrics.clientCAFile"
	}
	return f
}

// tlsFiles are the files of a listener.
type tlsFiles struct {
	TLSConfig

	// caKey is the key of ClientCAFile in the configuration, protocol what is spoken.
	caKey, protocol string
}

// config returns a configuration that reads the files anew for each connection.
func (f tlsFiles) config() (*tls.Config, error) {
	if _, err := f.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ClientAuth:         tls.RequireAndVerifyClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.load() },
	}, nil
}

func (f tlsFiles) load() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls.certFile, tls.keyFile: %w", err)
	}
	pool, err := f.clientCAs()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		NextProtos:   []string{f.protocol},
		// A resumed session would skip a CA that was taken away meanwhile.
		SessionTicketsDisabled: true,
	}, nil
}

// firstEnd is when the first certificate in a PEM file ends.
func firstEnd(file string) (end time.Time, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return end, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return time.Time{}, fmt.Errorf("%s: %w", file, err)
		}
		if end.IsZero() || cert.NotAfter.Before(end) {
			end = cert.NotAfter
		}
	}
	if end.IsZero() {
		return end, fmt.Errorf("no certificate in %s", file)
	}
	return end, nil
}
