package provision

import (
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testOriginRetired: a record of before the last publication says that nobody has unflushed writes of an
// origin that was there before. Who was admitted since may have some, also if it is not attached now,
// and its admission stays.
func testOriginRetired(t *testing.T, o *origins) {
	pv := o.cluster.Static(t, string(o.id)+"-pv", gib)
	s := &volume.Spec{Mode: volume.ModeWriteback, AcceptNodeLoss: true, Cache: volume.Size{Percent: 10}, Origin: &volume.Origin{PV: pv.Name}}
	a, b := o.cluster.Node("a"), o.cluster.Node("b")
	publish := func(node string) {
		if _, err := o.svc.Publish(t.Context(), o.id, node, s, nil); err != nil {
			t.Fatal(err)
		}
	}
	publish(a)
	o.unpublish(t, a)
	old, err := records.Load(t.Context(), o.client, o.id)
	if err != nil {
		t.Fatal(err)
	}
	publish(b)
	err = records.UpdateStatus(t.Context(), o.client, o.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status = old.Status
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	o.cluster.Behave(csitest.Behaviour{HoldAttach: true})
	admitted := func() []storagev1.VolumeAttachment {
		var all storagev1.VolumeAttachmentList
		if err := o.client.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(all.Items, func(va storagev1.VolumeAttachment) bool {
			return va.DeletionTimestamp != nil || va.Spec.NodeName != b
		})
	}
	for _, va := range admitted() {
		va.Status.Attached = false
		if err := o.client.Status().Update(t.Context(), &va); err != nil {
			t.Fatal(err)
		}
	}
	// Of a node that has no pool any more nobody knows what it has.
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: b}}
	if err := o.client.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	wantError(t, o.svc.Retire(t.Context(), o.id), volume.ErrFenced)
	if err := o.client.Create(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: b}}); err != nil || len(admitted()) != 1 {
		t.Fatalf("%v, admitted %d times", err, len(admitted()))
	}
	wantError(t, o.svc.Retire(t.Context(), o.id), volume.ErrBusy)
	if v := o.record(t); v.Fence.Node != b || !v.PossiblyDirty || len(admitted()) != 1 {
		t.Errorf("record %+v, admitted %d times", v, len(admitted()))
	}
	o.mark(t, false)
	if err := o.svc.Retire(t.Context(), o.id); err != nil {
		t.Fatal(err)
	}
	o.wantGone(t)
	o.wantAttached(t)
}
