package provision

import (
	"errors"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend/csi"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// hasty is a Service that does not wait for the other driver for long.
func (o *origins) hasty() *Service {
	out := o.service(o.client)
	out.origins = csi.New(csi.Config{Client: o.client, Namespace: o.cluster.Namespace, Patience: 500 * time.Millisecond})
	return out
}

// wantLater fails unless the caller is to come back. It may be the API server that took too long.
func wantLater(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, volume.ErrBusy) && !errors.Is(err, volume.ErrUnavailable) {
		t.Fatalf("got %v, want that it is asked for again", err)
	}
}

// object returns the VolumeSnapshot of a cut, nil if there is none.
func (o *origins) object(t *testing.T, id volume.SnapshotID) *snapshotv1.VolumeSnapshot {
	t.Helper()
	s := &snapshotv1.VolumeSnapshot{}
	err := o.client.Get(t.Context(), client.ObjectKey{Namespace: o.cluster.Namespace, Name: string(id)}, s)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// killDeletion makes a snapshot, and has a controller delete it that dies when the deletion is
// ordered; the other driver does its part later.
func (o *origins) killDeletion(t *testing.T, id volume.SnapshotID) volume.SnapshotHandle {
	t.Helper()
	var s volume.Snapshot
	until(t, "snapshot", func() (err error) {
		s, err = o.svc.CreateSnapshot(t.Context(), id, o.id, volume.SnapshotClass{})
		return err
	})
	o.cluster.Behave(csitest.Behaviour{HoldCutDelete: true})
	// An order of a version that the snapshot controller has just replaced has no effect.
	for range 50 {
		if err := o.service(csitest.NewMortal(o.client, 1, true)).DeleteSnapshot(t.Context(), s.Handle); !errors.Is(err, csitest.ErrKilled) {
			t.Fatalf("it was not killed: %v", err)
		}
		object := o.object(t, id)
		if object == nil {
			t.Fatal("it is gone, though the other driver does nothing")
		}
		if object.DeletionTimestamp != nil {
			return s.Handle
		}
	}
	t.Fatal("the deletion was never ordered")
	return s.Handle
}

// testOriginDeletion: whoever deletes what another one has begun to delete, or what takes the
// other driver long, is told that it is gone once it is.
func testOriginDeletion(t *testing.T, o *origins) {
	h := o.killDeletion(t, "killed")
	for range 2 {
		wantLater(t, o.hasty().DeleteSnapshot(t.Context(), h))
	}
	o.cluster.Behave(csitest.Behaviour{})
	until(t, "delete", func() error { return o.svc.DeleteSnapshot(t.Context(), h) })
	if s := o.object(t, h.ID); s != nil {
		t.Errorf("left is %+v", s.ObjectMeta)
	}
	h = o.killDeletion(t, "swept")
	sweep := func() {
		t.Helper()
		if err := o.svc.SweepCuts(t.Context(), func(string) (func(), bool) { return func() {}, true }); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if o.object(t, h.ID) == nil {
		t.Error("it was swept while the other driver was at it")
	}
	o.cluster.Behave(csitest.Behaviour{})
	for range 100 {
		if s := o.object(t, h.ID); s != nil && len(s.Finalizers) > 1 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	if all, err := o.svc.Snapshots(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("what is being deleted is listed: %+v, %v", all, err)
	}
	sweep()
	if s := o.object(t, h.ID); s != nil {
		t.Errorf("left is %+v", s.ObjectMeta)
	}
}

// testOriginCloneDeletion: what a clone was made from is gone before its record is.
func testOriginCloneDeletion(t *testing.T, o *origins) {
	o.cluster.Behave(csitest.Behaviour{HoldCutDelete: true})
	clone, hasty, cut := o.spec(), o.hasty(), volume.CloneCut(o.child())
	clone.Parent = &volume.Parent{Volume: o.id}
	for range 50 {
		_, err := hasty.Create(t.Context(), o.child(), clone)
		wantLater(t, err)
		if s := o.object(t, cut); s != nil && s.DeletionTimestamp != nil {
			break
		}
	}
	for range 2 {
		wantLater(t, hasty.Delete(t.Context(), o.child()))
	}
	o.cluster.Behave(csitest.Behaviour{})
	until(t, "delete", func() error { return o.svc.Delete(t.Context(), o.child()) })
	if s := o.object(t, cut); s != nil {
		t.Errorf("left is %+v", s.ObjectMeta)
	}
}
