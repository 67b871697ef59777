package provision

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testHoldExpires: a hold ends when nobody asks any more, when what is asked for is not drained
// and does not come about, and with its snapshot.
func testHoldExpires(t *testing.T, _ *rest.Config, f *fixture) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	f.svc.now = func() time.Time { return now }
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	_, err := f.snapshot(t, "expires")
	wantError(t, err, volume.ErrBusy)
	first := f.wantHold(t, "expires")
	now = now.Add(9 * time.Minute)
	_, err = f.snapshot(t, "expires") // asked for again
	wantError(t, err, volume.ErrBusy)
	now = now.Add(9 * time.Minute)
	if err := f.svc.ExpireHold(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	if again := f.wantHold(t, "expires"); again != first {
		t.Errorf("hold %q, want %q", again, first)
	}
	now = now.Add(time.Minute)
	for range 2 {
		if err := f.svc.ExpireHold(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
		f.wantHold(t, "")
	}
	_, err = f.snapshot(t, "expires")
	wantError(t, err, volume.ErrBusy)
	f.wantHold(t, "expires")
	f.mark(t, false)
	for range 2 { // the node has nothing to drain, and does not answer
		now = now.Add(5 * time.Minute)
		_, err = f.snapshot(t, "expires")
		wantError(t, err, volume.ErrBusy)
	}
	if err := f.svc.ExpireHold(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantHold(t, "")
	_, err = f.snapshot(t, "expires")
	wantError(t, err, volume.ErrBusy)
	h := volume.SnapshotHandle{Backend: "iscsi", ID: "expires"}
	if err := f.svc.DeleteSnapshot(t.Context(), h); err != nil { // there is no cut yet
		t.Fatal(err)
	}
	f.wantHold(t, "")
	if err := f.svc.ExpireHold(t.Context(), "none"); err != nil {
		t.Error(err)
	}
}

// testSweepCuts: what was cut for nobody goes, and nothing that was accepted, or may be.
func testSweepCuts(t *testing.T, _ *rest.Config, f *fixture) {
	now := time.Unix(0, 0)
	f.svc.now = func() time.Time { return now }
	f.create(t)
	leave := func(id volume.SnapshotID, token string) {
		t.Helper()
		if _, err := f.storage.Cut(t.Context(), id, f.id, backend.CutRequest{Hold: token}); err != nil {
			t.Fatal(err)
		}
	}
	leave("sweep-over", "over")
	leave("sweep-held", "held")
	leave("sweep-accepted", "over")
	leave("sweep-late", "over")
	if err := f.storage.Accept(t.Context(), "sweep-accepted", "over"); err != nil {
		t.Fatal(err)
	}
	err := records.UpdateObject(t.Context(), f.client, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.Hold = &v1alpha1.VolumeHold{Name: "sweep-held", Token: "held", Since: metav1.NewTime(now.Add(time.Hour))}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sweep := func(locked bool, want ...volume.SnapshotID) {
		t.Helper()
		err := f.svc.SweepCuts(t.Context(), func(string) (func(), bool) { return func() {}, !locked })
		if err != nil {
			t.Fatal(err)
		}
		all, err := f.storage.Cuts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var left []volume.SnapshotID
		for _, c := range all {
			left = append(left, c.ID)
		}
		if !slices.Equal(left, want) {
			t.Errorf("left are %q, want %q", left, want)
		}
	}
	all := []volume.SnapshotID{"sweep-accepted", "sweep-held", "sweep-late", "sweep-over"}
	now = now.Add(9 * time.Minute)
	sweep(false, all...)
	now = now.Add(time.Hour)
	sweep(true, all...)
	f.read = func() { // between the look at all and that at one
		f.read = nil
		if err := f.storage.Accept(t.Context(), "sweep-late", "over"); err != nil {
			t.Error(err)
		}
	}
	sweep(false, "sweep-accepted", "sweep-held", "sweep-late")
}
