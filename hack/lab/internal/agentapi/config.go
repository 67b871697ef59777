// Package agentapi is what the lab's host side and the agent in a guest agree
// on: the configuration file, the protocol, and the places of files.
package agentapi

import (
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// Places in a guest.
const (
	// ShareEnv is the kernel parameter, and so the init's environment variable,
	// that holds the host folder to be mounted on [ShareDir].
	ShareEnv = "nfshare"
	// RootEnv is the same for the device with the guest's root, of a kernel that boots
	// from an initramfs; folders of the host are then virtio's, named by tags, and
	// ModulesEnv is the device with the kernel's modules. Without RootEnv the kernel is
	// User-Mode Linux.
	RootEnv    = "nfroot"
	ModulesEnv = "nfmodules"
	// BootModules is the folder of an initramfs with the modules that RootEnv needs,
	// BootOrder the file in it that lists them.
	BootModules = "modules"
	BootOrder   = "order"
	// ShareDir is where the guest sees its share.
	ShareDir = "/host"
	// ConfigFile is the configuration, relative to the share.
	ConfigFile = "config.json"
	// ImageDir is where the guest sees the archives of container images.
	ImageDir = "/images"
	// LogDir takes logs, relative to the share.
	LogDir = "logs"
	// StdoutFile, StderrFile and ExitFile take a script's outcome, relative to
	// the share.
	StdoutFile = "stdout"
	StderrFile = "stderr"
	ExitFile   = "exit"
	// BeatFile is written each BeatInterval while a script runs.
	BeatFile     = "beat"
	BeatInterval = 5 * time.Second
	// NewRoot is the folder of the boot root on which the real root is mounted.
	NewRoot = "newroot"
	// AgentFile is the agent, relative to the boot root.
	AgentFile = "agent"
	// AgentSelf is the agent in a guest that runs.
	AgentSelf = "/proc/1/exe"
)

// StateVolume is the logical volume for the state of a pair of storage servers.
const StateVolume = "state"

// The agent as a command, for a disk that is plugged in: AgentSelf DiskCommand DiskAdd DEVICE
// makes it a disk of SCSI, DiskRemove ends that, and exits with DiskInUse if somebody has it
// open.
const (
	DiskCommand = "disk"
	DiskAdd     = "add"
	DiskRemove  = "remove"
	DiskInUse   = 16
)

// Config tells the agent what its guest is. The host writes it before a start.
type Config struct {
	Node string    `json:"node"`
	Role plan.Role `json:"role"`
	// Token is demanded of every request.
	Token string `json:"token,omitempty"`

	Network *Network `json:"network,omitempty"` // nil: loopback only
	Worker  *Worker  `json:"worker,omitempty"`
	Storage *Storage `json:"storage,omitempty"`
	Script  *Script  `json:"script,omitempty"`

	// Mounts are further host folders.
	Mounts []Mount `json:"mounts,omitempty"`
	// Services are run for as long as the guest lives, after the role's own.
	Services []Service `json:"services,omitempty"`
}

// Network is a guest's place in the lab's network.
type Network struct {
	IP      string            `json:"ip"` // with prefix length
	MAC     string            `json:"mac"`
	Gateway string            `json:"gateway"`
	Routes  []plan.Route      `json:"routes,omitempty"`
	Hosts   map[string]string `json:"hosts,omitempty"` // name to address
}

// Worker is what a node with a kubelet needs.
type Worker struct {
	PodCIDR string `json:"podCIDR"`
	APIURL  string `json:"apiURL"`
	// Initiator is the node's iSCSI name; without one no iscsid is started.
	Initiator string `json:"initiator"`
	// ReadOnlyRoot says that nobody can write the root, but for /var.
	ReadOnlyRoot bool `json:"readOnlyRoot,omitempty"`
	// Kubeconfig, CA and the serving pair are file contents.
	Kubeconfig  []byte `json:"kubeconfig"`
	CA          []byte `json:"ca"`
	ServingCert []byte `json:"servingCert"`
	ServingKey  []byte `json:"servingKey"`
}

// Storage is what the storage server needs.
type Storage struct {
	// Delay is added to the way of every packet that leaves the server.
	Delay time.Duration `json:"delay"` // nanoseconds
	// Pair says that another guest has the disk too, so that nothing of it is used before
	// somebody says so. First makes the volume group on it, at its first boot.
	Pair  bool `json:"pair,omitempty"`
	First bool `json:"first,omitempty"`
	// Files are written before the services start: path to content.
	Files map[string][]byte `json:"files,omitempty"`
}

// Script is the one command of a throw-away guest.
type Script struct {
	Argv []string `json:"argv"`
	Dir  string   `json:"dir"`
	Env  []string `json:"env,omitempty"`
}

// Mount is a host folder in the guest.
type Mount struct {
	// Source is the folder's path, or its tag.
	Source string `json:"source"`
	Target string `json:"target"`
}

// Service is a program that is started again when it ends.
type Service struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
	// Address, host:port, is one that the service accepts connections on once it
	// is usable; the boot waits for that. Empty: started means usable.
	Address string `json:"address,omitempty"`
	// Stopped: it does not run before it is started.
	Stopped bool `json:"stopped,omitempty"`
}
