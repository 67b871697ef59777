// Package node turns the description of a guest into the process that is the
// guest. What runs guests is a [Backend]; User-Mode Linux is the only one so far.
package node

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// ErrGuest is returned for a guest that the backend cannot run.
var ErrGuest = errors.New("guest cannot be run")

// Guest describes one guest. All paths are absolute.
type Guest struct {
	Name string
	// Kernel is the backend's runnable kernel.
	Kernel string
	// Boot is the folder with the agent that the kernel takes as its first root.
	Boot string
	// Share is the folder that the guest sees as its share.
	Share string
	// RootBase is the read-only image below the guest's root, RootCOW the file
	// that takes what the guest writes. The latter need not exist.
	RootBase, RootCOW string
	// Disks are raw images, in the order in which the guest shall see them.
	Disks []string
	// Shared says that another guest has the disks too: neither locks them. Whoever uses them
	// sees to it that one at a time does.
	Shared bool
	// Plugged are further disks that can be taken away while the guest runs; only
	// User-Mode Linux has them.
	Plugged []Plugged
	// MemoryMiB is the guest's memory in MiB.
	MemoryMiB int
	// Tap is the host's end of the guest's network interface; "" for none.
	Tap string
	// RunDir is a folder for the backend's own files.
	RunDir string
	// Console is the file that takes the console's output.
	Console string
}

// Backend runs guests.
type Backend interface {
	// Spec returns the process that is the guest: killing its session is a crash
	// of the guest that loses nothing its disks have acknowledged. It returns
	// [ErrGuest] for a guest that it cannot run.
	Spec(g Guest) (proc.Spec, error)
}

// UML runs guests as User-Mode Linux processes.
type UML struct{}

// maxUBDs is the number of disks that the kernel's ubd driver has
// (arch/um/drivers/ubd_kern.c, MAX_DEV).
const maxUBDs = 16

// Spec implements [Backend]. Parameters: arch/um's own, as `linux --help` lists
// them, and Documentation/virt/uml/user_mode_linux_howto_v2.rst for vec0.
func (UML) Spec(g Guest) (proc.Spec, error) {
	if disks := len(g.Disks) + len(g.Plugged); disks+1 > maxUBDs {
		return proc.Spec{}, fmt.Errorf("%w: %s has %d disks, at most %d are possible", ErrGuest, g.Name, disks, maxUBDs-1)
	}
	for _, p := range append([]string{g.Kernel, g.Boot, g.Share, g.RootBase, g.RootCOW, g.RunDir}, g.Disks...) {
		// The kernel splits its command line at blanks, and disks at commas.
		if p == "" || strings.ContainsAny(p, " \t\n,\"") {
			return proc.Spec{}, fmt.Errorf("%w: path %q is empty or has blanks, commas or quotes", ErrGuest, p)
		}
	}
	args := []string{
		fmt.Sprintf("mem=%dM", g.MemoryMiB),
		// The agent's folder, read-only, is the first root; the agent itself
		// changes to ubda.
		"root=/dev/root", "rootfstype=hostfs", "rootflags=" + g.Boot, "ro", "init=/" + agentapi.AgentFile,
		fmt.Sprintf("ubd0=%s,%s", g.RootCOW, g.RootBase),
	}
	flags := ""
	if g.Shared {
		flags = "c" // no lock (arch/um/drivers/ubd_kern.c)
	}
	for i, d := range g.Disks {
		args = append(args, fmt.Sprintf("ubd%d%s=%s", i+1, flags, d))
	}
	for _, d := range g.Plugged {
		if err := d.check(); err != nil {
			return proc.Spec{}, err
		}
		args = append(args, d.parameter())
	}
	args = append(args,
		"con=null", "con0=null,fd:1", "ssl=null", "quiet",
		"seccomp=on", // the fast way to run the guest's processes
		"umid="+g.Name, "uml_dir="+g.RunDir,
		agentapi.ShareEnv+"="+g.Share,
	)
	if g.Tap != "" {
		args = append(args, "vec0:transport=tap,ifname="+g.Tap)
	}
	// TMPDIR is left out on purpose: without it the kernel puts the guest's
	// memory into /dev/shm.
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + g.RunDir}
	return proc.Spec{Name: g.Name, Path: g.Kernel, Args: args, Env: env, Dir: g.RunDir, Log: g.Console}, nil
}

// MakeDisk makes a sparse image of that many bytes unless the file is there.
func MakeDisk(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("disk image: %w", err)
	}
	return errors.Join(f.Truncate(size), f.Close())
}
