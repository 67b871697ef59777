package records_test

import (
	"bytes"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testWarmSource: only the owner of the written generation withdraws the source, and
// it learns of a newer owner before it has activated anything.
func testWarmSource(t *testing.T, f *fixture) {
	give := func() {
		t.Helper()
		must(t, records.UpdateStatus(t.Context(), f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
			obj.Status.WarmSource = v1alpha1.WarmSource{NodeName: "node-z", Generation: 7}
			return nil
		}))
	}
	has := func(want bool) {
		t.Helper()
		v, err := f.rec.Get(t.Context(), f.id)
		must(t, err)
		if got := v.WarmSource; (got != nil) != want || got != nil && *got != (volume.WarmSource{Node: "node-z", Generation: 7}) {
			t.Fatalf("warm source %+v, want one: %v", got, want)
		}
	}
	must(t, f.rec.TakeWarmSource(t.Context(), f.id, f.fence))
	if f.writes != 0 {
		t.Errorf("%d writes, want none: there was nothing to withdraw", f.writes)
	}
	give()
	has(true)
	for name, fence := range map[string]volume.Fence{
		"other node":       {UID: f.fence.UID, Generation: 1, Node: "node-b"},
		"older generation": {UID: f.fence.UID, Generation: 0, Node: nodeA},
		"other volume":     {UID: "another", Generation: 1, Node: nodeA},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, f.rec.TakeWarmSource(t.Context(), f.id, fence), volume.ErrFenced)
			has(true)
		})
	}
	for range 2 {
		must(t, f.rec.TakeWarmSource(t.Context(), f.id, f.fence))
		has(false)
	}
	if f.writes != 1 {
		t.Errorf("%d writes, want 1", f.writes)
	}
	give()
	f.before = func() {
		f.before = nil
		f.own(t, "node-b", 2, v1alpha1.PublicationPublished)
	}
	wantError(t, f.rec.TakeWarmSource(t.Context(), f.id, f.fence), volume.ErrFenced)
	has(true)
	wantError(t, f.rec.TakeWarmSource(t.Context(), "no-such-volume", f.fence), volume.ErrFenced)
}

func testHotSet(t *testing.T, f *fixture) {
	hot := records.NewHotSets(f.api)
	uid := f.fence.UID
	_, err := hot.Load(t.Context(), f.id, uid)
	wantError(t, err, volume.ErrNotFound)
	large := volume.HotSet{Blocks: bytes.Repeat([]byte{0xff}, v1alpha1.MaxHotSetBytes), Recorded: start}
	for _, set := range []volume.HotSet{
		large, large,
		{Blocks: []byte{1, 2, 3}, Recorded: start.Add(time.Hour)},
		{Recorded: start.Add(2 * time.Hour)},
	} {
		must(t, hot.Store(t.Context(), f.id, uid, set))
		got, err := hot.Load(t.Context(), f.id, uid)
		must(t, err)
		if !bytes.Equal(got.Blocks, set.Blocks) || !got.Recorded.Equal(set.Recorded) {
			t.Errorf("%d bytes of %s, want %d of %s", len(got.Blocks), got.Recorded, len(set.Blocks), set.Recorded)
		}
	}
	large.Blocks = append(large.Blocks, 0)
	wantError(t, hot.Store(t.Context(), f.id, uid, large), volume.ErrInvalid)

	obj := &v1alpha1.CacheHotSet{}
	must(t, f.api.Get(t.Context(), client.ObjectKey{Name: string(f.id)}, obj))
	if refs := obj.OwnerReferences; len(refs) != 1 || refs[0].Kind != "CachedVolume" || refs[0].Name != string(f.id) || string(refs[0].UID) != uid {
		t.Errorf("owner references %+v", refs)
	}
	// Another volume of the same name.
	_, err = hot.Load(t.Context(), f.id, "another")
	wantError(t, err, volume.ErrNotFound)
	must(t, hot.Store(t.Context(), f.id, "another", volume.HotSet{Blocks: []byte{9}, Recorded: start}))
	_, err = hot.Load(t.Context(), f.id, uid)
	wantError(t, err, volume.ErrNotFound)
	must(t, f.api.Get(t.Context(), client.ObjectKey{Name: string(f.id)}, obj))
	if refs := obj.OwnerReferences; len(refs) != 1 || refs[0].UID != "another" {
		t.Errorf("owner references of the second volume %+v", refs)
	}
}
