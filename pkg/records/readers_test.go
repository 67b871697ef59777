package records_test

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestReaders: a reader has an ownership of its own name. It marks nothing, and what has one place in the
// record it leaves alone.
func TestReaders(t *testing.T) {
	f := newFixture(t, apiserver.Start(t), "readers")
	f.own(t, volume.Readers, 2, v1alpha1.PublicationPublished)
	obj := f.load(t)
	must(t, records.WriteStatus(t.Context(), f.api, obj, func(s *v1alpha1.CachedVolumeStatus) { s.Readers = []string{nodeA} }))
	fence := func(node string) volume.Fence { return volume.Fence{UID: string(obj.UID), Generation: 2, Node: node} }
	before := f.load(t).Status
	held, err := f.rec.PendActivation(t.Context(), f.id, fence(nodeA), volume.Activation{ID: "one", Generation: 2, Count: 1})
	if err != nil || held {
		t.Errorf("pend of a reader: %v, %v", held, err)
	}
	must(t, f.rec.SetActivation(t.Context(), f.id, fence(nodeA), volume.Activation{}))
	_, err = f.rec.PendActivation(t.Context(), f.id, fence("node-b"), volume.Activation{ID: "two", Generation: 2, Count: 1})
	wantError(t, err, volume.ErrFenced)
	wantError(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, fence(nodeA)), volume.ErrFenced)
	must(t, f.rec.Report(t.Context(), f.id, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive}))
	must(t, f.rec.ReportApplied(t.Context(), f.id, nodeA, volume.AppliedReport{State: volume.AppliedDone, Reason: v1alpha1.ReasonApplied}))
	must(t, f.rec.ReportCache(t.Context(), f.id, nodeA, &v1alpha1.CacheStatus{Mode: v1alpha1.CacheModeWritethrough}))
	now := f.load(t).Status
	if now.PendingActivation != before.PendingActivation || now.Activation != before.Activation || len(now.Conditions) != len(before.Conditions) || now.Cache.Mode != before.Cache.Mode || now.DirtyState != before.DirtyState {
		t.Errorf("a reader has changed the record: %+v, was %+v", now, before)
	}
	v, err := f.rec.Get(t.Context(), f.id)
	if err != nil || v.For(nodeA).Fence != fence(nodeA) || !v.For(nodeA).Published || v.For("node-b").Published {
		t.Errorf("a reader sees %+v, %v", v.For(nodeA), err)
	}
}
