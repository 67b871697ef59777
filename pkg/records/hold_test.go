package records_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

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

// TestReportFreeze: the owner answers a request to freeze, nobody else does, and a long reason is
// cut to what the API server takes.
func TestReportFreeze(t *testing.T) {
	obj := &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "u"}}
	obj.Status.OwnerNode, obj.Status.Generation = "a", new(int64(1))
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(obj).WithObjects(obj).Build()
	rec := records.New(c, nil, time.Now)
	own := volume.Fence{UID: "u", Generation: 1, Node: "a"}
	want := volume.FreezeReport{Token: "t", State: volume.FreezeFailed, Message: "because"}
	if err := rec.ReportFreeze(t.Context(), "v", volume.Fence{UID: "u", Generation: 2, Node: "a"}, want); !errors.Is(err, volume.ErrFenced) {
		t.Errorf("an answer of another generation: %v", err)
	}
	if err := rec.ReportFreeze(t.Context(), "v", own, want); err != nil {
		t.Fatal(err)
	}
	if v, err := rec.Get(t.Context(), "v"); err != nil || v.Freeze != want {
		t.Errorf("got %+v, %v, want %+v", v.Freeze, err, want)
	}
	want.Message = strings.Repeat("x", 5000)
	if err := rec.ReportFreeze(t.Context(), "v", own, want); err != nil {
		t.Fatal(err)
	}
	if v, err := rec.Get(t.Context(), "v"); err != nil || len(v.Freeze.Message) > 1024 || v.Freeze.Message == "" {
		t.Errorf("a reason of %d bytes is stored, %v", len(v.Freeze.Message), err)
	}
}
