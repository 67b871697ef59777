//go:build kernel

package kernel

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelPathsReturn: a volume over two portals goes on when they come back after both
// were lost for longer than a session is waited for; the kernel alone never tries them again.
func TestKernelPathsReturn(t *testing.T) {
	m := newMachine(t, portal, secondPortal)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWriteback} {
		d := m.volume(n, "paths-"+string(mode), 64*mib, cached(mode, 32*mib))
		d.req.Block = true
		d.stage()
		data := pattern(5, mib)
		write(t, d.device(), data, 0, true)

		d.paths("offline")
		late := d.waits()
		mustPass(t, "look at paths that are lost", n.TendPaths(t.Context()))
		if d.hasPath() {
			t.Fatal("a path that cannot be read was brought back")
		}
		d.paths("running")
		d.endsWaiting(late)
		soon(t, "every path is back", func() bool {
			mustPass(t, "look at the paths", n.TendPaths(t.Context()))
			s, err := n.DM.MultipathStatus(t.Context(), layout.Device(d.req.ID, layout.Origin))
			mustPass(t, "paths", err)
			return len(s.Paths) == 2 && s.Paths[0].Active && s.Paths[1].Active
		})
		check(t, d.device(), data, 0)
		check(t, d.device(), data[:waitingBytes], 32*mib)
		d.unstage()
		d.remove()
	}
}

// TestKernelPathsOver: what waits for the paths of an ownership that is over ends, the pod's
// own I/O too, without which the volume could never be unmounted. A volume that is published
// here again waits again.
func TestKernelPathsOver(t *testing.T) {
	m := newMachine(t, portal, secondPortal)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "over", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	published := func(is bool) {
		mustPass(t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error { r.Volume.Published = is; return nil }))
	}
	d.paths("offline")
	late := d.waits()
	published(false)
	mustPass(t, "look at the paths", n.TendPaths(t.Context()))
	soon(t, "what waited for the paths ends", func() bool { return len(late) > 0 })
	if err := <-late; err == nil {
		t.Error("a write to paths that are lost succeeded")
	}

	published(true)
	d.stage()
	late = d.waits()
	mustPass(t, "look at the paths", n.TendPaths(t.Context()))
	d.paths("running")
	d.endsWaiting(late)
	d.unstage()
	d.remove()
}

// paths sets the state of the disks below the volume.
func (d *disk) paths(state string) {
	t := d.m.t
	t.Helper()
	o, found, err := d.n.Transport.Lookup(t.Context(), d.target())
	if err != nil || !found || len(o.Paths) != 2 {
		t.Fatalf("paths: %+v, %t, %v", o, found, err)
	}
	for _, path := range o.Paths {
		mustPass(t, "state of a path", os.WriteFile(filepath.Join("/sys/block", filepath.Base(path), "device/state"), []byte(state+"\n"), 0))
	}
}

func (d *disk) hasPath() bool {
	s, err := d.n.DM.MultipathStatus(d.m.t.Context(), layout.Device(d.req.ID, layout.Origin))
	mustPass(d.m.t, "paths", err)
	return s.HasPath()
}

// waitingBytes is what waits writes.
const waitingBytes = 64 << 10

// waits begins a write, and returns when it waits for paths. What becomes of it is received.
func (d *disk) waits() <-chan error {
	t := d.m.t
	t.Helper()
	device := d.device()
	done := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(device, os.O_WRONLY|os.O_SYNC, 0)
		if err == nil {
			_, err = f.WriteAt(pattern(5, mib)[:waitingBytes], 32*mib)
			_ = f.Close()
		}
		done <- err
	}()
	inflight := filepath.Join("/sys/block", filepath.Base(d.originDevice()), "inflight")
	soon(t, "a write waits for paths", func() bool {
		counts, err := os.ReadFile(inflight)
		mustPass(t, "I/O in flight", err)
		return !d.hasPath() && !slices.Equal(strings.Fields(string(counts)), []string{"0", "0"})
	})
	return done
}

// endsWaiting looks at the paths until a write that waited for them has succeeded.
func (d *disk) endsWaiting(late <-chan error) {
	t := d.m.t
	t.Helper()
	soon(t, "what waited for the paths ends", func() bool {
		mustPass(t, "look at the paths", d.n.TendPaths(t.Context()))
		return len(late) > 0
	})
	mustPass(t, "write that waited", <-late)
}
