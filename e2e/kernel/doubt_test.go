//go:build kernel

package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// returns attaches the volume anew: it begins with the cache that it had.
func (d *disk) returns() {
	d.m.t.Helper()
	d.unstage()
	d.stage()
	d.wantBegan(beganKept)
}

// fails uses the volume while its origin answers with errors: it writes what is cached, or
// reads what is not.
func (d *disk) fails(mode volume.CacheMode) {
	d.m.t.Helper()
	defer d.breakLUN()()
	f := openDirect(d.m.t, d.device())
	defer func() { _ = f.Close() }()
	_, err := f.ReadAt(aligned(mib), d.size-mib)
	if mode == volume.ModeWritethrough {
		_, err = f.WriteAt(pattern(2, 4*mib), 0)
	}
	if !errors.Is(err, unix.EIO) {
		d.m.t.Errorf("use of an origin that fails: %v, want EIO", err)
	}
}

// lostSession cuts the storage network for longer than the initiator waits for an answer,
// and waits for the session to be there again.
func (d *disk) lostSession() {
	d.m.t.Helper()
	base, err := d.n.Transport.Marks(d.m.t.Context(), d.target())
	mustPass(d.m.t, "marks", err)
	d.m.must("ip", "link", "set", "lo", "down")
	defer d.m.try("ip", "link", "set", "lo", "up")
	soon(d.m.t, "the session is lost", func() bool {
		states, err := filepath.Glob("/sys/class/iscsi_session/session*/state")
		mustPass(d.m.t, "sessions", err)
		return slices.ContainsFunc(states, func(f string) bool {
			b, err := os.ReadFile(f)
			return err == nil && strings.TrimSpace(string(b)) != "LOGGED_IN"
		})
	})
	d.m.must("ip", "link", "set", "lo", "up")
	soon(d.m.t, "another session is there", func() bool {
		now, err := d.n.Transport.Marks(d.m.t.Context(), d.target())
		failed, _ := now.Since(base, nil)
		return err == nil && failed == transport.FailedUnknown
	})
}

// wantDropped: unstage said why it kept nothing, and did so.
func (d *disk) wantDropped(what string) {
	d.m.t.Helper()
	rec, err := d.rec.load(d.req.ID)
	mustPass(d.m.t, "record", err)
	if !slices.Contains(rec.Reasons, v1alpha1.ReasonOriginErrors) || rec.RetainedCache != nil {
		d.m.t.Errorf("%s: the record says %v, retained cache %+v", what, rec.Reasons, rec.RetainedCache)
	}
	d.wantNoVolumes()
}

func (d *disk) forgetReasons() {
	d.m.t.Helper()
	mustPass(d.m.t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error { r.Reasons = nil; return nil }))
}

// TestKernelOriginErrors: a cache whose origin has refused a write, or may have, is not
// kept: what is read after the next stage is what the origin has. One without errors is.
func TestKernelOriginErrors(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range cachingModes() {
		d := m.volume(n, "refused-"+string(mode), 64*mib, cached(mode, 32*mib))
		d.req.Block = true
		d.stage()
		write(t, d.device(), pattern(1, 4*mib), 0, true)
		d.heat(4 * mib)
		d.returns()
		d.forgetReasons()
		d.fails(mode)
		d.unstage()
		d.wantDropped(string(mode))
		d.stage()
		d.wantBegan(beganEmpty)
		sameDevices(t, d.device(), d.originDevice())
		d.heat(4 * mib)
		d.forgetReasons()
		d.returns()

		// The session is lost and comes back: nobody knows what failed meanwhile.
		d.lostSession()
		d.unstage()
		d.wantDropped(string(mode) + ", session lost")
		d.remove()
	}
}

// TestKernelOriginLateWriter: a writer that goes on after the flush, while its device cannot
// be removed, is not missed.
func TestKernelOriginLateWriter(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "late", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	d.heat(4 * mib)
	f := openDirect(t, d.device())
	if err := n.Unstage(t.Context(), d.req.ID, d.req.StagingPath); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("unstage of a device that is open: %v", err)
	}
	restore := d.breakLUN()
	if _, err := f.WriteAt(pattern(2, mib), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("a late write: %v, want EIO", err)
	}
	restore()
	mustPass(t, "close", f.Close())
	d.unstage()
	d.wantDropped("a late writer")
	d.stage()
	sameDevices(t, d.device(), d.originDevice())
	d.unstage()
	d.remove()
}

// grow expands the volume on the server and on its node, below a pod that goes on writing.
func (d *disk) grow(by int64) {
	t := d.m.t
	t.Helper()
	writing := make(chan struct{})
	written := make(chan error, 1)
	f := openDirect(t, d.device())
	go func() {
		defer func() { _ = f.Close() }()
		for at := int64(0); ; at = (at + mib) % (4 * mib) {
			if _, err := f.WriteAt(pattern(2, mib), at); err != nil {
				written <- err
				return
			}
			select {
			case <-writing:
				written <- nil
				return
			default:
			}
		}
	}()
	d.enlarge(by)
	size, err := d.n.Expand(t.Context(), volume.ExpandRequest{ID: d.req.ID, Path: d.device(), Block: true})
	close(writing)
	if err != nil || size != d.size {
		t.Errorf("expand: %d, %v, want %d", size, err, d.size)
	}
	mustPass(t, "write meanwhile", <-written)
}

// TestKernelOriginGrows: an expansion does not cost a volume its cache, although the kernel
// asks for what the server does not have whenever it reads a size. It does not hide an error.
func TestKernelOriginGrows(t *testing.T) {
	m := newMachine(t, portal, secondPortal)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "grows-by-two", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	d.heat(4 * mib)
	d.grow(32 * mib)
	d.returns()
	d.unstage()
	d.remove()
	for _, mode := range cachingModes() {
		d := m.volume(n, "grows-"+string(mode), 64*mib, cached(mode, 32*mib))
		// With two, a device that has no path that works waits for one.
		d.req.Publication.Source.Portals = []string{portal}
		d.req.Block = true
		d.stage()
		d.heat(4 * mib)
		d.grow(32 * mib)
		d.grow(32 * mib)
		d.returns()
		d.forgetReasons()
		d.fails(mode)
		d.grow(32 * mib)
		d.unstage()
		d.wantDropped(string(mode))
		d.remove()
	}
}

// TestKernelOriginReserved: what a node asks of the reservation of a LUN, by each of its
// paths, is no error of it.
func TestKernelOriginReserved(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	n.Transport = m.initiatorAs(initiatorB)
	l := m.newLUN("reserved", staticSize, []string{portalA, portalB}, []string{portalB2})
	d := l.static(n, volume.ModeWritethrough, portalB, portalB2)
	a := l.paths(m.initiatorAs(initiatorA), portalA)
	mustTake(t, asPaths(a), reservation.KeyOf("uid-reserved", 1))
	d.give(nodeName)
	for _, how := range []string{beganEmpty, beganKept, beganKept} {
		d.stage()
		d.wantBegan(how)
		d.heat(4 * mib)
		write(t, d.device(), pattern(1, 4*mib), 0, true)
		mustPass(t, "look", n.WatchReservations(t.Context()))
		d.unstage()
	}
	d.forget()
}
