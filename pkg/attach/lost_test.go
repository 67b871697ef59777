package attach_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

var errStillDirty = errors.New("the record says that the volume may be dirty")

// repairUntilClean repairs a node's volume until the record says that it is clean.
func (l *life) repairUntilClean(h *host) {
	l.t.Helper()
	l.persist(h, "repair", func(p *plugin) error {
		err := p.Repair(l.ctx)
		if l.record().Status.DirtyState != v1alpha1.DirtyStateClean {
			return errors.Join(err, errStillDirty)
		}
		return err
	})
}

// beLost has the first node lose its power below a pod, and the volume taken from it by
// force. No other node gets it before the first one is back and has flushed.
func (l *life) beLost() {
	l.t.Helper()
	req := l.publish(l.a.name)
	l.persist(l.a, "stage", func(p *plugin) error { return p.Stage(l.ctx, req) })
	l.a.podWrites(1, 0, 1, 2, 3)
	if _, running := l.a.mounts[staging]; !running {
		l.t.Fatal("the pod has no volume")
	}
	l.a.powerLoss()
	l.unpublish(l.a.name)
	dirty := l.mode == volume.ModeWriteback
	if _, err := l.control.Publish(l.ctx, volumeID, l.b.name, nil, &account); dirty && !errors.Is(err, volume.ErrFenced) {
		l.t.Fatalf("a volume with unflushed writes of another node is published: %v, want ErrFenced (I1, I2)", err)
	}

	l.a.start()
	if dirty {
		l.repairUntilClean(l.a)
	}
	l.stay(l.b, 2, 2, 4)
	// What the first node has is of the past, and goes.
	l.persist(l.a, "repair", func(p *plugin) error {
		if err := p.Repair(l.ctx); err != nil {
			return err
		}
		if entries, err := p.Journal.List(); err != nil || len(entries) > 0 {
			return errors.Join(err, fmt.Errorf("left of the past: %+v", entries))
		}
		return nil
	})
	l.nothingLeft(l.a)
	l.stay(l.a, 3, 5)
}

// TestKillLost ends the plugin, or its node again, before and after everything that it does
// for a volume that was taken from it.
func TestKillLost(t *testing.T) {
	for _, mode := range cacheModes {
		for _, power := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/power=%t", mode, power), func(t *testing.T) {
				t.Parallel()
				killEach(t, mode, power, (*life).beLost, nil)
			})
		}
	}
}

// TestRepairKeepsWhatItFlushed: a repair that is ended at any step goes on, and what it has
// flushed is kept as a cache: nothing has failed of the storage server meanwhile.
func TestRepairKeepsWhatItFlushed(t *testing.T) {
	for n, ended := 1, "?"; ended != ""; n++ {
		l := newLife(t, volume.ModeWriteback)
		req := l.publish(l.a.name)
		l.persist(l.a, "stage", func(p *plugin) error { return p.Stage(l.ctx, req) })
		l.a.podWrites(1, 0, 1, 2, 3)
		l.a.powerLoss()
		l.unpublish(l.a.name)
		l.a.start()
		l.a.plugin.killAfter(n)
		var err error
		if ended, err = l.a.plugin.run(func() error { return l.a.plugin.Repair(l.ctx) }); ended != "" {
			l.a.start()
			l.a.plugin.killAfter(0)
		} else {
			l.must("repair", err)
		}
		l.repairUntilClean(l.a)
		entries, err := l.a.Journal.List()
		l.must("journal", err)
		if len(entries) != 1 || entries[0].State != state.Retained {
			t.Errorf("ended %q: kept %+v", ended, entries)
		}
	}
}

// TestStageKeepsWhatRepairFlushed: the pod comes back while a repair is at it, which is ended at any
// step. The stage goes on with the same cache.
func TestStageKeepsWhatRepairFlushed(t *testing.T) {
	for n, ended := 1, "?"; ended != ""; n++ {
		l := newLife(t, volume.ModeWriteback)
		req := l.publish(l.a.name)
		stage := func(p *plugin) error { return p.Stage(l.ctx, req) }
		l.persist(l.a, "stage", stage)
		l.a.podWrites(1, 0, 1, 2, 3)
		before := l.a.logicalVolumes()
		l.a.powerLoss()
		l.a.start()
		l.a.plugin.killAfter(n)
		var err error
		if ended, err = l.a.plugin.run(func() error { return l.a.plugin.Repair(l.ctx) }); ended != "" {
			l.a.start()
		} else {
			l.must("repair", err)
		}
		l.a.plugin.killAfter(0)
		l.persist(l.a, "stage again", stage)
		if after := l.a.logicalVolumes(); after != before {
			t.Errorf("ended %q: the cache was %s, and is %s", ended, before, after)
		}
		l.a.podReads()
	}
}

// logicalVolumes tells those on the node's SSD from ones of the same names.
func (h *host) logicalVolumes() (out string) {
	h.w.t.Helper()
	lvs, err := h.lvmClient(nil).LVs(h.w.ctx, vgName)
	h.w.must("logical volumes", err)
	for _, lv := range lvs {
		out += lv.Name + " " + lv.UUID + " "
	}
	return out
}
