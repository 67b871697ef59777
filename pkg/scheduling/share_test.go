package scheduling

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestWithin(t *testing.T) {
	for name, tc := range map[string]struct {
		pool           Pool
		share          int64
		taken          taken
		free, retained int64
	}{
		"nothing is taken":               {Pool{Free: 60, RetainedCache: 30}, 25, taken{}, 25, 0},
		"a part is taken":                {Pool{Free: 60, RetainedCache: 30}, 25, taken{all: 20}, 5, 0},
		"its own retained caches give":   {Pool{Free: 60, RetainedCache: 30}, 25, taken{all: 20, retained: 10}, 5, 10},
		"the pool has less":              {Pool{Free: 3, RetainedCache: 4}, 25, taken{}, 3, 4},
		"more is taken than the share":   {Pool{Free: 60, RetainedCache: 30}, 25, taken{all: 40}, 0, 0},
		"more, and some of it gives":     {Pool{Free: 60, RetainedCache: 30}, 25, taken{all: 40, retained: 20}, 0, 5},
		"more is on record than is free": {Pool{}, 25, taken{}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.pool.within(tc.share, tc.taken); got.Free != tc.free || got.RetainedCache != tc.retained {
				t.Errorf("%d free and %d in retained caches, want %d and %d", got.Free, got.RetainedCache, tc.free, tc.retained)
			}
		})
	}
}

// TestPoolsOfNamespace: what a pool has left for a namespace counts the caches of its claims, those
// in use and those that are kept, each copy of them.
func TestPoolsOfNamespace(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	pool := func(name string, spec v1alpha1.CachePoolSpec) *v1alpha1.CachePool {
		p := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		p.Status.Capacity, p.Status.Free, p.Status.Retained = resource.MustParse("100Gi"), resource.MustParse("50Gi"), resource.MustParse("20Gi")
		return p
	}
	record := func(name, namespace string, change func(*v1alpha1.CachedVolumeStatus)) *v1alpha1.CachedVolume {
		v := &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CachedVolumeSpec{
			CacheMode: v1alpha1.CacheModeWritethrough, CacheSize: "10%", CapacityBytes: ptr.To[int64](60 * gib), ClaimRef: &v1alpha1.ClaimReference{Namespace: namespace, Name: "c"},
		}}
		change(&v.Status)
		return v
	}
	published := func(node string, cached metav1.ConditionStatus) func(*v1alpha1.CachedVolumeStatus) {
		return func(s *v1alpha1.CachedVolumeStatus) {
			s.Publication, s.OwnerNode = v1alpha1.PublicationPublished, node
			s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionCached, Status: cached}}
			s.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "whole", SizeBytes: ptr.To[int64](gib)}}
		}
	}
	asking := func(name string, change func(*v1alpha1.CachedVolumeStatus)) *v1alpha1.CachedVolume {
		v := record(name, "shop", change)
		v.Spec.Redundancy = v1alpha1.RedundancyMirror
		return v
	}
	pairing := pool("pairs", v1alpha1.CachePoolSpec{NamespaceSharePercent: 25})
	pairing.Status.Devices = []v1alpha1.CachePoolDevice{{Path: "/dev/a"}, {Path: "/dev/b", Message: "is a partition"}, {Path: "/dev/c"}}
	checked := pool("checked", v1alpha1.CachePoolSpec{Integrity: true})
	checked.Status.Devices = []v1alpha1.CachePoolDevice{{Path: "/dev/a"}, {Path: "/dev/b"}}
	leaving := pool("leaving", v1alpha1.CachePoolSpec{Evacuate: []string{"/dev/b"}})
	leaving.Status.Devices = []v1alpha1.CachePoolDevice{{Path: "/dev/a"}, {Path: "/dev/b", Evacuation: &v1alpha1.DeviceEvacuation{State: v1alpha1.EvacuationWaiting}}}
	g := gatherer{informed: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		pool("whole", v1alpha1.CachePoolSpec{}), pool("shared", v1alpha1.CachePoolSpec{NamespaceSharePercent: 25}),
		pool("twice", v1alpha1.CachePoolSpec{NamespaceSharePercent: 25, Redundancy: v1alpha1.RedundancyMirror}), pairing, checked, leaving,
		asking("f", published("pairs", metav1.ConditionTrue)), asking("g", func(s *v1alpha1.CachedVolumeStatus) {
			s.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "pairs", SizeBytes: ptr.To[int64](2 * gib)}, {NodeName: "twice", SizeBytes: ptr.To[int64](gib)}}
		}),
		record("a", "shop", published("shared", metav1.ConditionTrue)), record("b", "shop", published("shared", metav1.ConditionFalse)),
		record("c", "shop", published("twice", metav1.ConditionTrue)), record("d", "bank", published("shared", metav1.ConditionTrue)),
		record("e", "shop", func(s *v1alpha1.CachedVolumeStatus) {
			s.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "shared", SizeBytes: ptr.To[int64](4 * gib)}}
		}),
	).Build()}
	got, err := g.pools(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	want := []Pool{
		{Node: "checked", Free: 50 * gib, RetainedCache: 20 * gib},
		{Node: "leaving", Free: 50 * gib, RetainedCache: 20 * gib},
		{Node: "pairs", Pairs: true, Free: 9 * gib, RetainedCache: 4 * gib},
		{Node: "shared", Free: 15 * gib, RetainedCache: 4 * gib},
		{Node: "twice", Mirror: true, Free: 11 * gib, RetainedCache: 2 * gib},
		{Node: "whole", Free: 50 * gib, RetainedCache: 20 * gib},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
