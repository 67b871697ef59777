package reconcile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestDecidePool(t *testing.T) {
	pool := func(change func(*v1alpha1.CachePool)) *v1alpha1.CachePool {
		p := &v1alpha1.CachePool{}
		p.Name, p.Labels = "node-a", map[string]string{v1alpha1.LabelPoolSource: v1alpha1.PoolSourceFlags}
		if change != nil {
			change(p)
		}
		return p
	}
	kept := func(generation int64) v1alpha1.KeptCache {
		return v1alpha1.KeptCache{VolumeName: "v", VolumeUID: "u", Generation: &generation}
	}
	word := func(uid string, generation int64) v1alpha1.DeletedVolume {
		return v1alpha1.DeletedVolume{VolumeName: "v", VolumeUID: uid, Generation: &generation}
	}
	record := func(change func(*v1alpha1.CachedVolume)) []v1alpha1.CachedVolume {
		v := v1alpha1.CachedVolume{}
		v.Name, v.Spec.CacheMode = "v", v1alpha1.CacheModeWritethrough
		v.Status.OwnerNode, v.Status.Publication, v.Status.DirtyState = "node-a", v1alpha1.PublicationReleased, v1alpha1.DirtyStateClean
		change(&v)
		return []v1alpha1.CachedVolume{v}
	}
	cases := map[string]struct {
		f poolFacts
		// want is a reason, or Present or Delete; says is in the message.
		want, says string
	}{
		"nothing needs it":                {f: poolFacts{Waited: true}, want: "Delete"},
		"the node is there":               {f: poolFacts{Present: true, Waited: true}, want: "Present"},
		"it may come back":                {f: poolFacts{}, want: v1alpha1.ReasonNodeMayReturn},
		"an administrator's":              {f: poolFacts{Waited: true, Pool: pool(func(p *v1alpha1.CachePool) { p.Labels = nil })}, want: v1alpha1.ReasonMadeByAdministrator},
		"words for the node":              {f: poolFacts{Waited: true, Pool: pool(func(p *v1alpha1.CachePool) { p.Status.Deleted = []v1alpha1.DeletedVolume{word("u", 3)} })}, want: "Delete"},
		"kept writes":                     {f: poolFacts{Waited: true, Pool: pool(func(p *v1alpha1.CachePool) { p.Status.Kept = []v1alpha1.KeptCache{kept(3)} })}, want: v1alpha1.ReasonWritesKept, says: "volume v"},
		"a word for them":                 {f: poolFacts{Waited: true, Pool: withWord(pool(nil), kept(3), word("u", 3))}, want: "Delete"},
		"a word for an earlier ownership": {f: poolFacts{Waited: true, Pool: withWord(pool(nil), kept(3), word("u", 2))}, want: v1alpha1.ReasonWritesKept},
		"a word for another volume":       {f: poolFacts{Waited: true, Pool: withWord(pool(nil), kept(3), word("w", 3))}, want: v1alpha1.ReasonWritesKept},
		"a full list may lack one": {f: poolFacts{Waited: true, Pool: pool(func(p *v1alpha1.CachePool) {
			for i := range v1alpha1.MaxKeptCaches {
				k, w := kept(3), word("u", 3)
				k.VolumeName, w.VolumeName = fmt.Sprint(i), fmt.Sprint(i)
				p.Status.Kept, p.Status.Deleted = append(p.Status.Kept, k), append(p.Status.Deleted, w)
			}
		})}, want: v1alpha1.ReasonWritesKept, says: "and 59 more"},
		"unflushed": {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) { v.Status.DirtyState = v1alpha1.DirtyStatePossiblyDirty })}, want: v1alpha1.ReasonUnflushedWrites, says: "volume v"},
		"unflushed, being deleted": {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) {
			v.Status.DirtyState, v.DeletionTimestamp = v1alpha1.DirtyStatePossiblyDirty, ptr.To(v.CreationTimestamp)
		})}, want: v1alpha1.ReasonUnflushedWrites},
		"published":                      {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) { v.Status.Publication = v1alpha1.PublicationPublished })}, want: v1alpha1.ReasonOwnsVolumes, says: "volume v"},
		"held for a cut":                 {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) { v.Spec.Hold = &v1alpha1.VolumeHold{} })}, want: v1alpha1.ReasonOwnsVolumes},
		"may be written back":            {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) { v.Spec.CacheMode = v1alpha1.CacheModeWriteback })}, want: v1alpha1.ReasonOwnsVolumes},
		"may lose its power":             {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) { v.Spec.CacheMode = v1alpha1.CacheModeWritebackUnsafe })}, want: v1alpha1.ReasonOwnsVolumes},
		"has consented to more":          {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) { v.Spec.AcceptDirtyLoss = v1alpha1.DirtyLossPowerLoss })}, want: v1alpha1.ReasonOwnsVolumes},
		"has consented to it":            {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) { v.Spec.AcceptDirtyLoss = v1alpha1.DirtyLossNodeLoss })}, want: v1alpha1.ReasonOwnsVolumes},
		"the last owner of clean writes": {f: poolFacts{Waited: true, Owned: record(func(*v1alpha1.CachedVolume) {})}, want: "Delete"},
		"a cache that is warm there": {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) {
			v.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-a"}}
		})}, want: "Delete"},
		"writes that were abandoned": {f: poolFacts{Waited: true, Owned: record(func(v *v1alpha1.CachedVolume) { v.Status.Abandoned = []v1alpha1.AbandonedWrites{{NodeName: "node-a"}} })}, want: "Delete"},
		"admitted":                   {f: poolFacts{Waited: true, Admitted: "w"}, want: v1alpha1.ReasonStorageAdmits, says: "volume w"},
		"nobody knows whether":       {f: poolFacts{Waited: true, Unknown: errors.New("no answer")}, want: v1alpha1.ReasonStorageUnknown, says: "no answer"},
		"dirty goes before who made it up": {f: poolFacts{Owned: record(func(v *v1alpha1.CachedVolume) {
			v.Status.DirtyState, v.Status.Publication = v1alpha1.DirtyStatePossiblyDirty, v1alpha1.PublicationPublished
		}), Unknown: errors.New("no answer")}, want: v1alpha1.ReasonUnflushedWrites},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.f.Pool == nil {
				tc.f.Pool = pool(nil)
			}
			v := decidePool(tc.f)
			got := v.Reason
			switch {
			case v.Delete:
				got = "Delete"
			case v.Present:
				got = "Present"
			}
			if got != tc.want || !strings.Contains(v.Message, tc.says) {
				t.Errorf("%s: %q, want %s with %q", got, v.Message, tc.want, tc.says)
			}
		})
	}
}

func withWord(p *v1alpha1.CachePool, k v1alpha1.KeptCache, w v1alpha1.DeletedVolume) *v1alpha1.CachePool {
	p.Status.Kept, p.Status.Deleted = []v1alpha1.KeptCache{k}, []v1alpha1.DeletedVolume{w}
	return p
}
