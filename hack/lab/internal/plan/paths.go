package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Paths names the files of one lab below its state directory.
type Paths struct {
	// Root is the state directory; mode 0700, because it holds keys.
	Root string
}

// NewPaths places the state of lab id below base (os.TempDir-like; "" means
// TMPDIR, or /var/tmp when that is unset). The path goes onto kernel command
// lines and into mount options, so blanks and commas are refused.
func NewPaths(base, id string) (Paths, error) {
	if base == "" {
		base = os.Getenv("TMPDIR")
	}
	if base == "" {
		base = "/var/tmp"
	}
	abs, err := filepath.Abs(base)
	if err != nil {
		return Paths{}, fmt.Errorf("state directory: %w", err)
	}
	root := filepath.Join(abs, "nearflash-lab", id)
	if strings.ContainsAny(root, " \t\n,\"'") {
		return Paths{}, fmt.Errorf("state directory %q: blanks, commas and quotes cannot be passed to a guest; set TMPDIR to another place", root)
	}
	return Paths{Root: root}, nil
}

// Lock is the file whose lock serialises the commands that change the lab. It
// lies beside the state directory, which such a command may remove.
func (p Paths) Lock() string { return p.Root + ".lock" }

// State is the file that describes the lab.
func (p Paths) State() string { return filepath.Join(p.Root, "lab.json") }

// Procs is the folder with one record per started process.
func (p Paths) Procs() string { return filepath.Join(p.Root, "procs") }

// Logs is the folder of all logs.
func (p Paths) Logs() string { return filepath.Join(p.Root, "logs") }

// Log is the log of a host process.
func (p Paths) Log(name string) string { return filepath.Join(p.Logs(), name+".log") }

// NodeLogs is the folder of a guest's logs; the guest writes into it.
func (p Paths) NodeLogs(node string) string { return filepath.Join(p.Logs(), node) }

// Console is the log of a guest's console.
func (p Paths) Console(node string) string { return filepath.Join(p.NodeLogs(node), "console.log") }

// PKI is the folder of keys and certificates.
func (p Paths) PKI() string { return filepath.Join(p.Root, "pki") }

// Kubeconfig is the kubeconfig of the named user.
func (p Paths) Kubeconfig(user string) string {
	return filepath.Join(p.PKI(), user+".kubeconfig")
}

// Etcd is etcd's data folder.
func (p Paths) Etcd() string { return filepath.Join(p.Root, "etcd") }

// Bin is the folder put first on PATH by `lab run`.
func (p Paths) Bin() string { return filepath.Join(p.Root, "bin") }

// Boot is the folder a guest's kernel takes as its first root.
func (p Paths) Boot() string { return filepath.Join(p.Root, "boot") }

// Images is the folder of image archives that all guests see.
func (p Paths) Images() string { return filepath.Join(p.Root, "images") }

// Values is the file with the chart's values.
func (p Paths) Values() string { return filepath.Join(p.Root, "values.json") }

// FailedLogs is where the logs of an `up` that failed are kept. It lies beside
// the state directory, which is removed then.
func (p Paths) FailedLogs() string { return p.Root + ".failed-logs" }

// Node is the folder of one guest.
func (p Paths) Node(node string) string { return filepath.Join(p.Root, "nodes", node) }

// Disk is a disk image of a guest.
func (p Paths) Disk(node, disk string) string { return filepath.Join(p.Node(node), disk) }

// Plugged is the file with the disks that are plugged into a guest.
func (p Paths) Plugged(node string) string { return filepath.Join(p.Node(node), "plugged.json") }

// Origin is the folder of an origin driver's controller: its socket, its disks.
func (p Paths) Origin() string { return filepath.Join(p.Root, "origin") }

// Share is the folder that a guest sees as /host.
func (p Paths) Share(node string) string { return filepath.Join(p.Node(node), "share") }
