package attach_test

import (
	"bytes"
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/volume"
)

// abandon is what `kubectl nearflash abandon` does to the record.
func (w *world) abandon() {
	w.t.Helper()
	obj := w.record()
	obj.Status.DirtyState = v1alpha1.DirtyStateClean
	obj.Status.Abandoned = append(obj.Status.Abandoned, v1alpha1.AbandonedWrites{
		Generation: *obj.Status.Generation, NodeName: obj.Status.OwnerNode, Consent: v1alpha1.LossConsent{Time: metav1.Now()},
	})
	w.must("give the writes up", w.api.Status().Update(w.ctx, obj))
}

// spoil overwrites what the metadata of the cache begin with.
func (h *host) spoil() {
	h.w.t.Helper()
	c := h.lvmClient(nil)
	h.w.must("activate", c.Activate(h.w.ctx, vgName, layout.MetaLV(volumeID)))
	lvs, err := c.LVs(h.w.ctx, vgName)
	h.w.must("logical volumes", err)
	d, err := h.machine.Device(layout.Find(lvs, volumeID).Meta.DevNo())
	h.w.must("metadata", err)
	_, err = d.WriteAt(bytes.Repeat([]byte{0xa5}, 4096), 0)
	h.w.must("spoil", err)
}

// TestAbandoned: writes that were abandoned and cannot be flushed keep the volume from
// nothing, on the node that has them either.
func TestAbandoned(t *testing.T) {
	begin := func(t *testing.T) (l *life, before map[int64]uint64) {
		l = newLife(t, volume.ModeWriteback)
		l.stay(l.a, 1, 0, 1)
		l.req = l.publish(l.a.name)
		l.begin(l.a)
		before = maps.Clone(l.written)
		l.a.podWrites(2, 1, 2)
		l.a.powerLoss()
		l.a.start()
		return l, before
	}
	goesOn := func(l *life) {
		l.t.Helper()
		l.must("stage", l.a.Stage(l.ctx, l.req))
		l.a.podReads()
		l.a.podWrites(3, 4)
		if obj := l.record(); obj.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
			l.t.Errorf("the record says %s (I2)", obj.Status.DirtyState)
		}
		l.leave(l.a)
	}
	t.Run("kept until then", func(t *testing.T) {
		l, _ := begin(t)
		l.a.spoil()
		l.unpublish(l.a.name)
		l.req = l.publish(l.a.name)
		if err := l.a.Stage(l.ctx, l.req); err == nil {
			t.Error("the volume was staged without its writes")
		}
		_ = l.a.Repair(l.ctx) // whatever it says: nothing is destroyed
		if e := l.a.entry(); e == nil || !e.MayBeDirty() {
			t.Errorf("the journal says %+v", e)
		}
	})
	t.Run("staged", func(t *testing.T) {
		l, before := begin(t)
		l.a.spoil()
		l.unpublish(l.a.name)
		l.abandon()
		l.req, l.written = l.publish(l.a.name), before
		goesOn(l)
	})
	t.Run("staged, with what can be read", func(t *testing.T) {
		l, _ := begin(t)
		l.unpublish(l.a.name)
		l.abandon()
		l.req = l.publish(l.a.name)
		goesOn(l)
	})
	t.Run("repaired", func(t *testing.T) {
		l, before := begin(t)
		l.a.spoil()
		l.unpublish(l.a.name)
		l.abandon()
		l.written = before
		l.persist(l.a, "repair", func(p *plugin) error { return p.Repair(l.ctx) })
		if e := l.a.entry(); e != nil {
			t.Errorf("the journal says %+v", e)
		}
		l.compare("the storage server", l.lun)
		l.stay(l.b, 3, 4)
	})
}
