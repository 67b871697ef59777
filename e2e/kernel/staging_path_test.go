//go:build kernel

package kernel

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelStagingPath: a filesystem leaves its node although a container has a copy of its mount, which
// goes with the staging path. That of a raw block volume stays until the volume is down: without it the
// kubelet does not ask again.
func TestKernelStagingPath(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "copied", 64*mib, cached(volume.ModeWriteback, 16*mib))
	d.stage()
	mustPass(t, "file", os.WriteFile(filepath.Join(d.req.StagingPath, "f"), pattern(1, mib), 0o600))
	holder := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sleep", "3600")
	mustPass(t, "container", holder.Start())
	defer func() { _ = errors.Join(holder.Process.Kill(), holder.Wait()) }() // it was killed
	own, err := os.Readlink("/proc/self/ns/mnt")
	mustPass(t, "mount namespace", err)
	container := filepath.Join("/proc", strconv.Itoa(holder.Process.Pid))
	for range 100 {
		ns, _ := os.Readlink(filepath.Join(container, "ns/mnt"))
		mounts, _ := os.ReadFile(filepath.Join(container, "mountinfo"))
		if ns != own && strings.Contains(string(mounts), d.req.StagingPath) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if ns, err := os.Readlink(filepath.Join(container, "ns/mnt")); err != nil || ns == own {
		t.Fatalf("the container has no mounts of its own: %v", err)
	}
	d.unstage()
	d.remove()

	b := m.volume(d.n, "block", 64*mib, cached(volume.ModeWriteback, 16*mib))
	b.req.Block = true
	mustPass(t, "staging path", os.MkdirAll(b.req.StagingPath, 0o700)) // the kubelet makes it
	b.stage()
	f := openDirect(t, b.device())
	if err := b.n.Unstage(t.Context(), b.req.ID, b.req.StagingPath); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("unstage while somebody has the device open: %v", err)
	}
	if _, err := os.Stat(b.req.StagingPath); err != nil {
		t.Errorf("the staging path of a volume that is staged: %v", err)
	}
	mustPass(t, "close", f.Close())
	b.unstage()
	if _, err := os.Stat(b.req.StagingPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the staging path of a volume that is unstaged: %v", err)
	}
	b.remove()
}
