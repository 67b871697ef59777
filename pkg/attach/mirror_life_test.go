package attach_test

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// refused tells whether a volume that asks for a mirror, which its node has not, is as it has to be: it
// has no cache, nothing of it is dirty, and the record says why.
func (l *life) refused() error {
	obj := l.record()
	c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionApplied)
	_, cached, err := l.a.kernel.Client(nil).Status(l.ctx, "nf-"+string(volumeID))
	if err == nil && (cached || c == nil || c.Reason != v1alpha1.ReasonNotMirrored || obj.Status.DirtyState != v1alpha1.DirtyStateClean) {
		err = fmt.Errorf("%w: cached %t, %s, %+v", errNotApplied, cached, obj.Status.DirtyState, c)
	}
	return err
}

// askMirror has a mirror asked for below a pod, on a node with one SSD, and not asked for any more.
func (l *life) askMirror() {
	l.t.Helper()
	req := l.publish(l.a.name)
	begin := func(p *plugin) error { return l.stageUnlessRunning(l.a, p, req) }
	l.persist(l.a, "stage", begin)
	l.a.podWrites(1, 1, 2, 3)
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.Redundancy = v1alpha1.RedundancyMirror })
	l.persist(l.a, "mirror", func(p *plugin) error {
		if err := begin(p); err != nil {
			return err
		}
		if _, err := p.Change(l.ctx); err != nil {
			return err
		}
		return l.refused()
	})
	l.compare("the storage server", l.lun)
	l.a.podWrites(2, 2, 4)
	l.a.podReads()
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.Redundancy = v1alpha1.RedundancyNone })
	l.persist(l.a, "no mirror", func(p *plugin) error {
		if err := begin(p); err != nil {
			return err
		}
		return l.apply(p)
	})
	l.wantCache(l.a)
	l.a.podWrites(3, 1, 5)
	l.a.podReads()
	l.leave(l.a)
}

// TestKillMirrorAsked ends the plugin, or its node, before and after everything that it changes meanwhile.
func TestKillMirrorAsked(t *testing.T) {
	for _, power := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
			t.Parallel()
			killEach(t, volume.ModeWriteback, power, (*life).askMirror, nil)
		})
	}
}

// copies is how many of the volume's logical volumes there are, and how many have two copies. Those
// that are in use are the same.
func (h *host) copies() (all, mirrored int) {
	h.w.t.Helper()
	if torn := h.lvm.Torn(); len(torn) > 0 {
		h.w.t.Fatalf("the copies of %v, which are in use, may differ", torn)
	}
	lvs, err := h.lvmClient(nil).LVs(h.w.ctx, vgName)
	h.w.must("logical volumes", err)
	for _, lv := range layout.Find(lvs, volumeID).LVs() {
		if all++; lv.Mirrored() {
			mirrored++
		}
	}
	return all, mirrored
}

// haveMirror has a mirror asked for below a pod whose node has two SSDs, has the volume leave and come
// back, and has it not asked for any more.
func (l *life) haveMirror() {
	l.t.Helper()
	req := l.publish(l.a.name)
	begin := func(p *plugin) error { return l.stageUnlessRunning(l.a, p, req) }
	ask := func(what string, r v1alpha1.Redundancy) {
		l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.Redundancy = r })
		l.persist(l.a, what, func(p *plugin) error {
			if err := begin(p); err != nil {
				return err
			}
			return l.apply(p)
		})
	}
	l.persist(l.a, "stage", begin)
	l.a.podWrites(1, 1, 2, 3)
	if all, mirrored := l.a.copies(); all != 2 || mirrored != 0 {
		l.t.Fatalf("%d of %d logical volumes have two copies that nobody asked for", mirrored, all)
	}
	ask("mirror", v1alpha1.RedundancyMirror)
	for round := range 2 {
		if all, mirrored := l.a.copies(); all != 2 || mirrored != 2 {
			l.t.Fatalf("%d of %d logical volumes have two copies (ended: %q)", mirrored, all, l.ended)
		}
		l.wantCache(l.a)
		l.a.podWrites(uint64(2+round), 2, 4)
		l.a.podReads()
		if round == 0 {
			l.leave(l.a)
			req = l.publish(l.a.name)
			l.persist(l.a, "stage again", begin)
		}
	}
	ask("no mirror", v1alpha1.RedundancyNone)
	if all, mirrored := l.a.copies(); all != 2 || mirrored != 2 {
		l.t.Fatalf("%d of %d logical volumes have two copies, and the cache was to stay (ended: %q)", mirrored, all, l.ended)
	}
	l.a.podReads()
	l.leave(l.a)
}

// TestKillMirrorHad ends the plugin, or its node, before and after everything that it changes meanwhile.
func TestKillMirrorHad(t *testing.T) {
	for _, power := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
			t.Parallel()
			begin := func(d ...disaster) *life {
				l := newLifeIn(newWorld(t, volume.ModeWriteback), volume.ModeWriteback)
				l.a.pair()
				l.next = d
				l.arm()
				return l
			}
			killEachOf(t, begin, power, (*life).haveMirror, nil)
		})
	}
}

// TestMirrorBehind: after a loss of power, a mirrored cache of which only the copy is there that was left
// behind is neither recovered nor thrown away, also if the plugin is ended at any step; with the other one
// it is recovered, alone or not.
func TestMirrorBehind(t *testing.T) {
	for _, both := range []bool{true, false} {
		t.Run(fmt.Sprintf("both=%t", both), func(t *testing.T) {
			l := newLife(t, volume.ModeWriteback)
			l.a.pair()
			l.a.mirrors = pool.NewManager(pool.Config{StateDir: t.TempDir()}, l.a.lvmClient(nil), nil, nil)
			l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.Redundancy = v1alpha1.RedundancyMirror })
			l.a.start()
			req := l.publish(l.a.name)
			stage := func(p *plugin) error { return p.Stage(l.ctx, req) }
			l.persist(l.a, "stage", stage)
			l.a.podWrites(1, 1, 2, 3)
			if all, mirrored := l.a.copies(); all != 2 || mirrored != 2 {
				t.Fatalf("%d of %d logical volumes have two copies", mirrored, all)
			}
			// The other one goes on alone.
			l.a.powerLoss()
			l.a.lvm.Lose(ssdPath, true)
			lvs, err := l.a.lvmClient(nil).LVs(l.ctx, vgName)
			l.must("logical volumes", err)
			l.must("activate one copy", l.a.mirrors.Admit(l.ctx, vgName, lvs...))
			l.a.lvm.Lose(ssdPath, false)
			l.a.lvm.Lose(otherSSD, true)
			for n, ended := 1, "?"; ended != ""; n++ {
				l.a.start()
				l.a.plugin.killAfter(n)
				ended, err = l.a.plugin.run(func() error { return l.a.plugin.Repair(l.ctx) })
				if ended == "" && !errors.Is(err, volume.ErrUnavailable) {
					t.Errorf("repair: %v, want ErrUnavailable", err)
				}
			}
			l.a.plugin.killAfter(0)
			if _, err := l.a.plugin.run(func() error { return stage(l.a.plugin) }); !errors.Is(err, volume.ErrFenced) {
				t.Errorf("stage: %v, want ErrFenced", err)
			}
			if e := l.a.entry(); e == nil || !e.MayBeDirty() || l.record().Status.DirtyState == v1alpha1.DirtyStateClean {
				t.Errorf("the entry is %+v, the record %+v", e, l.record().Status)
			}
			if l.differs(l.lun) == nil {
				t.Error("the storage server has everything: nothing was at risk, or it was flushed")
			}
			l.a.lvm.Lose(otherSSD, false)
			l.a.lvm.Lose(ssdPath, !both)
			l.repairUntilClean(l.a)
			l.compare("the storage server", l.lun)
		})
	}
}
