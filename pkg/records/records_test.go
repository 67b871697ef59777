package records_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

const nodeA = "node-a"

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// fixture is a node's Records over a real API server, and one published volume.
type fixture struct {
	api    client.WithWatch
	client client.WithWatch
	rec    *records.Records
	events *events.FakeRecorder
	clock  *clocktesting.FakePassiveClock
	id     volume.ID
	fence  volume.Fence
	// before is called before each write of the status.
	before func()
	writes int
}

func newFixture(t *testing.T, cfg *rest.Config, id volume.ID) *fixture {
	t.Helper()
	f := &fixture{api: apiserver.Client(t, cfg), events: events.NewFakeRecorder(100), clock: clocktesting.NewFakePassiveClock(start), id: id}
	f.client = interceptor.NewClient(f.api, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			f.writes++
			if f.before != nil {
				f.before()
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
	})
	f.rec = records.New(f.client, f.events, f.clock.Now)
	obj := records.NewObject(id, volume.Spec{Mode: volume.ModeWriteback, Cache: volume.Size{Percent: 10}, CapacityBytes: 1 << 30, AcceptNodeLoss: true})
	if err := f.api.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	f.own(t, nodeA, 1, v1alpha1.PublicationPublished)
	f.fence = records.Fence(f.load(t))
	return f
}

// own writes the fence as the controller does.
func (f *fixture) own(t *testing.T, node string, generation int64, p v1alpha1.PublicationState) {
	t.Helper()
	err := records.UpdateStatus(t.Context(), f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.OwnerNode, obj.Status.Generation, obj.Status.Publication = node, ptr.To(generation), p
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) load(t *testing.T) *v1alpha1.CachedVolume {
	t.Helper()
	obj, err := records.Load(t.Context(), f.api, f.id)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func (f *fixture) wantDirty(t *testing.T, want bool) {
	t.Helper()
	if got := f.load(t).Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty; got != want {
		t.Fatalf("possibly dirty is %v, want %v", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// TestRecords runs all tests against one real API server.
func TestRecords(t *testing.T) {
	cfg := apiserver.Start(t)
	for name, test := range map[string]func(*testing.T, *fixture){
		"dirty mark":            testMark,
		"dirty mark fenced":     testMarkFenced,
		"mark of a held volume": testMarkHeld,
		"end of a hold":         testEndHold,
		"warm source":           testWarmSource,
		"filesystem":            testFilesystem,
		"activation":            testActivation,
		"hot set":               testHotSet,
		"lost races":            testRaces,
		"never ending race":     testBusy,
		"retained cache":        testRetainedCache,
		"retained cache bound":  testRetainedCacheBound,
		"report":                testReport,
		"abandoned":             testAbandoned,
		"scrub":                 testScrub,
		"missing":               testMissing,
		"no connection":         testUnavailable,
		"torn":                  testReportTorn,
		"round trip":            testRoundTrip,
	} {
		t.Run(name, func(t *testing.T) { test(t, newFixture(t, cfg, volume.ID(strings.ReplaceAll(name, " ", "-")))) })
	}
	t.Run("prewarms", func(t *testing.T) { testPrewarms(t, cfg) })
}

func testMark(t *testing.T, f *fixture) {
	f.wantDirty(t, false)
	for range 2 {
		must(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence))
		f.wantDirty(t, true)
	}
	// A released owner flushes, too.
	f.own(t, nodeA, 1, v1alpha1.PublicationReleased)
	for range 2 {
		must(t, f.rec.MarkClean(t.Context(), f.id, f.fence))
		f.wantDirty(t, false)
	}
	if f.writes != 2 {
		t.Errorf("%d writes, want 2: nothing is written that is there already", f.writes)
	}
	// But it may not begin to write again.
	wantError(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence), volume.ErrFenced)
	f.wantDirty(t, false)
}

func testMarkFenced(t *testing.T, f *fixture) {
	must(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence))
	cases := map[string]volume.Fence{
		"other node":       {UID: f.fence.UID, Generation: 1, Node: "node-b"},
		"older generation": {UID: f.fence.UID, Generation: 0, Node: nodeA},
		"newer generation": {UID: f.fence.UID, Generation: 2, Node: nodeA},
		"other volume":     {UID: "another", Generation: 1, Node: nodeA},
	}
	for name, fence := range cases {
		t.Run(name, func(t *testing.T) {
			wantError(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, fence), volume.ErrFenced)
			wantError(t, f.rec.MarkClean(t.Context(), f.id, fence), volume.ErrFenced)
			f.wantDirty(t, true)
		})
	}
}

// testRaces: whatever is written judges what it overwrites.
func testRaces(t *testing.T, f *fixture) {
	f.before = func() {
		f.before = nil
		must(t, records.UpdateStatus(t.Context(), f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
			obj.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-b", Generation: 1}}
			return nil
		}))
	}
	must(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence))
	f.wantDirty(t, true)
	if len(f.load(t).Status.RetainedCaches) != 1 {
		t.Error("the other writer's change was lost")
	}
	must(t, f.rec.MarkClean(t.Context(), f.id, f.fence))
	f.before = func() {
		f.before = nil
		f.own(t, "node-b", 2, v1alpha1.PublicationPublished)
	}
	wantError(t, f.rec.MarkPossiblyDirty(t.Context(), f.id, f.fence), volume.ErrFenced)
	f.wantDirty(t, false)

	// WriteStatus does not try again: it stands for a decision on what was read.
	obj := f.load(t)
	f.own(t, nodeA, 3, v1alpha1.PublicationPublished)
	err := records.WriteStatus(t.Context(), f.api, obj, func(s *v1alpha1.CachedVolumeStatus) { s.OwnerNode = "node-c" })
	wantError(t, err, volume.ErrBusy)
	if got := f.load(t).Status.OwnerNode; got != nodeA {
		t.Errorf("owner is %s", got)
	}
}

func testBusy(t *testing.T, f *fixture) {
	generation := int64(1)
	f.before = func() {
		generation++
		f.own(t, nodeA, generation, v1alpha1.PublicationPublished)
	}
	err := f.rec.SetRetainedCache(t.Context(), f.id, nodeA, &volume.RetainedCache{Generation: 1})
	wantError(t, err, volume.ErrBusy)
}

func testRetainedCache(t *testing.T, f *fixture) {
	must(t, f.rec.SetRetainedCache(t.Context(), f.id, nodeA, nil))
	must(t, f.rec.SetRetainedCache(t.Context(), f.id, nodeA, &volume.RetainedCache{Generation: 1, SizeBytes: 5}))
	must(t, f.rec.SetRetainedCache(t.Context(), f.id, "node-b", &volume.RetainedCache{Generation: 2, SizeBytes: 6}))
	f.clock.SetTime(start.Add(time.Hour))
	must(t, f.rec.SetRetainedCache(t.Context(), f.id, nodeA, &volume.RetainedCache{Generation: 3, SizeBytes: 7, Partial: true}))
	list := f.load(t).Status.RetainedCaches
	if len(list) != 2 || list[0].NodeName != nodeA || list[0].Generation != 3 || *list[0].SizeBytes != 7 || list[0].Content != v1alpha1.RetainedCachePartial || list[1].Content != "" ||
		!list[0].LastUsedTime.Time.Equal(start.Add(time.Hour)) || !list[1].LastUsedTime.Time.Equal(start) {
		t.Errorf("retained cache %+v", list)
	}
	for range 2 {
		must(t, f.rec.SetRetainedCache(t.Context(), f.id, nodeA, nil))
	}
	if list = f.load(t).Status.RetainedCaches; len(list) != 1 || list[0].NodeName != "node-b" {
		t.Errorf("retained cache %+v", list)
	}
}

// testRetainedCacheBound: a full list must not hold up an unstage.
func testRetainedCacheBound(t *testing.T, f *fixture) {
	must(t, records.UpdateStatus(t.Context(), f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
		for i := range 64 {
			obj.Status.RetainedCaches = append(obj.Status.RetainedCaches, v1alpha1.RetainedCache{NodeName: fmt.Sprintf("node-%d", i), Generation: 1})
		}
		return nil
	}))
	must(t, f.rec.SetRetainedCache(t.Context(), f.id, nodeA, &volume.RetainedCache{Generation: 1}))
	must(t, f.rec.SetRetainedCache(t.Context(), f.id, "node-63", &volume.RetainedCache{Generation: 9}))
	list := f.load(t).Status.RetainedCaches
	if len(list) != 64 || list[63].Generation != 9 {
		t.Errorf("%d entries, the last %+v", len(list), list[63])
	}
}

func testReport(t *testing.T, f *fixture) {
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	must(t, records.UpdateObject(t.Context(), f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.ClaimRef = &v1alpha1.ClaimReference{Namespace: pvc.Namespace, Name: pvc.Name}
		return nil
	}))
	report := volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive, Message: "100% of it"}
	for range 2 {
		must(t, f.rec.Report(t.Context(), f.id, report))
	}
	f.wantEvents(t, "Normal CacheActive 100% of it", "Normal CacheActive 100% of it") // on volume and claim, once each
	if !meta.IsStatusConditionTrue(f.load(t).Status.Conditions, v1alpha1.ConditionCached) {
		t.Error("condition is not True")
	}
	// A node that had the volume before does not speak for its owner.
	detached := volume.CacheReport{Reason: v1alpha1.ReasonDetached, Owner: "node-before"}
	must(t, f.rec.Report(t.Context(), f.id, detached))
	f.wantEvents(t)
	if !meta.IsStatusConditionTrue(f.load(t).Status.Conditions, v1alpha1.ConditionCached) {
		t.Error("the condition is of a node that is not the owner")
	}
	must(t, records.UpdateObject(t.Context(), f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.ClaimRef = nil
		return nil
	}))
	report = volume.CacheReport{Reason: v1alpha1.ReasonPoolFull, Message: strings.Repeat("ä", 40000), Warning: true}
	for range 2 {
		must(t, f.rec.Report(t.Context(), f.id, report))
	}
	cond := meta.FindStatusCondition(f.load(t).Status.Conditions, v1alpha1.ConditionCached)
	if cond.Status != metav1.ConditionFalse || cond.Reason != v1alpha1.ReasonPoolFull || !strings.HasSuffix(cond.Message, "ä...") || cond.ObservedGeneration == 0 {
		t.Errorf("condition %s %s, %d bytes, generation %d", cond.Status, cond.Reason, len(cond.Message), cond.ObservedGeneration)
	}
	note := "Warning PoolFull " + strings.Repeat("ä", 510) + "..."
	f.wantEvents(t, note, note)
}

func (f *fixture) wantEvents(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-f.events.Events:
			if got != w {
				t.Errorf("event %q, want %q", got, w)
			}
		default:
			t.Errorf("no event %q", w)
		}
	}
	if n := len(f.events.Events); n > 0 {
		t.Errorf("%d events more", n)
	}
}

func testMissing(t *testing.T, f *fixture) {
	const id = "no-such-volume"
	_, err := f.rec.Get(t.Context(), id)
	wantError(t, err, volume.ErrNotFound)
	wantError(t, f.rec.MarkPossiblyDirty(t.Context(), id, f.fence), volume.ErrFenced)
	must(t, f.rec.MarkClean(t.Context(), id, f.fence))
	must(t, f.rec.SetRetainedCache(t.Context(), id, nodeA, nil))
	wantError(t, f.rec.SetRetainedCache(t.Context(), id, nodeA, &volume.RetainedCache{Generation: 1}), volume.ErrNotFound)
	wantError(t, f.rec.Report(t.Context(), id, volume.CacheReport{Reason: v1alpha1.ReasonDetached}), volume.ErrNotFound)
}

func testUnavailable(t *testing.T, f *fixture) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.rec.Get(ctx, f.id)
	wantError(t, err, volume.ErrUnavailable)
	wantError(t, f.rec.MarkPossiblyDirty(ctx, f.id, f.fence), volume.ErrUnavailable)
	f.wantDirty(t, false)
}

// testRoundTrip: what the API server stores is what was asked for.
func testRoundTrip(t *testing.T, f *fixture) {
	cases := map[string]volume.Spec{
		"minimal": {Mode: volume.ModeNone},
		"named":   {Mode: volume.ModeNone, Target: "second"},
		"provisioned": {
			Mode: volume.ModeWriteback, Cache: volume.Size{Percent: 25}, MaxCacheBytes: 3 << 29, CapacityBytes: 7 << 30, Provisioning: "thin", ChunkBytes: 1 << 20,
			WarmStart:      volume.WarmStart{From: volume.WarmOff, Method: volume.MethodStream, Bandwidth: 100 << 20, Deadline: 24 * time.Hour},
			DirtyLimit:     volume.DirtyLimit{Max: volume.Size{Bytes: 2 << 30}, Age: 90 * time.Second},
			AcceptNodeLoss: true, Claim: &volume.Claim{Namespace: "ns", Name: "claim"},
		},
		"unsafe": {Mirror: true, Mode: volume.ModeWriteback, Unsafe: true, AcceptNodeLoss: true, Cache: volume.Size{Percent: 25}},
		"static": {
			Mode: volume.ModeWritethrough, Cache: volume.Size{Bytes: 5 << 30}, WarmStart: volume.WarmStart{From: volume.WarmOrigin, Preload: true},
			Static: &volume.ISCSI{Portals: []string{"192.0.2.1:3260", "[2001:db8::1]:3260"}, IQN: "iqn.2003-01.org.example:disk1", LUN: 16383},
		},
	}
	n := 0
	for name, spec := range cases {
		n++
		t.Run(name, func(t *testing.T) {
			id := volume.ID(fmt.Sprintf("round-%d", n))
			must(t, f.api.Create(t.Context(), records.NewObject(id, spec)))
			got, err := f.rec.Get(t.Context(), id)
			must(t, err)
			if field := records.Difference(got.Spec, spec); field != "" {
				t.Errorf("%s differs: %+v, want %+v", field, got.Spec, spec)
			}
			if spec.WarmStart.From == "" {
				spec.WarmStart.From = volume.WarmPeer
			}
			elsewhere := spec
			if elsewhere.Target += "x"; records.Difference(got.Spec, elsewhere) != "target" {
				t.Error("a volume of another server is the same")
			}
			if got.Spec.WarmStart != spec.WarmStart || got.WarmSource != nil {
				t.Errorf("warm start %+v from %+v, want %+v", got.Spec.WarmStart, got.WarmSource, spec.WarmStart)
			}
			if got.Spec.DirtyLimit != spec.DirtyLimit {
				t.Errorf("dirty limit %+v, want %+v", got.Spec.DirtyLimit, spec.DirtyLimit)
			}
			if (got.Spec.Claim == nil) != (spec.Claim == nil) || got.Spec.Claim != nil && *got.Spec.Claim != *spec.Claim {
				t.Errorf("claim %+v", got.Spec.Claim)
			}
			if got.ID != id || got.Published || got.PossiblyDirty || got.Deleting || got.Fence.Generation != 0 || got.Fence.UID == "" {
				t.Errorf("new volume %+v", got)
			}
		})
	}
}
