package provision

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// until repeats a call as a sidecar does.
func until(t *testing.T, what string, call func() error) {
	t.Helper()
	var err error
	for range 50 {
		if err = call(); !errors.Is(err, volume.ErrBusy) {
			break
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestOriginSnapshots: volumes over those of another driver are cut by that driver, and made of
// what it has cut.
func TestOriginSnapshots(t *testing.T) {
	cfg := apiserver.Start(t)
	o := newOrigins(t, cfg, "p-snapshots")
	until(t, "create", func() error { _, err := o.svc.Create(t.Context(), o.id, o.spec()); return err })
	_, err := o.svc.CreateSnapshot(t.Context(), "early", o.id, "")
	wantError(t, err, volume.ErrInvalid) // the API is not installed
	o.wantHold(t, "")
	csitest.InstallSnapshots(t, cfg)
	o.cluster.StartSnapshots(t)
	o.cluster.Write(t, string(o.id), "monday")
	var s volume.Snapshot
	until(t, "snapshot", func() (err error) {
		s, err = o.svc.CreateSnapshot(t.Context(), "monday", o.id, o.cluster.SnapshotClass(""))
		return err
	})
	if s.Handle.String() != "csi/monday" || s.Volume != o.id || s.SizeBytes != gib {
		t.Errorf("snapshot %+v", s)
	}
	o.wantHold(t, "")
	o.cluster.Write(t, string(o.id), "tuesday")
	_, err = o.svc.CreateSnapshot(t.Context(), "foreign", o.id, o.cluster.SnapshotClass("foreign"))
	wantError(t, err, volume.ErrInvalid)
	o.wantHold(t, "")
	restored, clone := o.spec(), o.spec()
	restored.Parent, clone.Parent = &volume.Parent{Snapshot: &s.Handle}, &volume.Parent{Volume: o.id}
	for id, tc := range map[volume.ID]struct {
		spec volume.Spec
		want string
	}{"p-snapshots-restored": {restored, "monday"}, "p-snapshots-clone": {clone, "tuesday"}} {
		for range 2 {
			until(t, string(id), func() error { _, err := o.svc.Create(t.Context(), id, tc.spec); return err })
		}
		if got := o.cluster.Read(t, string(id)); got != tc.want {
			t.Errorf("%s has %q, want %q", id, got, tc.want)
		}
	}
	served := spec()
	served.Parent = restored.Parent
	_, err = o.svc.Create(t.Context(), "p-snapshots-served", served)
	wantError(t, err, volume.ErrInvalid)
	if all, err := o.svc.Snapshots(t.Context()); err != nil || len(all) != 1 || all[0].Handle != s.Handle {
		t.Errorf("snapshots %+v, %v", all, err)
	}
	until(t, "delete the snapshot", func() error { return o.svc.DeleteSnapshot(t.Context(), s.Handle) })
	for _, id := range []volume.ID{o.id, "p-snapshots-restored", "p-snapshots-clone"} {
		until(t, "delete "+string(id), func() error { return o.svc.Delete(t.Context(), id) })
	}
	if all, err := o.svc.Snapshots(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("left are %+v, %v", all, err)
	}
}
