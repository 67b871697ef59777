package provision

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// drained asks for a child, and has the parent's node flush for as long as it is asked to.
func (f *fixture) drained(t *testing.T, s volume.Spec) error {
	t.Helper()
	_, err := f.svc.Create(t.Context(), f.child(), s)
	wantError(t, err, volume.ErrBusy)
	f.wantHold(t, volume.CloneCut(f.child()))
	for errors.Is(err, volume.ErrBusy) {
		f.flushes(t)
		_, err = f.svc.Create(t.Context(), f.child(), s)
	}
	return err
}

// wantNothing fails if anything is left of the child, or of a hold for it.
func (f *fixture) wantNothing(t *testing.T) {
	t.Helper()
	f.wantNoRecord(t)
	f.wantHold(t, "")
	if c, err := f.storage.Find(t.Context(), volume.CloneCut(f.child())); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("left is %+v, %v", c, err)
	}
}

// testCloneRefused: what can be known before is refused before the parent is held; what the
// storage refuses behind that leaves nothing, and is refused without a hold for a while.
func testCloneRefused(t *testing.T, _ *rest.Config, f *fixture) {
	now := time.Unix(0, 0)
	f.svc.now = func() time.Time { return now }
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	thick := ofVolume(f.id)
	thick.Provisioning = "thick"
	_, err := f.svc.Create(t.Context(), f.child(), thick)
	wantError(t, err, volume.ErrInvalid)
	f.wantNothing(t)
	for _, kind := range []error{volume.ErrInvalid, volume.ErrNoSpace, volume.ErrOutOfRange} {
		f.mark(t, true)
		f.fail = func(step string, done bool) error {
			if step == "create" && !done {
				return kind
			}
			return nil
		}
		wantError(t, f.drained(t, ofVolume(f.id)), kind)
		f.wantNothing(t)
		_, err = f.svc.Create(t.Context(), f.child(), ofVolume(f.id))
		if wantError(t, err, kind); !strings.Contains(err.Error(), "it is tried again in 10m") {
			t.Errorf("it is not said when it is tried again: %v", err)
		}
		f.wantNothing(t)
		now = now.Add(refusalPause)
	}
	f.fail = nil
	f.mark(t, true)
	if err := f.drained(t, ofVolume(f.id)); err != nil {
		t.Errorf("the storage has room again: %v", err)
	}
}

// testCloneTooLarge: what the cut turns out to be is known only behind the drain.
func testCloneTooLarge(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	if _, err := f.storage.Expand(t.Context(), f.id, 2*gib); err != nil {
		t.Fatal(err)
	}
	few := ofVolume(f.id)
	few.LimitBytes = 2*gib - 1
	wantError(t, f.drained(t, few), volume.ErrOutOfRange)
	f.mark(t, true)
	_, err := f.svc.Create(t.Context(), f.child(), few)
	wantError(t, err, volume.ErrOutOfRange)
	f.wantNothing(t)
	if err := f.svc.Delete(t.Context(), f.child()); err != nil {
		t.Fatal(err)
	}
	_, err = f.svc.Create(t.Context(), f.child(), few) // asked for by a later one of the name
	wantError(t, err, volume.ErrBusy)
}

// testRestoreRefusedLater: a volume that the storage refuses when its snapshot is ready at last
// leaves no record; one that may be there keeps it.
func testRestoreRefusedLater(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if _, err := f.snapshot(t, "later"); err != nil {
		t.Fatal(err)
	}
	ready := false
	f.storage.Progress = func(c *backend.Cut) { c.Ready = ready }
	thick := ofSnapshot("later")
	thick.Provisioning = "thick"
	_, err := f.svc.Create(t.Context(), f.child(), thick)
	wantError(t, err, volume.ErrBusy)
	ready = true
	_, err = f.svc.Create(t.Context(), f.child(), thick)
	wantError(t, err, volume.ErrInvalid)
	f.wantNoRecord(t)
	f.failOnce("create", true)
	_, err = f.svc.Create(t.Context(), f.child(), ofSnapshot("later"))
	wantError(t, err, errInjected)
	f.fail = func(step string, done bool) error {
		if step == "create" && !done {
			return volume.ErrInvalid
		}
		return nil
	}
	_, err = f.svc.Create(t.Context(), f.child(), ofSnapshot("later"))
	wantError(t, err, volume.ErrInvalid)
	if _, err := f.svc.Get(t.Context(), f.child()); err != nil {
		t.Errorf("the record of a volume that is there: %v", err)
	}
}

// testSnapshotUnanswered: that a snapshot of a volume without a record is not there is said once
// the storage has said so.
func testSnapshotUnanswered(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if _, err := f.snapshot(t, "unanswered"); err != nil {
		t.Fatal(err)
	}
	if err := f.svc.Delete(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.fail = func(step string, _ bool) error {
		if step == "find" {
			return volume.ErrUnavailable
		}
		return nil
	}
	if _, err := f.snapshot(t, "unanswered"); !errors.Is(err, volume.ErrUnavailable) || errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the storage does not answer: %v", err)
	}
	f.fail = nil
	if _, err := f.snapshot(t, "unanswered"); err != nil {
		t.Error(err)
	}
	_, err := f.snapshot(t, "none")
	wantError(t, err, volume.ErrNotFound)
}

// testOriginCloneRefused: a class that cannot make a clone is refused before the parent is held.
func testOriginCloneRefused(t *testing.T, o *origins) {
	foreign := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: o.cluster.Class("foreign")}, Provisioner: "foreign.example.org"}
	if err := o.client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	makeNode(t, o.client, o.cluster.Node("a"), corev1.ConditionTrue)
	o.publishTo(t, "a", 1)
	o.mark(t, true)
	clone := o.spec()
	clone.Mode, clone.AcceptNodeLoss = volume.ModeWritethrough, false // asks for the class itself
	clone.Parent = &volume.Parent{Volume: o.id}
	for _, class := range []string{"foreign", "none", "late"} {
		clone.Origin = &volume.Origin{StorageClass: o.cluster.Class(class)}
		_, err := o.svc.Create(t.Context(), o.child(), clone)
		wantError(t, err, volume.ErrInvalid)
		o.wantNoRecord(t)
		if v := o.record(t); v.Hold != nil || v.FlushRequest != "" {
			t.Errorf("class %s: the parent was held for what is refused: %+v", class, v.Hold)
		}
	}
}

// testOriginFails: a driver that cannot cut has the volume held for as long as a hold lasts, and
// is then left alone for as long.
func testOriginFails(t *testing.T, o *origins) {
	now := time.Now()
	o.svc.now = func() time.Time { return now }
	o.cluster.Behave(csitest.Behaviour{CutError: "rpc error: code = Internal desc = the array is on fire"})
	ask := func() error {
		_, err := o.svc.CreateSnapshot(t.Context(), "fails", o.id, volume.SnapshotClass{})
		return err
	}
	wantError(t, ask(), volume.ErrUnavailable)
	o.wantHold(t, "fails")
	wantError(t, ask(), volume.ErrUnavailable)
	now = now.Add(holdExpiry + time.Second)
	if err := o.svc.ExpireHold(t.Context(), o.id); err != nil {
		t.Fatal(err)
	}
	o.wantHold(t, "")
	err := ask()
	if wantError(t, err, volume.ErrUnavailable); !strings.Contains(err.Error(), "the array is on fire") {
		t.Errorf("it is not said why: %v", err)
	}
	o.wantHold(t, "")
	now = now.Add(refusalPause)
	o.cluster.Behave(csitest.Behaviour{})
	for range 100 {
		if err = ask(); !errors.Is(err, volume.ErrUnavailable) { // of before
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil && !errors.Is(err, volume.ErrBusy) {
		t.Error(err)
	}
}
