package target

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Provisioning says how a volume gets its room.
type Provisioning string

// Kinds of provisioning. The empty string stands for the server's default.
const (
	Thin  Provisioning = "thin"
	Thick Provisioning = "thick"
)

// DefaultMaxOvercommit is used when the configuration names none.
const DefaultMaxOvercommit = 10

// Config is the configuration file of nearflash-target, in YAML.
type Config struct {
	// Listen is the address of the gRPC service, host:port.
	Listen string `json:"listen"`
	// TLS is mandatory: there is no unencrypted or unauthenticated mode.
	TLS TLSConfig `json:"tls"`
	// ServerID becomes part of all target names; never change it while volumes
	// are exported.
	ServerID string `json:"serverID"`
	// VolumeGroup is the LVM volume group for volumes.
	VolumeGroup string `json:"volumeGroup"`
	// ThinPool is the name of a thin pool in it; without it all volumes are thick.
	ThinPool string `json:"thinPool,omitempty"`
	// DefaultProvisioning is for requests that ask for none: thin if there is a
	// pool, else thick.
	DefaultProvisioning Provisioning `json:"defaultProvisioning,omitempty"`
	// MaxOvercommit is how many times the pool's size may be promised; 10 if 0.
	MaxOvercommit float64 `json:"maxOvercommit,omitempty"`
	// LVMDevices limits LVM to these devices.
	LVMDevices []string `json:"lvmDevices,omitempty"`
	// Portals are the iSCSI addresses initiators connect to, ip:port.
	Portals []string `json:"portals"`
	// StateDir holds the exports, with CHAP passwords.
	StateDir string `json:"stateDir"`
	// StateVolume is a logical volume in VolumeGroup that must be mounted at StateDir, for two
	// servers with one disk: what one records, the other goes by.
	StateVolume string `json:"stateVolume,omitempty"`
	// Metrics serves what Prometheus asks for.
	Metrics MetricsConfig `json:"metrics,omitzero"`
}

// TLSConfig names PEM files; they are read again when they change.
type TLSConfig struct {
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
	// ClientCAFile signs the certificates of clients.
	ClientCAFile string `json:"clientCAFile"`
	// AllowedClientNames, if not empty, are the common names let in.
	AllowedClientNames []string `json:"allowedClientNames,omitempty"`
}

// MetricsConfig says where metrics are served, and to whom: on a loopback address in plain text
// to whoever is on the machine, elsewhere with the server's certificate to clients that show
// one.
type MetricsConfig struct {
	// Listen is ip:port; without it no metrics are served.
	Listen string `json:"listen,omitempty"`
	// ClientCAFile signs the certificates of clients; without it tls.clientCAFile does.
	ClientCAFile string `json:"clientCAFile,omitempty"`
	// AllowedClientNames, if not empty, are the common names let in.
	AllowedClientNames []string `json:"allowedClientNames,omitempty"`
}

// LoadConfig reads and validates a configuration file. Unknown keys are errors.
func LoadConfig(path string) (Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	c, err := ParseConfig(b)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ParseConfig is LoadConfig for the text of a file.
func ParseConfig(text []byte) (Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return Config{}, err
	}
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c *Config) setDefaults() {
	if c.DefaultProvisioning == "" {
		c.DefaultProvisioning = Thick
		if c.ThinPool != "" {
			c.DefaultProvisioning = Thin
		}
	}
	if c.MaxOvercommit == 0 {
		c.MaxOvercommit = DefaultMaxOvercommit
	}
}

var (
	serverIDPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	// LVM's own rule for names (lvm(8), "Valid names").
	lvmNamePattern = regexp.MustCompile(`^[a-zA-Z0-9+_.][a-zA-Z0-9+_.-]{0,126}$`)
)

// Validate returns all problems joined, each naming the key.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if !strings.Contains(c.Listen, ":") {
		bad("listen: %q is not host:port", c.Listen)
	}
	for key, file := range map[string]string{"tls.certFile": c.TLS.CertFile, "tls.keyFile": c.TLS.KeyFile, "tls.clientCAFile": c.TLS.ClientCAFile} {
		if !filepath.IsAbs(file) {
			bad("%s: %q is not an absolute path", key, file)
		}
	}
	if slices.Contains(c.TLS.AllowedClientNames, "") {
		bad("tls.allowedClientNames: contains an empty name")
	}
	if !serverIDPattern.MatchString(c.ServerID) {
		bad("serverID: %q does not match %s", c.ServerID, serverIDPattern)
	}
	if !lvmNamePattern.MatchString(c.VolumeGroup) {
		bad("volumeGroup: %q is not a name of a volume group", c.VolumeGroup)
	}
	if c.ThinPool != "" && !lvmNamePattern.MatchString(c.ThinPool) {
		bad("thinPool: %q is not a name of a logical volume", c.ThinPool)
	}
	if c.DefaultProvisioning != Thin && c.DefaultProvisioning != Thick {
		bad("defaultProvisioning: %q is neither thin nor thick", c.DefaultProvisioning)
	}
	if c.DefaultProvisioning == Thin && c.ThinPool == "" {
		bad("defaultProvisioning: thin needs thinPool")
	}
	if c.MaxOvercommit < 1 || c.MaxOvercommit > 1000 {
		bad("maxOvercommit: %v is not between 1 and 1000", c.MaxOvercommit)
	}
	for _, d := range c.LVMDevices {
		if !filepath.IsAbs(d) || strings.Contains(d, ",") {
			bad("lvmDevices: %q is not a device path", d)
		}
	}
	if len(c.Portals) == 0 {
		bad("portals: at least one ip:port is needed")
	}
	for _, p := range c.Portals {
		if err := checkPortal(p); err != nil {
			bad("portals: %w", err)
		}
	}
	if !filepath.IsAbs(c.StateDir) {
		bad("stateDir: %q is not an absolute path", c.StateDir)
	}
	if c.StateVolume != "" && (!lvmNamePattern.MatchString(c.StateVolume) || strings.HasPrefix(c.StateVolume, "nf")) {
		bad("stateVolume: %q is not a name of a logical volume, or begins with nf, as those of nearflash's volumes do", c.StateVolume)
	}
	errs = append(errs, c.Metrics.problems(c.TLS)...)
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// checkPortal wants an address that an initiator can connect to.
func checkPortal(p string) error {
	a, err := netip.ParseAddrPort(p)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not ip:port", p)
	case a.Addr().IsUnspecified() || a.Addr().IsMulticast():
		return fmt.Errorf("%q: an initiator cannot connect to this address; name the server's own", p)
	case a.Addr().Zone() != "" || a.Port() == 0 || a.String() != p:
		return fmt.Errorf("%q is not in the form ip:port, IPv6 in brackets and shortened", p)
	}
	return nil
}

// encrypted reports whether metrics are served over TLS.
func (c MetricsConfig) encrypted() bool {
	a, err := netip.ParseAddrPort(c.Listen)
	return err == nil && !a.Addr().IsLoopback()
}

// problems are those of the section, beside the clients of the management service.
func (c MetricsConfig) problems(service TLSConfig) (errs []error) {
	clients := c.ClientCAFile != "" || len(c.AllowedClientNames) > 0
	if c.Listen == "" {
		if clients {
			errs = append(errs, errors.New("metrics.listen: is missing, so that no metrics are served"))
		}
		return errs
	}
	// A name may lead elsewhere than to the loopback address that was meant.
	if a, err := netip.ParseAddrPort(c.Listen); err != nil || a.Port() == 0 {
		return append(errs, fmt.Errorf("metrics.listen: %q is not ip:port, IPv6 in brackets", c.Listen))
	}
	if c.ClientCAFile != "" && !filepath.IsAbs(c.ClientCAFile) {
		errs = append(errs, fmt.Errorf("metrics.clientCAFile: %q is not an absolute path", c.ClientCAFile))
	}
	if slices.Contains(c.AllowedClientNames, "") {
		errs = append(errs, errors.New("metrics.allowedClientNames: contains an empty name"))
	}
	switch {
	case !c.encrypted() && clients:
		errs = append(errs, errors.New("metrics.listen: on a loopback address no client shows a certificate; take clientCAFile and allowedClientNames out of metrics"))
	case c.encrypted() && c.ClientCAFile == "" && len(service.AllowedClientNames) == 0:
		// Whoever has a certificate of tls.clientCAFile could delete every volume.
		errs = append(errs, errors.New("metrics.clientCAFile: without it, Prometheus could manage volumes with its certificate; name another CA, or the controller in tls.allowedClientNames"))
	}
	return errs
}
