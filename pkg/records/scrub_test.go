package records_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testScrub: a finding is an event and a condition at once, the end has the figures, and a scrub that
// has not seen everything takes no finding back.
func testScrub(t *testing.T, f *fixture) {
	want := func(what string, status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		c := meta.FindStatusCondition(f.load(t).Status.Conditions, v1alpha1.ConditionCacheIntact)
		if c == nil || c.Status != status || c.Reason != reason || c.Message != message {
			t.Errorf("%s: %+v", what, c)
		}
	}
	report := func(r volume.ScrubReport) {
		t.Helper()
		must(t, f.rec.ReportScrub(t.Context(), f.id, f.fence, r))
	}
	report(volume.ScrubReport{Done: true})
	if c := f.load(t).Status.Conditions; len(c) > 0 {
		t.Errorf("an empty cache: %+v", c)
	}
	report(volume.ScrubReport{Done: true, CheckedBytes: 1 << 30})
	want("intact", metav1.ConditionTrue, v1alpha1.ReasonIntact, "node node-a: 1Gi of the cache are what the storage server has")
	f.wantEvents(t)

	report(volume.ScrubReport{Request: "r", CheckedBytes: 1 << 20, Corrupted: 1, Message: "it is wrong"})
	want("a finding", metav1.ConditionFalse, v1alpha1.ReasonCacheCorrupted, "node node-a: it is wrong")
	f.wantEvents(t, "Warning CacheCorrupted node node-a: it is wrong")
	if s := f.load(t).Status.Scrub; s.Request != "" {
		t.Errorf("the request is done before its end: %+v", s)
	}
	report(volume.ScrubReport{Request: "r", Done: true, CheckedBytes: 1 << 30, Corrupted: 2, Renewed: 3, Unjudged: 1})
	want("the end", metav1.ConditionFalse, v1alpha1.ReasonCacheCorrupted, "node node-a: of 1Gi of the cache, corrupted chunks: 2. The cache has there what the storage server has")
	f.wantEvents(t)
	s := f.load(t).Status.Scrub
	if s.Request != "r" || s.NodeName != nodeA || *s.CheckedBytes != 1<<30 || *s.CorruptedChunks != 2 || *s.UnjudgedPieces != 1 || !s.CompletionTime.Time.Equal(start) {
		t.Errorf("%+v", s)
	}

	report(volume.ScrubReport{Done: true, CheckedBytes: 1 << 30, Unjudged: 1})
	want("not all of it", metav1.ConditionFalse, v1alpha1.ReasonCacheCorrupted, "node node-a: of 1Gi of the cache, corrupted chunks: 2. The cache has there what the storage server has")
	if s := f.load(t).Status.Scrub; s.Request != "r" {
		t.Errorf("a scrub that nobody asked for: %+v", s)
	}
	report(volume.ScrubReport{Done: true, CheckedBytes: 1 << 30, Corrupted: 2, Untouched: true})
	want("of a writeback cache", metav1.ConditionFalse, v1alpha1.ReasonCacheCorrupted, "node node-a: of 1Gi of the cache, corrupted chunks: 2. Nothing was replaced, because the SSD may have the only right copy: check and save the application's data, then kubectl nearflash drop gives the cache up")
	report(volume.ScrubReport{NotKept: true, Message: "it keeps nothing"})
	want("not kept", metav1.ConditionFalse, v1alpha1.ReasonSSDNotKeeping, "node node-a: it keeps nothing")
	f.wantEvents(t, "Warning SSDNotKeeping node node-a: it keeps nothing")

	f.own(t, "node-b", 2, v1alpha1.PublicationPublished)
	wantError(t, f.rec.ReportScrub(t.Context(), f.id, f.fence, volume.ScrubReport{Done: true}), volume.ErrFenced)
}
