// Command agent is the first process of every guest of the lab. It mounts the
// guest's root, sets up what the guest's role needs, keeps its services running
// and runs commands for the host.
//
// As process 1 it only boots, reaps and ends the guest; all else happens in a
// child of it, so that reaping orphans and waiting for one's own children never
// get in each other's way. The host has it run once more for a disk that comes or goes, and
// for programs of a pair of storage servers.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// exitPowerOff is the child's exit status that asks for an orderly end.
const exitPowerOff = 0

func main() {
	switch {
	case os.Getpid() == 1:
	case len(os.Args) == 4 && os.Args[1] == agentapi.DiskCommand:
		os.Exit(disk(os.Args[2], os.Args[3]))
	case len(os.Args) > 1 && (os.Args[1] == systemctl || os.Args[1] == arping):
		os.Exit(pairCommand(os.Args[1:]))
	default:
		os.Exit(serve())
	}
	if err := initProcess(); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
	}
	powerOff()
}

// initProcess is process 1: it returns when the guest shall end.
func initProcess() error {
	share, err := boot()
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	child, err := os.StartProcess("/proc/self/exe", []string{"agent", "serve"}, &os.ProcAttr{
		Env:   append(environment(), "NFSHARE="+share, agentapi.RootEnv+"="+os.Getenv(agentapi.RootEnv)),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("start the serving process: %w", err)
	}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case pid != child.Pid:
		case ws.Exited() && ws.ExitStatus() == exitPowerOff:
			return nil
		default:
			return fmt.Errorf("the serving process ended with status %#x", uint32(ws))
		}
	}
}

// unmountLimit bounds the wait for disks that do not answer any more.
const unmountLimit = 30 * time.Second

// powerOff ends all processes, writes everything to the disks and ends the guest.
func powerOff() {
	_ = unix.Kill(-1, unix.SIGKILL)
	time.Sleep(50 * time.Millisecond)
	done := make(chan struct{})
	go func() {
		defer close(done)
		unmountAll()
		unix.Sync()
	}()
	select {
	case <-done:
	case <-time.After(unmountLimit):
		fmt.Fprintln(os.Stderr, "agent: disks do not answer, powering off all the same")
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "agent: power off:", err)
	}
}

// unmountAll unmounts everything that can be, the last mounted first, and makes
// the root read-only. What is still busy stays: its file system was synced.
func unmountAll() {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent: mounts:", err)
	}
	for _, point := range slices.Backward(mountPoints(string(b))) {
		_ = unix.Unmount(point, 0)
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		fmt.Fprintln(os.Stderr, "agent: make the root read-only:", err)
	}
}

// mountPoints returns the mount points of disks in a mounts file (proc(5)), in
// its order. The kernel's own file systems need no unmounting.
func mountPoints(mounts string) []string {
	var out []string
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) >= 3 && f[1] != "/" && strings.HasPrefix(f[0], "/dev/") {
			out = append(out, unescape(f[1]))
		}
	}
	return out
}

// unescape undoes the octal escapes with which the kernel writes blanks.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LC_ALL=C.UTF-8", "TERM=dumb",
	}
}
