// Package node wires nearflash-node: the CSI node service on a socket, the
// registration with kubelet, the pool, the repair of what a crash left, and the
// endpoints of probes and metrics.
package node

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/app/metricserver"
	"github.com/nearflash/nearflash/pkg/attach/hotset"
	"github.com/nearflash/nearflash/pkg/figures"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/preflight/hosttools"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Less than these would cost the API server more than anybody gains.
const minReportInterval, minHotSetInterval = 10 * time.Second, 5 * time.Minute

// minScrubPeriod keeps a mistake from comparing caches all the time.
const minScrubPeriod = time.Hour

// minHotSetSize has room for some hundred ranges of blocks.
const minHotSetSize = 1 << 10

// Config is what nearflash-node is started with.
type Config struct {
	// Endpoint is the unix socket of the CSI services.
	Endpoint string
	// NodeName is the node's name in Kubernetes.
	NodeName string
	// KubeletRegistrationPath is the CSI socket as kubelet sees it, and
	// RegistrationDir kubelet's plugins_registry as this process sees it.
	KubeletRegistrationPath, RegistrationDir string
	// StateDir holds the journal. It must outlive the pod and the machine's
	// reboots.
	StateDir string
	// PoolDevices are paths or globs, and so are PoolEvacuate, those that are to be out of the
	// pool; PoolRedundancy is none or mirror.
	PoolDevices    stringList
	PoolEvacuate   stringList
	PoolRedundancy string
	// PoolIntegrity asks for checksums of what caches hold.
	PoolIntegrity bool
	// Pools take their place on nodes with certain labels.
	Pools choiceList
	// NamespaceShare is how much of the pool the caches of one namespace may take, in percent; 0
	// is no limit.
	NamespaceShare uint
	// WithoutTargets are targets of the kernel that count as absent, for tests.
	WithoutTargets commaList
	// UdevRule has the rule written that keeps the host's udev away from volumes.
	UdevRule bool
	// InitiatorNameFile is open-iscsi's initiatorname.iscsi.
	InitiatorNameFile string
	// MakeInitiatorName has that file made if there is none, as open-iscsi's package does it.
	MakeInitiatorName bool
	// HostIscsiadm has the host's iscsiadm used, in the mount namespace of its iscsid.
	HostIscsiadm bool
	// Origins has volumes of other CSI drivers attached too (backend csi).
	Origins bool
	// MaxVolumes is how many volumes may be published to the node; 0 leaves
	// that to Kubernetes.
	MaxVolumes int64
	// AttachLimitOf is another CSI driver whose limit of volumes on the node is that of ours
	// too; "" is none.
	AttachLimitOf string
	// NodeIP is the node's address and WarmStartPort the port at which caches are exported
	// to other nodes.
	NodeIP        string
	WarmStartPort int
	// WarmStartMethod is how the caches of other nodes are read whose volume leaves that to
	// the node: auto, clone or stream. Method reads it.
	WarmStartMethod string
	// WarmStartBandwidth bounds the hydration of a volume that names no bandwidth, and
	// WarmStartNodeBandwidth all hydrations together, and all streams to other nodes, in bytes
	// per second; 0 is no limit.
	WarmStartBandwidth, WarmStartNodeBandwidth int64
	// Stream says how caches are sent to other nodes' plugins.
	Stream StreamConfig
	// RetainedCacheTTL is how long a cache is kept that nobody uses; 0 is for ever.
	RetainedCacheTTL time.Duration
	// ReportInterval is the least time between two reports about a volume's cache, and
	// HotSetInterval the pause between two hot sets of an attached volume.
	ReportInterval, HotSetInterval time.Duration
	// HotSetSize is the most that a hot set has, in bytes.
	HotSetSize int
	// ScrubPeriod is after how long a cache is compared with its origin again, 0 if never, and
	// ScrubRate how fast that is, in bytes per second; 0 is no limit.
	ScrubPeriod time.Duration
	ScrubRate   int64
	// HealthAddress is where /healthz and /readyz are served; empty means nowhere.
	HealthAddress string
	// Metrics says where /metrics is served, and to whom.
	Metrics metricserver.Config
	// FiguresSocket is the unix socket at which "nearflash-node figures" asks; empty serves none.
	FiguresSocket string
	// Version is the build's version.
	Version string
}

// stringList is a flag that may be given several times.
type stringList []string

// String implements flag.Value.
func (l *stringList) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *stringList) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// commaList is a flag whose value is a list with commas.
type commaList []string

// String implements flag.Value.
func (l *commaList) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *commaList) Set(s string) error {
	*l = nil
	if s != "" {
		*l = strings.Split(s, ",")
	}
	return nil
}

// choiceList is a flag that may be given several times, each a pool.Choice as JSON.
type choiceList []pool.Choice

// String implements flag.Value.
func (l *choiceList) String() string {
	text, _ := json.Marshal(*l) // strings never fail
	return string(text)
}

// Set implements flag.Value.
func (l *choiceList) Set(s string) error {
	var c pool.Choice
	d := json.NewDecoder(strings.NewReader(s))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return fmt.Errorf(`accepted is JSON such as {"nodeSelector": {"LABEL": "VALUE"}, "devices": ["/dev/..."], "redundancy": "none"}: %w`, err)
	}
	*l = append(*l, c)
	return nil
}

// AddFlags defines the flags of nearflash-node.
func (c *Config) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.Endpoint, "endpoint", "", "`address` of the CSI services: unix:///absolute/path")
	fs.StringVar(&c.NodeName, "node-name", "", "the node's `name` in Kubernetes")
	fs.StringVar(&c.KubeletRegistrationPath, "kubelet-registration-path", "", "`path` of the CSI socket on the host, where kubelet finds it")
	fs.StringVar(&c.RegistrationDir, "registration-dir", "", "kubelet's plugins_registry `directory`, as mounted here")
	fs.StringVar(&c.StateDir, "state-dir", "/var/lib/nearflash", "`directory` of the journal; it must survive pods and reboots")
	fs.Var(&c.PoolDevices, "pool-devices", "`path` or glob of the SSDs that hold caches (repeatable)")
	fs.Var(&c.PoolEvacuate, "pool-evacuate", "`path` or glob of SSDs that are to be out of the pool: caches leave them, and they are taken out (repeatable)")
	fs.StringVar(&c.PoolRedundancy, "pool-redundancy", string(v1alpha1.RedundancyNone), "none (stripes) or mirror")
	fs.BoolVar(&c.PoolIntegrity, "pool-integrity", false, "checksums of what caches hold: what the SSDs return that was not written to them is an error")
	fs.Var(&c.Pools, "pool", "`JSON` with nodeSelector, devices, evacuate, redundancy and integrity: what takes the place of --pool-devices, --pool-evacuate, --pool-redundancy and --pool-integrity on a node that has these labels (repeatable, the first that matches counts)")
	fs.UintVar(&c.NamespaceShare, "namespace-share-percent", 0, "how much of the pool the caches of one namespace may take, in percent; 0 is no limit")
	fs.Var(&c.WithoutTargets, "without-targets", "for tests: `targets` of the kernel that count as absent, so that no cache moves by clone: "+strings.Join(preflight.MoveTargets(), ","))
	fs.BoolVar(&c.UdevRule, "udev-rule", false, "write a rule of udev to "+hosttools.RuleDir+" that keeps the host's tools away from volumes; false removes it")
	fs.StringVar(&c.InitiatorNameFile, "initiator-name-file", "/etc/iscsi/initiatorname.iscsi", "`file` with the node's iSCSI initiator name")
	fs.BoolVar(&c.HostIscsiadm, "host-iscsiadm", false, "use the host's iscsiadm, in the mount namespace of its iscsid, where the initiator name is then too; false uses the image's")
	fs.BoolVar(&c.MakeInitiatorName, "make-initiator-name", false, "make that file if there is none, on nodes without open-iscsi")
	fs.BoolVar(&c.Origins, "origins", false, "attach volumes of other CSI drivers too (backend: csi); kubelet's directory is the one that --kubelet-registration-path lies in, at the same path on the host and here")
	fs.Int64Var(&c.MaxVolumes, "max-volumes", 0, "how many volumes may be published to this node; 0 is no limit")
	fs.StringVar(&c.AttachLimitOf, "attach-limit-of", "", "the CSI `driver` of all origins, whose limit of volumes on this node is that of this driver's volumes too, but for those that pods use without a cache")
	fs.StringVar(&c.HealthAddress, "health-address", "", "`host:port` for /healthz and /readyz; empty for none")
	fs.StringVar(&c.FiguresSocket, "figures-socket", figures.DefaultSocket, "`path` of the unix socket with the figures of this second, for root in this container (nearflash-node figures); empty for none")
	fs.StringVar(&c.NodeIP, "node-ip", "", "the node's `address`, at which its caches are exported to other nodes; empty: they are not")
	fs.IntVar(&c.WarmStartPort, "warm-start-port", 3262, "`port` at which caches are exported to other nodes")
	fs.StringVar(&c.WarmStartMethod, "warm-start-method", volume.WordAuto, "how another node's cache is read if the volume does not say it: auto, clone (dm-clone over iSCSI) or stream")
	fs.Int64Var(&c.WarmStartBandwidth, "warm-start-bandwidth", 64<<20, "bytes per second at which a cache is filled whose volume names no bandwidth; 0 is no limit")
	fs.Int64Var(&c.WarmStartNodeBandwidth, "warm-start-node-bandwidth", 0, "bytes per second at which all caches of the node are filled together, and at which its caches are sent to other nodes' plugins; 0 is no limit")
	fs.DurationVar(&c.RetainedCacheTTL, "retained-cache-ttl", 72*time.Hour, "how long a cache is kept after its volume has left; 0 is for ever")
	fs.DurationVar(&c.ReportInterval, "report-interval", 30*time.Second, "least time between two reports about a volume's cache to the API server")
	fs.DurationVar(&c.HotSetInterval, "hot-set-interval", 30*time.Minute, "pause between two lists of the hottest blocks of an attached volume, at the API server")
	fs.IntVar(&c.HotSetSize, "hot-set-size", 8<<10, "`bytes` that such a list may have, 1024 to 65536: the hottest blocks that fit")
	fs.DurationVar(&c.ScrubPeriod, "scrub-period", 0, "after how long the cache of an attached volume is compared with its origin again; 0 is only when that is asked for")
	fs.Int64Var(&c.ScrubRate, "scrub-rate", 16<<20, "bytes per second of caches that are compared; 0 is no limit")
	c.Stream.AddFlags(fs)
	c.Metrics.AddFlags(fs)
}

// topology reports whether the node says its name as its topology, which Kubernetes makes the value
// of a label. A node with a longer name attaches volumes of other drivers, and none is made for it.
func (c *Config) topology() bool {
	return c.Origins && len(c.NodeName) <= validation.LabelValueMaxLength
}

// kubelet is kubelet's directory, below which the plugins of all drivers are; "" if it is not
// known.
func (c *Config) kubelet() string {
	plugins := filepath.Dir(filepath.Dir(c.KubeletRegistrationPath))
	if filepath.Base(plugins) != "plugins" || !filepath.IsAbs(plugins) {
		return ""
	}
	return filepath.Dir(plugins)
}

// Method is WarmStartMethod as the node uses it: "" is auto.
func (c *Config) Method() volume.MoveMethod {
	m, _ := volume.MethodOf(c.WarmStartMethod)
	return m
}

// openISCSI is the host's open-iscsi, or nil for the image's.
func (c *Config) openISCSI() *openiscsi.Host {
	if !c.HostIscsiadm {
		return nil
	}
	return &openiscsi.Host{Proc: "/proc"}
}

// Validate reports everything that is wrong with the flags at once.
func (c *Config) Validate() error {
	errs := []error{c.Metrics.Validate(), c.Stream.Validate()}
	if _, err := rpc.SocketPath(c.Endpoint); err != nil {
		errs = append(errs, fmt.Errorf("--endpoint: %w", err))
	}
	if c.HostIscsiadm && c.MakeInitiatorName {
		errs = append(errs, errors.New("--host-iscsiadm and --make-initiator-name exclude each other: the host's initiator name is the host's to make"))
	}
	if c.NodeName == "" {
		errs = append(errs, errors.New("--node-name is required"))
	}
	if (c.KubeletRegistrationPath == "") != (c.RegistrationDir == "") {
		errs = append(errs, errors.New("--kubelet-registration-path and --registration-dir are given together, or neither"))
	}
	if c.Origins && c.kubelet() == "" {
		errs = append(errs, fmt.Errorf("--origins with --kubelet-registration-path %q: accepted is a path such as /var/lib/kubelet/plugins/DRIVER/csi.sock", c.KubeletRegistrationPath))
	}
	if c.AttachLimitOf != "" && !c.Origins {
		errs = append(errs, fmt.Errorf("--attach-limit-of %q: accepted only with --origins", c.AttachLimitOf))
	}
	if !filepath.IsAbs(c.StateDir) {
		errs = append(errs, fmt.Errorf("--state-dir %q: accepted is an absolute path", c.StateDir))
	}
	if c.FiguresSocket != "" && !filepath.IsAbs(c.FiguresSocket) {
		errs = append(errs, fmt.Errorf("--figures-socket %q: accepted is an absolute path", c.FiguresSocket))
	}
	errs = append(errs, validatePool("--pool-devices", c.PoolDevices, "--pool-redundancy", c.PoolRedundancy)...)
	errs = append(errs, validatePaths("--pool-evacuate", c.PoolEvacuate)...)
	for _, p := range c.Pools {
		errs = append(errs, validateChoice(p)...)
	}
	if c.NamespaceShare > 100 {
		errs = append(errs, fmt.Errorf("--namespace-share-percent %d: accepted are 0 (no limit) and 1 to 100", c.NamespaceShare))
	}
	for _, target := range c.WithoutTargets {
		if known := preflight.MoveTargets(); !slices.Contains(known, target) {
			errs = append(errs, fmt.Errorf("--without-targets %q: accepted are %s", target, strings.Join(known, ", ")))
		}
	}
	if c.NodeIP != "" && net.ParseIP(c.NodeIP) == nil {
		errs = append(errs, fmt.Errorf("--node-ip %q: accepted is an IP address", c.NodeIP))
	}
	errs = append(errs, c.validateWarmStart()...)
	if c.MaxVolumes < 0 {
		errs = append(errs, fmt.Errorf("--max-volumes %d: accepted are 0 (no limit) and positive numbers", c.MaxVolumes))
	}
	return errors.Join(errs...)
}

// validatePool checks what one kind of nodes has, under the names of the flags that say it.
func validatePool(devicesFlag string, devices []string, redundancyFlag, redundancy string) []error {
	errs := validatePaths(devicesFlag, devices)
	switch v1alpha1.Redundancy(redundancy) {
	case v1alpha1.RedundancyNone, v1alpha1.RedundancyMirror:
	default:
		errs = append(errs, fmt.Errorf("%s %q: accepted are none, mirror", redundancyFlag, redundancy))
	}
	return errs
}

// validatePaths checks paths of devices that a flag says.
func validatePaths(flag string, devices []string) []error {
	var errs []error
	for _, d := range devices {
		if !strings.HasPrefix(d, "/dev/") {
			errs = append(errs, fmt.Errorf("%s %q: accepted are paths and globs below /dev", flag, d))
		}
		if _, err := filepath.Match(d, ""); err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", flag, d, err))
		}
	}
	return errs
}

func validateChoice(p pool.Choice) []error {
	var errs []error
	if len(p.NodeSelector) == 0 {
		errs = append(errs, fmt.Errorf("--pool nodeSelector of devices %q is empty: accepted is at least one label; what is for all other nodes is --pool-devices", p.Devices))
	}
	if _, err := labels.ValidatedSelectorFromSet(p.NodeSelector); err != nil {
		errs = append(errs, fmt.Errorf("--pool nodeSelector %v: accepted are labels of nodes: %w", p.NodeSelector, err))
	}
	errs = append(errs, validatePaths("--pool evacuate", p.Evacuate)...)
	return append(errs, validatePool("--pool devices", p.Devices, "--pool redundancy", cmp.Or(string(p.Redundancy), string(v1alpha1.RedundancyNone)))...)
}

func (c *Config) validateWarmStart() []error {
	var errs []error
	if c.WarmStartPort < 1 || c.WarmStartPort > 65535 {
		errs = append(errs, fmt.Errorf("--warm-start-port %d: accepted are 1 to 65535", c.WarmStartPort))
	}
	if c.Stream.Port == c.WarmStartPort {
		errs = append(errs, fmt.Errorf("--stream-port %d: accepted is another port than that of --warm-start-port", c.Stream.Port))
	}
	if _, known := volume.MethodOf(c.WarmStartMethod); !known {
		errs = append(errs, fmt.Errorf("--warm-start-method %q: accepted are %s, %s, %s", c.WarmStartMethod, volume.WordAuto, volume.WordClone, volume.WordStream))
	}
	if c.WarmStartBandwidth < 0 || c.WarmStartNodeBandwidth < 0 || c.RetainedCacheTTL < 0 {
		errs = append(errs, errors.New("--warm-start-bandwidth, --warm-start-node-bandwidth, --retained-cache-ttl: accepted are 0 (no limit) and positive values"))
	}
	if c.HotSetSize < minHotSetSize || c.HotSetSize > hotset.MaxBytes {
		errs = append(errs, fmt.Errorf("--hot-set-size %d: accepted are %d to %d bytes", c.HotSetSize, minHotSetSize, hotset.MaxBytes))
	}
	if c.ScrubRate < 0 || c.ScrubPeriod != 0 && c.ScrubPeriod < minScrubPeriod {
		errs = append(errs, fmt.Errorf("--scrub-rate %d, --scrub-period %s: accepted are rates of 0 (no limit) and more, and periods of 0 (never) and at least %s", c.ScrubRate, c.ScrubPeriod, minScrubPeriod))
	}
	if c.ReportInterval < minReportInterval || c.HotSetInterval < minHotSetInterval {
		errs = append(errs, fmt.Errorf("--report-interval %s, --hot-set-interval %s: accepted are at least %s and %s", c.ReportInterval, c.HotSetInterval, minReportInterval, minHotSetInterval))
	}
	return errs
}
