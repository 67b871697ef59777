package provision

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// told is what a node is told of the fixture's volume, the zero value if nothing.
func (f *fixture) told(t *testing.T, node string) (uid string, generation int64) {
	t.Helper()
	pool := &v1alpha1.CachePool{}
	if err := f.client.Get(t.Context(), client.ObjectKey{Name: node}, pool); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(pool.Status.Deleted, func(d v1alpha1.DeletedVolume) bool { return d.VolumeName == string(f.id) })
	if i < 0 {
		return "", 0
	}
	return pool.Status.Deleted[i].VolumeUID, ptr.Deref(pool.Status.Deleted[i].Generation, 0)
}

// loseRecord removes the record, as it is gone with an API server.
func (f *fixture) loseRecord(t *testing.T) {
	t.Helper()
	err := records.UpdateObject(t.Context(), f.client, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Finalizers = nil
		return nil
	})
	if err == nil {
		obj := &v1alpha1.CachedVolume{}
		obj.Name = string(f.id)
		err = f.client.Delete(t.Context(), obj)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testDeleteTold: whoever may have something of a deleted volume is told before its record
// goes, be it dirty, a retained cache, or given up before; others are not, and a node that has
// no CachePool is no obstacle.
func testDeleteTold(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	f.unpublish(t, nodeA)
	uid := f.record(t).Fence.UID
	err := records.UpdateStatus(t.Context(), f.client, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-gone", Generation: 1, SizeBytes: ptr.To(int64(1))}}
		obj.Status.Abandoned = []v1alpha1.AbandonedWrites{{NodeName: nodeB, Generation: 1, Consent: v1alpha1.LossConsent{Time: metav1.Unix(1, 0), By: "somebody", Given: "--accept-data-loss"}}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.failOnce("change record", false)
	if err := f.svc.Delete(t.Context(), f.id); err == nil {
		t.Fatal("no failure")
	}
	for range 2 {
		for _, node := range []string{nodeA, nodeB} {
			if got, generation := f.told(t, node); got != uid || generation != 1 {
				t.Errorf("node %s is told of UID %q, generation %d; want %q, 1", node, got, generation, uid)
			}
		}
		if got, _ := f.told(t, "node-new"); got != "" {
			t.Error("a node is told that never had the volume")
		}
		if err := f.svc.Delete(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
		f.wantGone(t)
	}
}

// testDeleteRestored: the record does not know its last owner, the storage server does.
func testDeleteRestored(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	uid := f.record(t).Fence.UID
	released := f.status(t)
	f.publish(t, nodeA, 1)
	published := f.status(t)
	refused := func(of v1alpha1.CachedVolumeStatus, initiator string) {
		t.Helper()
		f.setBack(t, of)
		f.storage.Login(f.id, initiator, true)
		wantError(t, f.svc.Delete(t.Context(), f.id), volume.ErrInUse)
		f.wantExports(t, initiator)
		if got, _ := f.told(t, nodeB); got != "" {
			t.Errorf("node B is told that the volume %s is deleted, which it uses", got)
		}
		if now := f.record(t); now.Deleting || now.Published != (of.Publication == v1alpha1.PublicationPublished) {
			t.Errorf("the record after a deletion that was refused: %+v", now)
		}
		f.storage.Login(f.id, initiator, false)
	}
	// The owner that the record shows has come back.
	f.taken = "first"
	dirty := released
	dirty.DirtyState = v1alpha1.DirtyStatePossiblyDirty
	refused(released, iqnA)
	refused(dirty, iqnA)

	// Another one came after it.
	f.storage.Evict(f.id)
	f.admitUnknown(t, iqnB, 4)
	refused(v1alpha1.CachedVolumeStatus{}, iqnB)
	refused(published, iqnB)
	wantError(t, f.svc.Delete(t.Context(), f.id), volume.ErrInUse) // as the record says
	refused(released, iqnB)
	if err := f.svc.Delete(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantGone(t)
	if got, generation := f.told(t, nodeB); got != uid || generation != 4 {
		t.Errorf("the last owner is told of UID %q, generation %d; want %q, 4", got, generation, uid)
	}
}

// testAdopt: the records are lost. The PersistentVolume has the volume's handle, and the
// storage server knows who may have unflushed writes of it: nobody else gets it before.
func testAdopt(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	f.publish(t, nodeB, 2)
	f.mark(t, true)
	old := f.record(t).Fence.UID
	f.loseRecord(t)
	adopted := spec()
	adopted.CapacityBytes, adopted.Claim = 0, nil

	_, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrNotFound)
	if !strings.Contains(err.Error(), "recover-a-lost-cluster") {
		t.Errorf("the error does not name the remedy: %v", err)
	}
	for range 2 {
		_, err = f.svc.Publish(t.Context(), f.id, nodeA, &adopted, chap)
		wantError(t, err, volume.ErrFenced)
		f.wantOwner(t, nodeB, 2, false)
		f.wantExports(t, iqnB)
	}
	v := f.record(t)
	if v.Fence.UID == old || !v.PossiblyDirty || v.Spec.CapacityBytes != gib || v.Filesystem != volume.FormatDone {
		t.Errorf("the record made anew: %+v", v)
	}
	f.mark(t, false) // node B has flushed
	pub, err := f.svc.Publish(t.Context(), f.id, nodeA, &adopted, chap)
	if err != nil || pub.Fence.Generation != 3 {
		t.Fatalf("published as %+v, %v", pub.Fence, err)
	}
	f.wantExports(t, iqnA)
	f.wantFilesystem(t, volume.FormatDone)
	f.unpublish(t, nodeA)

	f.loseRecord(t)
	if err := f.storage.Delete(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	_, err = f.svc.Publish(t.Context(), f.id, nodeA, &adopted, chap)
	wantError(t, err, volume.ErrNotFound)
	if _, err := f.svc.Get(t.Context(), f.id); err == nil {
		t.Error("a record was made of a volume that is nowhere")
	}
}

// testAdoptClean: a volume of which nothing can be dirty waits for nobody, unless the node
// says that it has unflushed writes: its mode was another one once.
func testAdoptClean(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeB, 1)
	f.loseRecord(t)
	adopted := spec()
	adopted.Mode, adopted.AcceptNodeLoss = volume.ModeWritethrough, false
	keep := func(list ...v1alpha1.KeptCache) {
		t.Helper()
		if err := records.UpdatePool(t.Context(), f.client, nodeB, func(st *v1alpha1.CachePoolStatus) { st.Kept = list }); err != nil {
			t.Fatal(err)
		}
	}
	keep(v1alpha1.KeptCache{VolumeName: string(f.id), VolumeUID: "before", Generation: ptr.To(int64(1))})
	_, err := f.svc.Publish(t.Context(), f.id, nodeA, &adopted, chap)
	wantError(t, err, volume.ErrFenced)
	f.wantOwner(t, nodeB, 1, false)
	f.mark(t, false)
	keep()
	f.publish(t, nodeA, 2)
	f.unpublish(t, nodeA)

	f.admitUnknown(t, iqnB, 7)
	f.loseRecord(t)
	pub, err := f.svc.Publish(t.Context(), f.id, nodeA, &adopted, chap)
	if err != nil || pub.Fence.Generation != 8 {
		t.Fatalf("published as %+v, %v", pub.Fence, err)
	}
}

// testRemadeByHand: a backup tool has made the object anew, without its status. The node
// that the server admits keeps its access, also if Kubernetes detaches the volume.
func testRemadeByHand(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	f.loseRecord(t)
	obj := records.NewObject(f.id, spec())
	if err := f.client.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	// Node A has a twin of the same initiator name: nobody is guessed.
	wantError(t, f.svc.Unpublish(t.Context(), f.id, nodeA), volume.ErrFenced)
	f.wantExports(t, iqnA)
	f.storage.Evict(f.id)
	f.admitUnknown(t, iqnB, 5)
	f.unpublish(t, nodeB)
	f.wantExports(t, iqnB)
	f.wantOwner(t, nodeB, 5, false)
	if !f.record(t).PossiblyDirty {
		t.Error("the record calls clean what the node may have to flush")
	}
}

// testNoRecord: without a record nobody knows whether the node has flushed: its access
// ends with the volume alone, and not while it uses it.
func testNoRecord(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.loseRecord(t)
	f.unpublish(t, nodeA)
	f.wantExports(t, iqnA)
	f.storage.Login(f.id, iqnA, true)
	wantError(t, f.svc.Delete(t.Context(), f.id), volume.ErrInUse)
	f.wantExports(t, iqnA)
	f.storage.Login(f.id, iqnA, false)
	for range 2 {
		if err := f.svc.Delete(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
		f.wantGone(t)
	}
}
