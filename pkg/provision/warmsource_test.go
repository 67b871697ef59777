package provision

import (
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestWarmSource is "When a retained cache may be used" of states.md: volume of node-a,
// generation 3.
func TestWarmSource(t *testing.T) {
	retainedCache := func(node string, generation int64) v1alpha1.RetainedCache {
		return v1alpha1.RetainedCache{NodeName: node, Generation: generation}
	}
	ofA := v1alpha1.WarmSource{NodeName: nodeA, Generation: 3}
	tests := map[string]struct {
		node   string
		claim  claim
		old    bool
		change func(*v1alpha1.CachedVolume)
		want   v1alpha1.WarmSource
	}{
		"a move":            {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, want: ofA},
		"asked for":         {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) { o.Spec.WarmStart.From = v1alpha1.WarmStartPeer }, want: ofA},
		"from origin":       {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) { o.Spec.WarmStart.From = v1alpha1.WarmStartOrigin }},
		"off":               {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) { o.Spec.WarmStart.From = v1alpha1.WarmStartOff }},
		"uncached":          {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) { o.Spec.CacheMode = v1alpha1.CacheModeNone }},
		"no retained cache": {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) { o.Status.RetainedCaches = nil }},
		"old retained cache": {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) {
			o.Status.RetainedCaches = []v1alpha1.RetainedCache{retainedCache(nodeA, 2), retainedCache("node-c", 1)}
		}},
		"one of many": {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) {
			o.Status.RetainedCaches = []v1alpha1.RetainedCache{retainedCache(nodeB, 2), retainedCache("node-c", 1), retainedCache(nodeA, 3)}
		}, want: ofA},
		"never whole": {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) {
			o.Status.RetainedCaches[0].Content = v1alpha1.RetainedCachePartial
		}},
		"claimed by a node that was not the owner": {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) {
			o.Status.RetainedCaches = []v1alpha1.RetainedCache{retainedCache("node-c", 3)}
		}},
		"claimed by the new owner": {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) {
			o.Status.RetainedCaches = []v1alpha1.RetainedCache{retainedCache(nodeB, 3)}
		}},
		"the generation jumps":           {node: nodeB, claim: claim{Generation: 9, NewOwner: true}},
		"the generation jumps for owner": {node: nodeA, claim: claim{Generation: 9, NewOwner: true}},
		"the record was forgotten":       {node: nodeA, claim: claim{Generation: 4, NewOwner: true}},
		"a new volume": {node: nodeB, claim: claim{Generation: 1, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) {
			o.Status = v1alpha1.CachedVolumeStatus{}
		}},
		"an older source goes": {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, change: func(o *v1alpha1.CachedVolume) {
			o.Status.WarmSource, o.Status.RetainedCaches = v1alpha1.WarmSource{NodeName: "node-c", Generation: 2}, nil
		}},
		"the owner again, not started": {node: nodeA, claim: claim{Generation: 3}, change: func(o *v1alpha1.CachedVolume) {
			o.Status.WarmSource = v1alpha1.WarmSource{NodeName: "node-c", Generation: 2}
		}, want: v1alpha1.WarmSource{NodeName: "node-c", Generation: 2}},
		"the owner again, a record of before a takeover": {node: nodeA, claim: claim{Generation: 3}, old: true, change: func(o *v1alpha1.CachedVolume) {
			o.Status.WarmSource = v1alpha1.WarmSource{NodeName: "node-c", Generation: 2}
		}},
		"a move, a record of before a takeover": {node: nodeB, claim: claim{Generation: 4, NewOwner: true}, old: true},
		"the owner again, started":              {node: nodeA, claim: claim{Generation: 3}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			obj := &v1alpha1.CachedVolume{
				Spec: v1alpha1.CachedVolumeSpec{CacheMode: v1alpha1.CacheModeWritethrough},
				Status: v1alpha1.CachedVolumeStatus{
					OwnerNode: nodeA, Generation: ptr.To[int64](3), Publication: v1alpha1.PublicationReleased,
					RetainedCaches: []v1alpha1.RetainedCache{retainedCache(nodeA, 3)},
				},
			}
			if tc.change != nil {
				tc.change(obj)
			}
			if got := warmSource(obj, tc.node, tc.claim, tc.old); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// testWarmSource moves a volume: the source comes with the new owner, in the same
// write, and whatever fails.
func testWarmSource(t *testing.T, _ *rest.Config, f *fixture) {
	rec := records.New(f.client, f.events, time.Now)
	want := func(source *volume.WarmSource) {
		t.Helper()
		got := f.record(t).WarmSource
		if (got == nil) != (source == nil) || got != nil && *got != *source {
			t.Fatalf("warm source %+v, want %+v", got, source)
		}
	}
	f.create(t)
	f.publish(t, nodeA, 1)
	want(nil)
	if err := rec.SetRetainedCache(t.Context(), f.id, nodeA, &volume.RetainedCache{Generation: 1, SizeBytes: gib}); err != nil {
		t.Fatal(err)
	}
	f.unpublish(t, nodeA)
	for _, done := range []bool{false, true} {
		f.failOnce("record", done)
		if _, err := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap); err == nil || f.pending() {
			t.Fatalf("done %v: got %v, want a failure", done, err)
		}
	}
	f.publish(t, nodeB, 2)
	ofA := &volume.WarmSource{Node: nodeA, Generation: 1}
	want(ofA)
	f.unpublish(t, nodeB)
	f.publish(t, nodeB, 2)
	want(ofA)

	if err := rec.TakeWarmSource(t.Context(), f.id, f.record(t).Fence); err != nil {
		t.Fatal(err)
	}
	f.publish(t, nodeB, 2)
	want(nil)
	f.unpublish(t, nodeB)
	f.publish(t, nodeA, 3) // its own retained cache is of generation 1 by now
	want(nil)
}

// testWarmSourceRestored: the record is of a moment before the owner withdrew its source.
func testWarmSourceRestored(t *testing.T, _ *rest.Config, f *fixture) {
	rec := records.New(f.client, f.events, time.Now)
	s := spec()
	s.Mode, s.AcceptNodeLoss = volume.ModeWritethrough, false
	if _, err := f.svc.Create(t.Context(), f.id, s); err != nil {
		t.Fatal(err)
	}
	f.publish(t, nodeA, 1)
	if err := rec.SetRetainedCache(t.Context(), f.id, nodeA, &volume.RetainedCache{Generation: 1, SizeBytes: gib}); err != nil {
		t.Fatal(err)
	}
	f.unpublish(t, nodeA)
	f.publish(t, nodeB, 2)
	published := f.status(t)
	if published.WarmSource.NodeName != nodeA {
		t.Fatalf("warm source %+v", published.WarmSource)
	}
	f.taken = "first"
	for name, act := range map[string]func(){
		"publish to the owner": func() { f.publish(t, nodeB, 2) },
		"unpublish":            func() { f.unpublish(t, nodeB) },
	} {
		f.admitUnknown(t, iqnB, 2)
		f.setBack(t, published)
		act()
		if got := f.status(t).WarmSource; got != (v1alpha1.WarmSource{}) {
			t.Errorf("after %s of a record out of a backup the warm source is %+v", name, got)
		}
	}
	// Of a writeback volume the owner counts as one that may have to flush.
	f.admitUnknown(t, iqnB, 2)
	f.setBack(t, published)
	err := records.UpdateObject(t.Context(), f.client, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.CacheMode, obj.Spec.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.unpublish(t, nodeB)
	if got := f.status(t); got.WarmSource != (v1alpha1.WarmSource{}) || got.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
		t.Errorf("restored with warm source %+v, %s", got.WarmSource, got.DirtyState)
	}
}
