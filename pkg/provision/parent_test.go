package provision

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

func ofSnapshot(id volume.SnapshotID) volume.Spec {
	s := spec()
	s.Parent = &volume.Parent{Snapshot: &volume.SnapshotHandle{Backend: "iscsi", ID: id}}
	return s
}

func ofVolume(id volume.ID) volume.Spec {
	s := spec()
	s.Parent = &volume.Parent{Volume: id}
	return s
}

func (f *fixture) child() volume.ID { return f.id + "-child" }

// wantNoRecord fails if there is a record of the child.
func (f *fixture) wantNoRecord(t *testing.T) {
	t.Helper()
	if _, err := f.svc.Get(t.Context(), f.child()); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the record of the child is there: %v", err)
	}
}

// testRestore: a volume begins as a snapshot, and as formatted as that was.
func testRestore(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	rec := records.New(f.client, f.events, time.Now)
	if err := rec.SetFormatted(t.Context(), f.id, f.record(t).Fence, volume.FormatDone); err != nil {
		t.Fatal(err)
	}
	f.unpublish(t, nodeA)
	if _, err := f.snapshot(t, "restore"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		v, err := f.svc.Create(t.Context(), f.child(), ofSnapshot("restore"))
		if err != nil || !v.Spec.Parent.Equal(ofSnapshot("restore").Parent) {
			t.Fatalf("%+v, %v", v.Spec, err)
		}
	}
	if got, _ := f.storage.Volume(f.child()); got.Request.From != "restore" {
		t.Errorf("made of %q", got.Request.From)
	}
	_, err := f.svc.Create(t.Context(), f.child(), spec())
	wantError(t, err, volume.ErrExists)
	if err := f.svc.DeleteSnapshot(t.Context(), *ofSnapshot("restore").Parent.Snapshot); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Create(t.Context(), f.child(), ofSnapshot("restore")); err != nil {
		t.Errorf("what was made is not found without its snapshot: %v", err)
	}
	if _, err := f.svc.Publish(t.Context(), f.child(), nodeB, nil, chap); err != nil {
		t.Fatal(err)
	}
	obj, err := records.Load(t.Context(), f.client, f.child())
	if err != nil || obj.Status.Filesystem != v1alpha1.FilesystemFormatted {
		t.Errorf("filesystem %q, %v", obj.Status.Filesystem, err)
	}
}

// testRestoreNever: a snapshot of a volume that nobody ever had is formatted by its first owner.
func testRestoreNever(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if _, err := f.snapshot(t, "never"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Create(t.Context(), f.child(), ofSnapshot("never")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Publish(t.Context(), f.child(), nodeB, nil, chap); err != nil {
		t.Fatal(err)
	}
	if v, err := f.svc.Get(t.Context(), f.child()); err != nil || v.Filesystem != volume.FormatNever {
		t.Errorf("%+v, %v", v.Filesystem, err)
	}
}

// testRestoreRefused: what can never be made leaves no record.
func testRestoreRefused(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if _, err := f.storage.Cut(t.Context(), "open-cut", f.id, backend.CutRequest{Hold: "h"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.snapshot(t, "whole"); err != nil {
		t.Fatal(err)
	}
	small := ofSnapshot("whole")
	small.CapacityBytes /= 2
	smallClone := ofVolume(f.id)
	smallClone.CapacityBytes /= 2
	elsewhere := ofSnapshot("whole")
	elsewhere.Parent.Snapshot.Backend = "csi"
	cut := ofSnapshot(volume.CloneCut("x"))
	for name, tc := range map[string]struct {
		spec volume.Spec
		want error
	}{
		"no snapshot":                  {ofSnapshot("none"), volume.ErrNotFound},
		"one that is not accepted":     {ofSnapshot("open-cut"), volume.ErrNotFound},
		"too small":                    {small, volume.ErrOutOfRange},
		"too small a clone":            {smallClone, volume.ErrOutOfRange},
		"no volume":                    {ofVolume("none"), volume.ErrNotFound},
		"of another backend":           {elsewhere, volume.ErrInvalid},
		"of itself":                    {ofVolume(f.child()), volume.ErrInvalid},
		"of what a clone is made from": {cut, volume.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.svc.Create(t.Context(), f.child(), tc.spec)
			wantError(t, err, tc.want)
			f.wantNoRecord(t)
		})
	}
	ready := false
	f.storage.Progress = func(c *backend.Cut) { c.Ready = ready }
	_, err := f.svc.Create(t.Context(), f.child(), ofSnapshot("whole"))
	wantError(t, err, volume.ErrBusy)
	ready = true
	if _, err := f.svc.Create(t.Context(), f.child(), ofSnapshot("whole")); err != nil {
		t.Fatal(err)
	}
}

// testClone: a volume is held and cut, the clone made, and nothing else left.
func testClone(t *testing.T, _ *rest.Config, f *fixture) {
	odd := spec()
	odd.CapacityBytes++ // the storage server makes it an extent larger
	if _, err := f.svc.Create(t.Context(), f.id, odd); err != nil {
		t.Fatal(err)
	}
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	want := ofVolume(f.id)
	want.CapacityBytes++
	_, err := f.svc.Create(t.Context(), f.child(), want)
	wantError(t, err, volume.ErrBusy)
	f.wantHold(t, volume.CloneCut(f.child()))
	f.flushes(t)
	for range 2 {
		if v, err := f.createChild(t, want); err != nil || v.Spec.CapacityBytes != gib+backendtest.Extent {
			t.Fatalf("%+v, %v", v.Spec, err)
		}
		f.wantHold(t, "")
		if all, err := f.storage.Cuts(t.Context()); err != nil || len(all) > 0 {
			t.Errorf("left are %+v, %v", all, err)
		}
	}
	if got, _ := f.storage.Volume(f.child()); got.Request.From != volume.CloneCut(f.child()) {
		t.Errorf("made of %q", got.Request.From)
	}
}

// testCloneHidden: what clones are made from is no snapshot.
func testCloneHidden(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.failOnce("create", false)
	_, err := f.svc.Create(t.Context(), f.child(), ofVolume(f.id))
	wantError(t, err, errInjected)
	cut := volume.CloneCut(f.child())
	if c, err := f.storage.Find(t.Context(), cut); err != nil || !c.Accepted {
		t.Fatalf("%+v, %v", c, err)
	}
	if all, err := f.svc.Snapshots(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("listed %+v, %v", all, err)
	}
	if err := f.svc.DeleteSnapshot(t.Context(), volume.SnapshotHandle{Backend: "iscsi", ID: cut}); err != nil {
		t.Error(err)
	}
	if _, err := f.storage.Find(t.Context(), cut); err != nil {
		t.Errorf("it was deleted as a snapshot: %v", err)
	}
	if err := f.svc.Delete(t.Context(), f.child()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.storage.Find(t.Context(), cut); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("it outlives what was to be made from it: %v", err)
	}
}

// testCloneKilled: the controller is killed behind each thing that it changes, and before the first;
// another process goes on, or deletes what there is.
func testCloneKilled(t *testing.T, cfg *rest.Config, _ *fixture) {
	for _, deleted := range []bool{false, true} {
		for n := 1; ; n++ {
			if redundant(n) {
				continue
			}
			f := newFixture(t, cfg, volume.ID(fmt.Sprintf("clone-killed-%t-%d", deleted, n)))
			f.create(t)
			f.publish(t, nodeA, 1)
			left := n
			f.fail = func(string, bool) error {
				if left--; left == 0 {
					return errInjected
				}
				return nil
			}
			err := errInjected
			for tries := 0; err != nil && tries < 20; tries++ {
				_, err = f.svc.Create(t.Context(), f.child(), ofVolume(f.id))
				switch {
				case errors.Is(err, errInjected) && deleted:
					f.restart()
					err = f.svc.Delete(t.Context(), f.child())
				case errors.Is(err, errInjected):
					f.restart()
				case errors.Is(err, volume.ErrBusy):
					keep := left
					left = 0
					f.flushes(t)
					left = keep
				}
			}
			f.fail = nil
			if err != nil {
				t.Fatalf("killed at step %d: it does not go on: %v", n, err)
			}
			f.wantHold(t, "")
			if all, err := f.storage.Cuts(t.Context()); err != nil || len(all) > 0 {
				t.Fatalf("killed at step %d: left are %+v, %v", n, all, err)
			}
			if _, made := f.storage.Volume(f.child()); made == (deleted && left <= 0) {
				t.Fatalf("killed at step %d: the clone is there: %t", n, made)
			}
			if left > 0 {
				t.Logf("killed at %d steps", n-1)
				break
			}
		}
	}
}

// testCloneHotSet: the first cache of a clone begins with what its parent reads most, and keeps
// what it has itself since.
func testCloneHotSet(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	sets, uid := records.NewHotSets(f.client), f.record(t).Fence.UID
	store := func(id volume.ID, uid, blocks string) {
		t.Helper()
		if err := sets.Store(t.Context(), id, uid, volume.HotSet{Blocks: []byte(blocks), Recorded: time.Unix(1, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	store(f.id, uid, "hot")
	if _, err := f.snapshot(t, "hot"); err != nil {
		t.Fatal(err)
	}
	for child, s := range map[volume.ID]volume.Spec{f.child(): ofVolume(f.id), f.child() + "-2": ofSnapshot("hot")} {
		want := "hot"
		for range 2 {
			v, err := f.svc.Create(t.Context(), child, s)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := sets.Load(t.Context(), child, v.Fence.UID); err != nil || string(got.Blocks) != want {
				t.Errorf("hot set of %s is %q, %v, want %q", child, got.Blocks, err, want)
			}
			want = "its own"
			store(child, v.Fence.UID, want)
		}
	}
}

// testRestoredHold: a record out of a backup that shows a hold is brought up to the owner that
// the storage server admits, hold or not.
func testRestoredHold(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	_, err := f.snapshot(t, "restored-hold")
	wantError(t, err, volume.ErrBusy)
	f.unpublish(t, nodeA)
	f.wantHold(t, "restored-hold")
	// The record is of before: node B has had the volume since.
	if _, err := f.storage.Export(t.Context(), f.id, backend.Grant{Initiator: iqnB, Credentials: *chap, Generation: 2}); err != nil {
		t.Fatal(err)
	}
	_, err = f.snapshot(t, "restored-hold")
	wantError(t, err, volume.ErrFenced)
	f.wantHold(t, "")
	if v := f.record(t); !v.PossiblyDirty || v.Fence.Node != nodeB {
		t.Errorf("the record shows %+v, dirty %t", v.Fence, v.PossiblyDirty)
	}
}
