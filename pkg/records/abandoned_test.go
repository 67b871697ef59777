package records_test

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// abandon writes a loss on record, as an administrator does.
func (f *fixture) abandon(t *testing.T, a v1alpha1.AbandonedWrites) {
	t.Helper()
	must(t, records.UpdateStatus(t.Context(), f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.Abandoned = append(obj.Status.Abandoned, a)
		return nil
	}))
}

func testAbandoned(t *testing.T, f *fixture) {
	ctx := t.Context()
	pod := &volume.Pod{Namespace: "shop", Name: "db-0", UID: "1"}
	wantUntold := func(want bool) {
		t.Helper()
		v, err := f.rec.Get(ctx, f.id)
		must(t, err)
		if v.Abandoned != want {
			t.Errorf("Abandoned is %v, want %v", v.Abandoned, want)
		}
	}
	must(t, f.rec.ReportAbandoned(ctx, f.id, f.fence, pod))
	f.wantEvents(t)
	wantUntold(false)

	f.abandon(t, v1alpha1.AbandonedWrites{
		Generation: 3, NodeName: "node-z", Consent: v1alpha1.LossConsent{Time: metav1.NewTime(start), By: "admin", Given: "--accept-data-loss"},
		LastSeen: v1alpha1.LastSeenWrites{ObservedTime: metav1.NewTime(start.Add(-time.Minute)), DirtyBytes: ptr.To(int64(4096)), SinceTime: metav1.NewTime(start.Add(-time.Hour))},
	})
	wantUntold(true)
	note := "Warning WritesAbandoned The writes that node node-z had not flushed (generation 3) were abandoned at 2026-11-01T12:00:00Z by admin (--accept-data-loss): " +
		"acknowledged writes may be lost, none of them from before 2026-11-01T11:00:00Z; 4096 bytes were unflushed when the node was last heard of, at 2026-11-01T11:59:00Z. " +
		"The volume goes on with what the storage server had: check the data before you trust them."

	// Before there is a pod, as often as the stage is repeated.
	for range 2 {
		must(t, f.rec.ReportAbandoned(ctx, f.id, f.fence, nil))
		f.wantEvents(t, note)
		wantUntold(true)
	}
	// Another owner does not speak for this one.
	stale := f.fence
	stale.Generation++
	wantError(t, f.rec.ReportAbandoned(ctx, f.id, stale, pod), volume.ErrFenced)
	f.wantEvents(t)

	// An event that is sent, and a note that is not written: the next pod is told again.
	f.before = func() { f.before = nil; f.own(t, "node-b", 2, v1alpha1.PublicationPublished) }
	wantError(t, f.rec.ReportAbandoned(ctx, f.id, f.fence, pod), volume.ErrFenced)
	f.wantEvents(t, note)
	wantUntold(true)
	f.own(t, nodeA, 1, v1alpha1.PublicationPublished)

	for range 2 {
		must(t, f.rec.ReportAbandoned(ctx, f.id, f.fence, pod))
	}
	f.wantEvents(t, note) // once
	wantUntold(false)
	told := f.load(t).Status.Abandoned[0].Told
	if !told.Time.Time.Equal(start) || told.Namespace != "shop" || told.Name != "db-0" {
		t.Errorf("told is %+v", told)
	}

	// A second loss is told by itself; without a pod's name on volume and claim.
	f.abandon(t, v1alpha1.AbandonedWrites{Generation: 5, NodeName: "node-y", Consent: v1alpha1.LossConsent{Time: metav1.NewTime(start)}})
	must(t, f.rec.ReportAbandoned(ctx, f.id, f.fence, &volume.Pod{}))
	f.wantEvents(t, "Warning WritesAbandoned The writes that node node-y had not flushed (generation 5) were abandoned at 2026-11-01T12:00:00Z: "+
		"acknowledged writes may be lost. The volume goes on with what the storage server had: check the data before you trust them.")
	wantUntold(false)

	// Of many readers each is told, and none writes down that it was.
	f.abandon(t, v1alpha1.AbandonedWrites{Generation: 6, NodeName: "node-x", Consent: v1alpha1.LossConsent{Time: metav1.NewTime(start)}})
	f.own(t, volume.Readers, 1, v1alpha1.PublicationPublished)
	for range 2 {
		must(t, f.rec.ReportAbandoned(ctx, f.id, f.fence, &volume.Pod{}))
		f.wantEvents(t, "Warning WritesAbandoned The writes that node node-x had not flushed (generation 6) were abandoned at 2026-11-01T12:00:00Z: "+
			"acknowledged writes may be lost. The volume goes on with what the storage server had: check the data before you trust them.")
	}
	wantUntold(true)
	if err := f.rec.ReportAbandoned(ctx, "no-such-volume", f.fence, pod); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}
