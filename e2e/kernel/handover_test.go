//go:build kernel

package kernel

import (
	"errors"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelHandOver: a source node that says that it goes is left while it still serves.
// No path fails, and no access waits for a timeout.
func TestKernelHandOver(t *testing.T) {
	m := newMachine(t)
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		v := newMovers(t, m, "handover-"+string(mode), cached(mode, 64*mib))
		v.stage()
		v.warmUp(1)
		l := startLoad(t, v.device(), 64*mib)
		l.moving()
		l.end()
		// Nothing is copied before the source node leaves, and a byte a second after that: however
		// slow the machine, there is something left to copy.
		v.b.Warm.NodeBandwidth = 1
		v.unstage()
		v.publishTo(v.b, otherName)
		v.stage()
		// What the load does not touch, only the copy brings: most of what was warmed up.
		all := l.blocks
		l.blocks /= 32
		again := resumeLoad(l, v.device())
		again.moving()
		if left := v.left(); left == 0 {
			t.Fatalf("%s: nothing is left to copy", mode)
		}
		v.wantPath(0)
		usual := time.Duration(again.longest.Swap(0))

		v.b.Moves.(*pair).release()
		stop := v.b.runHydrations(t.Context())
		t.Logf("%s: left after %s", mode, v.awaitLeft())
		stop()
		v.wantPath(0)
		if left := v.left(); left == 0 {
			t.Errorf("%s: it was left because everything was copied", mode)
		}
		v.endLease()
		again.moving()
		again.moving()
		v.wantPath(0)
		// Whoever waits for a source node that is gone waits until the path fails, which it has
		// not; how long anything takes on a busy machine says nothing.
		t.Logf("%s: longest access %s, before it %s", mode, time.Duration(again.longest.Load()), usual)
		v.b.Warm.NodeBandwidth = 0
		v.wantHydrated()
		again.end()
		again.blocks = all
		again.check(v.device())
		v.unstage()

		// The retained cache is stale, which the next start of the source node's plugin finds.
		mustPass(t, "repair", v.a.Repair(t.Context()))
		if e, err := v.a.Journal.Load(string(v.req.ID)); !errors.Is(err, journal.ErrNotFound) {
			t.Errorf("%s: the old node still knows the volume: %+v, %v", mode, e, err)
		}
		v.ask(func(r *volume.Volume) { r.Spec.Mode = volume.ModeNone })
		v.stage()
		again.check(v.device())
		v.unstage()
		v.remove()
		mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
	}
}

// TestKernelHandOverStream: a source node that goes ends what it sends, and lets go of its cache at
// once. What was not sent comes from the origin, and the pod goes on.
func TestKernelHandOverStream(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "handover-stream", streaming(cached(volume.ModeWritethrough, 64*mib)))
	l := v.movedWarm()
	// Something is left to copy when the source node leaves.
	v.b.Warm.NodeBandwidth = mib
	again := resumeLoad(l, v.device())
	again.moving()
	stop := v.b.runHydrations(t.Context())
	v.untilCopied(func(p volume.MoveProgress) bool { return p.HydratedBytes > 0 })
	usual := time.Duration(again.longest.Swap(0))

	if used, err := v.a.Lessor().InUse(t.Context(), v.req.ID); used || err != nil {
		t.Errorf("a stream is waited for: %t, %v", used, err)
	}
	v.endLease()
	p := v.untilCopied(func(p volume.MoveProgress) bool { return p.From == volume.FromOrigin })
	if p.HydratedBytes == p.TotalBytes {
		t.Error("nothing was left to copy")
	}
	again.moving()
	t.Logf("longest access %s, before it %s", time.Duration(again.longest.Load()), usual)
	v.b.Warm.NodeBandwidth = 0
	v.wantStreamed()
	stop()
	again.end()
	again.check(v.device())
	v.leaveChecked(again)
}

// untilCopied waits until a stream is as far as that.
func (v *movers) untilCopied(far func(volume.MoveProgress) bool) volume.MoveProgress {
	t := v.m.t
	t.Helper()
	for began := time.Now(); time.Since(began) < 3*time.Minute; time.Sleep(20 * time.Millisecond) {
		for _, s := range v.b.Streams().States() {
			if s.ID == v.req.ID && far(s.MoveProgress) {
				return s.MoveProgress
			}
		}
	}
	t.Fatalf("the stream does not come so far: %+v", v.b.Streams().States())
	return volume.MoveProgress{}
}

// wantPath fails unless the hydration's path is up and has failed so many times.
func (v *movers) wantPath(failures uint64) {
	v.m.t.Helper()
	st, err := v.b.DM.MultipathStatus(v.m.t.Context(), layout.Device(v.req.ID, layout.Source))
	mustPass(v.m.t, "path", err)
	if len(st.Paths) != 1 || !st.HasPath() || st.Paths[0].Failures != failures {
		v.m.t.Errorf("the path is %+v, want it up after %d failures", st, failures)
	}
}

// awaitLeft waits until the destination has no session with the lease, as the source node does
// before it ends the export.
func (v *movers) awaitLeft() time.Duration {
	t := v.m.t
	t.Helper()
	began := time.Now()
	used, err := v.a.Lessor().InUse(t.Context(), v.req.ID)
	mustPass(t, "session", err)
	if !used {
		t.Error("nobody used the lease")
	}
	for used && time.Since(began) < 3*time.Minute {
		time.Sleep(20 * time.Millisecond)
		used, err = v.a.Lessor().InUse(t.Context(), v.req.ID)
		mustPass(t, "session", err)
	}
	if used {
		t.Error("the lease was not left")
	}
	return time.Since(began)
}

// endLease ends the only lease of the source node, and leaves the retained cache.
func (v *movers) endLease() {
	t := v.m.t
	t.Helper()
	leases, err := v.a.Lessor().Leases(t.Context())
	mustPass(t, "leases", err)
	move, exported := leases[v.req.ID]
	if !exported || len(leases) != 1 {
		t.Fatalf("leases %v", leases)
	}
	for range 2 { // repeating it is no error
		mustPass(t, "release", v.a.Lessor().EndLease(t.Context(), v.req.ID, move))
	}
	if leases, err = v.a.Lessor().Leases(t.Context()); err != nil || len(leases) > 0 {
		t.Errorf("leases %v, %v", leases, err)
	}
	if e, err := v.a.Journal.Load(string(v.req.ID)); err != nil || e.State != state.Retained || e.Exported != nil {
		t.Errorf("journal %+v, %v", e, err)
	}
	infos, err := v.a.DM.Info(t.Context(), layout.Device(v.req.ID, layout.Exported))
	if mustPass(t, "devices", err); len(infos) > 0 {
		t.Errorf("left: %v", infos)
	}
}
