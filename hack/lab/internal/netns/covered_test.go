package netns

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// aloneEnv is set in a process that has mounts and a network of its own.
const aloneEnv = "NEARFLASH_NETNS_ALONE"

// alone runs the test in a process that is root of a user namespace and has a /run of its
// own, and reports whether this is that process.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneEnv) != "" {
		if err := unix.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), aloneEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if ran := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ran) {
		t.Skipf("this machine has no user namespaces for everybody: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// mountOver does what `ip netns add` does with a folder that is no mount yet.
func mountOver(t *testing.T) {
	t.Helper()
	for _, flags := range []uintptr{unix.MS_BIND | unix.MS_REC, unix.MS_SHARED | unix.MS_REC} {
		if err := unix.Mount(dir, dir, "none", flags, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeleteCovered: a name over which the folder of names was mounted later can be removed,
// and made again.
func TestDeleteCovered(t *testing.T) {
	if !alone(t) {
		return
	}
	n := NS{Name: "lab"}
	if err := n.Create(); err != nil {
		t.Fatal(err)
	}
	// As a version made it that did not share the folder.
	if err := errors.Join(unix.Unmount(n.Path(), 0), unix.Unmount(dir, unix.MNT_DETACH), unix.Mount("/proc/self/ns/net", n.Path(), "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	mountOver(t)
	for range 2 {
		if err := n.Delete(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(n.Path()); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%s is still there: %v", n.Path(), err)
		}
		if err := n.Create(); err != nil {
			t.Fatal(err)
		}
		if inode, err := n.Inode(); err != nil || inode == 0 {
			t.Fatalf("made again, it is no namespace: %d, %v", inode, err)
		}
	}
}

// TestCreateShares: what `ip netns add` does before its first namespace it does not do again.
func TestCreateShares(t *testing.T) {
	if !alone(t) {
		return
	}
	n := NS{Name: "lab"}
	if err := n.Create(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		t.Errorf("the folder of names is no mount: %v", err)
	}
	if err := n.Delete(); err != nil {
		t.Fatal(err)
	}
}
