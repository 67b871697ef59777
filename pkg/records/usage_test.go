package records_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// Whatever mode the kernel has loaded.
	for _, mode := range []v1alpha1.CacheMode{v1alpha1.CacheModePassthrough, v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeNone} {
		must(t, f.rec.ReportCache(t.Context(), f.id, "node-b", &v1alpha1.CacheStatus{Mode: mode, ObservedTime: metav1.Unix(1, 0)}))
		if got := f.load(t).Status.Cache.Mode; got != mode {
			t.Errorf("mode %q was reported as %q", mode, got)
		}
	}
	// What is known of unflushed writes is not forgotten because the cache cannot be read.
	must(t, f.rec.ReportCache(t.Context(), f.id, "node-b", &v1alpha1.CacheStatus{
		Mode: v1alpha1.CacheModeWriteback, DirtyBytes: ptr.To(int64(4096)), DirtySinceTime: metav1.Unix(1, 0), ObservedTime: metav1.Unix(2, 0),
	}))
	fence := volume.Fence{UID: string(f.load(t).UID), Generation: 2, Node: "node-b"}
	must(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, fence))
	failed := &v1alpha1.CacheStatus{Mode: v1alpha1.CacheModeWriteback, Health: v1alpha1.CacheFailed, ObservedTime: metav1.Unix(9, 0)}
	for _, st := range []*v1alpha1.CacheStatus{nil, failed} {
		must(t, f.rec.ReportCache(t.Context(), f.id, "node-b", st))
		got := f.load(t).Status.Cache
		if got.DirtyBytes == nil || *got.DirtyBytes != 4096 || got.Dirty != "4Ki" || got.DirtySinceTime.Unix() != 1 || got.ObservedTime.Unix() != 2 || st != nil && got.Health != st.Health {
			t.Errorf("after a report of %+v the cache is %+v", st, got)
		}
	}
	must(t, f.rec.MarkClean(t.Context(), f.id, fence))
	if got := f.load(t).Status.Cache; *got.DirtyBytes != 0 || !got.DirtySinceTime.IsZero() {
		t.Errorf("a volume that was flushed has %d dirty bytes since %s", *got.DirtyBytes, got.DirtySinceTime)
	}
	must(t, f.rec.ReportCache(t.Context(), f.id, "node-b", failed))
	if got := f.load(t).Status.Cache; got.DirtyBytes != nil {
		t.Errorf("a clean volume has %d bytes", *got.DirtyBytes)
	}
	must(t, f.rec.ReportCache(t.Context(), "no-such-volume", nodeA, nil))
	wantError(t, f.rec.ReportCache(t.Context(), "no-such-volume", nodeA, st), volume.ErrNotFound)
}
