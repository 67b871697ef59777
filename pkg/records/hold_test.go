package records_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// hold has the volume held, or lets it go with an empty token.
func (f *fixture) hold(t *testing.T, token string) {
	t.Helper()
	must(t, records.UpdateObject(t.Context(), f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.Hold = nil
		if token != "" {
			obj.Spec.Hold = &v1alpha1.VolumeHold{Name: "s", Token: token, Since: metav1.NewTime(start)}
		}
		return nil
	}))
}

func testMarkHeld(t *testing.T, f *fixture) {
	f.hold(t, "t")
	wantError(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence), volume.ErrBusy)
	f.wantDirty(t, false)
	got, err := f.rec.Get(t.Context(), f.id)
	must(t, err)
	if want := (volume.Hold{Name: "s", Token: "t", Since: start}); got.Hold == nil || !got.Hold.Since.Equal(want.Since) || got.Hold.Name != want.Name || got.Hold.Token != want.Token {
		t.Errorf("hold %+v, want %+v", got.Hold, want)
	}
	f.hold(t, "")
	f.before = func() { // between the look and the write
		f.before = nil
		f.hold(t, "u")
	}
	wantError(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence), volume.ErrBusy)
	f.wantDirty(t, false)
	f.hold(t, "")
	must(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence))
	f.hold(t, "v")
	must(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence)) // it is marked
	must(t, f.rec.MarkClean(t.Context(), f.id, f.fence))
	wantError(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence), volume.ErrBusy)
}

func testEndHold(t *testing.T, f *fixture) {
	of := func(token string) func(volume.Hold) bool { return func(h volume.Hold) bool { return h.Token == token } }
	f.hold(t, "t")
	must(t, records.EndHold(t.Context(), f.api, f.id, of("other")))
	if f.load(t).Spec.Hold == nil {
		t.Error("another hold was ended")
	}
	for range 2 {
		must(t, records.EndHold(t.Context(), f.api, f.id, of("t")))
	}
	if f.load(t).Spec.Hold != nil {
		t.Error("the hold is still there")
	}
	must(t, records.EndHold(t.Context(), f.api, "none", of("t")))
}

// TestParent: what a record says of a parent is read as it was written.
func TestParent(t *testing.T) {
	snapshot := &volume.Parent{Snapshot: &volume.SnapshotHandle{Backend: "iscsi", ID: "s"}}
	all := map[string]*volume.Parent{
		"": nil, "a snapshot": snapshot, "a volume": {Volume: "pvc-1"},
		"another snapshot": {Snapshot: &volume.SnapshotHandle{Backend: "csi", ID: "s"}}, "another volume": {Volume: "pvc-2"},
	}
	spec := volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, CapacityBytes: 1 << 30}
	for name, p := range all {
		spec.Parent = p
		back, err := records.Spec(records.NewObject("v", spec))
		must(t, err)
		for other, q := range all {
			asked := spec
			asked.Parent = q
			want := ""
			if name != other {
				want = "parent"
			}
			if got := records.Difference(back, asked); got != want {
				t.Errorf("of %q, asked for %q: difference in %q, want %q", name, other, got, want)
			}
		}
	}
	bad := records.NewObject("v", spec)
	bad.Spec.Parent = &v1alpha1.VolumeParent{SnapshotHandle: "zfs/s"}
	_, err := records.Spec(bad)
	wantError(t, err, volume.ErrInvalid)
}
