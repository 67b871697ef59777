//go:build kernel

package kernel

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelHydrationStopped: the new owner stops uncleanly at the end of a hydration, or in the
// middle of one, and then with its journal lost. What was dirty is flushed, and what was
// not copied is never read from the SSD (I5, I8).
func TestKernelHydrationStopped(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "fillstop", cached(volume.ModeWriteback, 32*mib))
	for _, point := range []string{"journal lost", "hydration.swapped", "hydration.whole", "hydration.removed", "hydration.reported"} {
		v.stopHydrating(point)
		if t.Failed() {
			t.Fatalf("stopped at %s", point)
		}
	}
	v.remove()
	mustPass(t, "repair", v.b.Repair(t.Context()))
}

func (v *movers) stopHydrating(point string) {
	t := v.m.t
	data := v.leaveWarm()
	v.stage()
	v.m.must("dmsetup", "message", "nf-"+string(v.req.ID), "0", "migration_threshold", "0")
	late := pattern(uint64(v.gen)+1000, mib)
	write(t, v.device(), late, 2*mib, true)
	copy(data[2*mib:], late)
	if st, _ := v.cache(); st.Dirty == 0 {
		t.Fatal("nothing is dirty")
	}
	s := stopping{m: v.m, n: v.b, name: otherName, id: v.req.ID, sources: []volume.Source{v.req.Publication.Source}}
	e, err := v.b.Journal.Load(string(v.req.ID))
	mustPass(t, "journal", err)
	s.sources = append(s.sources, volume.Source{ISCSI: *e.Hydration.Peer})
	lost := point == "journal lost"
	if !lost && !v.killAt(point, order{Lessor: v.a.dir, Hydration: true}) {
		t.Fatalf("no hydration passed %s", point)
	}
	s.cut()
	s.vanish()
	if lost {
		mustPass(t, "journal", v.b.Journal.Delete(string(v.req.ID)))
	}
	v.a, v.b, err = openPair(t.Context(), v.a.dir, v.b.dir)
	mustPass(t, "restart", err)
	v.n = v.b
	// What a repair that was ended here has made rests on the origin.
	if point == "hydration.swapped" && !v.killAt("hydration.path", order{Lessor: v.a.dir, Repair: true}) {
		t.Fatal("the repair did not pass hydration.path")
	}
	// What has no journal is kept until the volume comes again.
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
	if kept, _ := v.b.Kept(); (len(kept) > 0) != lost {
		t.Fatalf("the node keeps %+v", kept)
	}
	v.stage()
	check(t, v.device(), data, 0)
	v.wantHydrated()
	check(t, v.device(), data, 0)
	v.unstage()
	v.a.releaseAll(t)
}
