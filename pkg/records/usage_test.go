package records_test

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestReportCache: only the owner reports, and nobody clears what another node
// reported.
func TestReportCache(t *testing.T) {
	f := newFixture(t, apiserver.Start(t), "report-cache")
	st := &v1alpha1.CacheStatus{
		Mode: v1alpha1.CacheModeWriteback, Health: v1alpha1.CacheHealthy, SizeBytes: ptr.To(int64(1 << 30)), DirtyBytes: ptr.To(int64(0)),
		HitRate: v1alpha1.HitRate{ReadPercent: ptr.To(int32(97))},
	}
	want := func(mode v1alpha1.CacheMode) {
		t.Helper()
		if got := f.load(t).Status.Cache; got.Mode != mode || mode != "" && *got.HitRate.ReadPercent != 97 {
			t.Errorf("status.cache is %+v, want mode %q", got, mode)
		}
	}
	for range 2 {
		must(t, f.rec.ReportCache(t.Context(), f.id, nodeA, st))
		want(v1alpha1.CacheModeWriteback)
	}
	if f.writes != 1 {
		t.Errorf("%d writes, want 1: nothing is written that is there already", f.writes)
	}
	f.own(t, "node-b", 2, v1alpha1.PublicationPublished)
	wantError(t, f.rec.ReportCache(t.Context(), f.id, nodeA, st), volume.ErrFenced)
	must(t, f.rec.ReportCache(t.Context(), f.id, nodeA, nil))
	want(v1alpha1.CacheModeWriteback)
	for range 2 {
		must(t, f.rec.ReportCache(t.Context(), f.id, "node-b", nil))
		want("")
	}
	must(t, f.rec.ReportCache(t.Context(), "no-such-volume", nodeA, nil))
	wantError(t, f.rec.ReportCache(t.Context(), "no-such-volume", nodeA, st), volume.ErrNotFound)
}
