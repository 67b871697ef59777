package moves_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The tests of this file are about a source that is shut down; TestMoves runs them.

// leaveTimeout is how long the other node has for leaving a lease.
const leaveTimeout = 4 * time.Second

const shutdownReason = "node a is shutting down"

// watched runs a watch of B's moves until the test ends, and returns the number of
// objects that B has read one by one.
func (f *fixture) watched() (reads *atomic.Int64) {
	f.t.Helper()
	reads = &atomic.Int64{}
	counting := interceptor.NewClient(f.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			reads.Add(1)
			return c.Get(ctx, key, obj, opts...)
		},
	})
	scheme, err := kube.NewScheme()
	must(f.t, err)
	f.b = moves.NewDestination(counting, f.events, time.Now, testPort, testStreamPort)
	ctx, cancel := context.WithCancel(f.t.Context())
	run, err := f.b.Watch(ctx, f.cfg, scheme, f.nodeB)
	must(f.t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := run(ctx); err != nil {
			f.t.Errorf("watch: %v", err)
		}
	})
	f.t.Cleanup(func() { cancel(); wg.Wait() })
	return reads
}

// imported is one more volume whose cache B has from A, of which some is copied. B
// leaves when A says that it serves no more, unless it is deaf.
func (f *fixture) imported(name string, p *volume.MoveProgress, deaf bool, change ...func(*volume.MoveRequest)) volume.MoveID {
	f.t.Helper()
	id, fence := f.volume(name)
	r := f.request()
	r.Volume, r.Fence = id, fence
	for _, c := range change {
		c(&r)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	m, _, err := f.b.Begin(ctx, r)
	must(f.t, err)
	if p != nil {
		must(f.t, f.b.Progress(f.t.Context(), m, *p))
	}
	if deaf {
		return m
	}
	var wg sync.WaitGroup
	f.t.Cleanup(wg.Wait)
	wg.Go(func() {
		for f.t.Context().Err() == nil {
			if exported, err := f.b.Exported(f.t.Context(), m); err == nil && !exported {
				f.lessor.leave(id)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	return m
}

// releases notes in which order moves are said to be released.
func (f *fixture) releases() (names func() []string) {
	f.t.Helper()
	w, err := f.api.Watch(f.t.Context(), &v1alpha1.CacheMigrationList{}, client.MatchingFields{"spec.sourceNode": f.nodeA})
	must(f.t, err)
	var mu sync.Mutex
	var out []string
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range w.ResultChan() {
			if obj, ok := e.Object.(*v1alpha1.CacheMigration); ok && e.Type == watch.Modified && obj.Status.Source.State == v1alpha1.ExportStateReleased {
				mu.Lock()
				if !slices.Contains(out, obj.Spec.VolumeName) {
					out = append(out, obj.Spec.VolumeName)
				}
				mu.Unlock()
			}
		}
	})
	f.t.Cleanup(func() { w.Stop(); wg.Wait() })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(out)
	}
}

// byStream asks for a stream instead of an export.
func byStream(r *volume.MoveRequest) { r.Method = volume.MethodStream }

func testHandOver(t *testing.T, f *fixture) {
	f.streaming()
	f.watched()
	s, stop := f.runSource()
	progress := func(done int64) *volume.MoveProgress {
		return &volume.MoveProgress{TotalBytes: 1000, HydratedBytes: done, From: volume.FromPeer}
	}
	ids := map[string]volume.MoveID{
		"ho-nearly":  f.imported("ho-nearly", progress(990), false),
		"ho-begun":   f.imported("ho-begun", progress(10), false),
		"ho-half":    f.imported("ho-half", progress(500), false),
		"ho-unknown": f.imported("ho-unknown", nil, false),
		// Whoever reads a stream need not hear of it to be done with it.
		"ho-stream":         f.imported("ho-stream", progress(20), true, byStream),
		"ho-unknown-stream": f.imported("ho-unknown-stream", nil, true, byStream),
	}
	released := f.releases()
	stop()
	f.lessor.busyReleases = 2
	began := time.Now()
	must(t, s.HandOver(t.Context(), shutdownReason))
	// Whoever needs longer than this on a slow machine is ended early, which is looked at below.
	if took := time.Since(began); took > leaveTimeout {
		t.Errorf("it took %s, though everybody left", took)
	}
	for name, m := range ids {
		obj := f.load(m)
		if obj.Status.Source.State != v1alpha1.ExportStateReleased || obj.Status.Source.Message != shutdownReason || obj.Status.Outcome != "" {
			t.Errorf("%s: status %+v", name, obj.Status)
		}
		streams := obj.Spec.Method == v1alpha1.MigrationStream
		if obj.Status.Source.ChunkSizeBytes == 0 || (obj.Status.Source.IQN == "") != streams || !strings.Contains(name, "unknown") && ptr.Deref(obj.Status.Progress.TotalBytes, 0) != 1000 {
			t.Errorf("%s: the rest of the status was lost: %+v", name, obj.Status)
		}
		if exported, err := f.b.Exported(t.Context(), m); exported || err != nil {
			t.Errorf("%s: exported %v, %v", name, exported, err)
		}
		if !slices.Contains(f.lessor.kept, m) || f.lessor.has(m) || f.lessor.retainedCaches[volume.ID(name)] == 0 {
			t.Errorf("%s: not released, or its retained cache was destroyed", name)
		}
	}
	if leases, _ := f.lessor.Leases(t.Context()); len(leases) > 0 || len(f.lessor.early) > 0 {
		t.Errorf("left %v; ended under a session: %v", leases, f.lessor.early)
	}
	want := []string{"ho-unknown", "ho-begun", "ho-half", "ho-nearly", "ho-unknown-stream", "ho-stream"}
	f.eventually("all releases are seen", func() bool { return len(released()) == len(want) })
	if got := released(); !slices.Equal(got, want) {
		t.Errorf("released in the order %v, want %v", got, want)
	}
}

// testHandOverUnheard: the plugin of the destination does not run, and time is up.
func testHandOverUnheard(t *testing.T, f *fixture) {
	s, stop := f.runSource()
	m := f.imported("hu-deaf", nil, true)
	other := f.imported("hu-hears", nil, false)
	stop()
	began := time.Now()
	must(t, s.HandOver(t.Context(), shutdownReason))
	if took := time.Since(began); took < leaveTimeout || took > 10*leaveTimeout {
		t.Errorf("waited for %s", took)
	}
	if !slices.Contains(f.lessor.kept, m) || !slices.Contains(f.lessor.kept, other) || !slices.Equal(f.lessor.early, []volume.MoveID{m}) {
		t.Errorf("kept %v, of them early %v", f.lessor.kept, f.lessor.early)
	}

	// A shutdown that leaves no time leaves the export to the kernel.
	stop = f.source()
	m = f.imported("hu-late", nil, true)
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), leaveTimeout*3/4)
	defer cancel()
	if err := s.HandOver(ctx, shutdownReason); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "hu-late") {
		t.Errorf("got %v", err)
	}
	if slices.Contains(f.lessor.kept, m) {
		t.Error("ended without the time to be left")
	}
}

// testHandOverKilled: the plugin was killed after it told the destination, and starts
// again under the same kernel.
func testHandOverKilled(t *testing.T, f *fixture) {
	s, stop := f.runSource()
	m := f.imported("hk", nil, true)
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), leaveTimeout*3/4)
	defer cancel()
	if err := s.HandOver(ctx, shutdownReason); err == nil {
		t.Fatal("not interrupted")
	}
	if _, exported := f.lessor.lease("hk"); !exported || f.load(m).Status.Source.State != v1alpha1.ExportStateReleased {
		t.Fatal("the kill came at another moment")
	}
	f.source()
	f.eventually("released", func() bool { return f.lessor.has(m) })
	if f.lessor.calls() != 1 {
		t.Error("it was exported again")
	}
}

// testHandOverNothing: leases that nobody reads from are ended without a word.
func testHandOverNothing(t *testing.T, f *fixture) {
	s, stop := f.runSource()
	must(t, s.HandOver(t.Context(), shutdownReason)) // no leases
	onOrigin := f.imported("hn-origin", nil, true)
	gone := f.imported("hn-gone", nil, true)
	stop()
	must(t, f.b.Progress(t.Context(), onOrigin, volume.MoveProgress{TotalBytes: 10, HydratedBytes: 1, From: volume.FromOrigin}))
	must(t, f.api.Delete(t.Context(), f.load(gone)))
	before := f.load(onOrigin).Status
	f.lessor.leave("hn-origin")
	f.lessor.leave("hn-gone")
	must(t, s.HandOver(t.Context(), shutdownReason))
	if after := f.load(onOrigin).Status; !equality.Semantic.DeepEqual(after, before) {
		t.Errorf("status %+v, was %+v", after, before)
	}
	if leases, _ := f.lessor.Leases(t.Context()); len(leases) > 0 {
		t.Errorf("left %v", leases)
	}
}

// testExportedByWatch: what the source says is known without a request.
func testExportedByWatch(t *testing.T, f *fixture) {
	reads := f.watched()
	f.source()
	m, _ := f.mustBegin()
	exported := func() bool {
		ok, err := f.b.Exported(t.Context(), m)
		must(t, err)
		return ok
	}
	// The watch may come to it later; until then it counts as exported.
	for range 20 {
		if !exported() {
			t.Fatal("not exported")
		}
		time.Sleep(20 * time.Millisecond)
	}
	before := reads.Load()
	for range 100 {
		exported()
	}
	if n := reads.Load() - before; n > 0 {
		t.Errorf("%d requests for what is known", n)
	}
	obj := f.load(m)
	obj.Status.Source.State, obj.Status.Source.Message = v1alpha1.ExportStateReleased, shutdownReason
	must(t, f.api.Status().Update(t.Context(), obj))
	f.eventually("not exported any more", func() bool { return !exported() })

	// Another move, whose object is deleted.
	m = f.imported("lw-deleted", nil, true)
	if !exported() {
		t.Error("not exported")
	}
	must(t, f.api.Delete(t.Context(), &v1alpha1.CacheMigration{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}))
	f.eventually("not exported when it is gone", func() bool { return !exported() })

	// Before the watch runs nothing is known, and nothing is given up.
	early := moves.NewDestination(f.api, events.NewFakeRecorder(1), time.Now, testPort, testStreamPort)
	scheme, err := kube.NewScheme()
	must(t, err)
	if _, err := early.Watch(t.Context(), f.cfg, scheme, f.nodeB); err != nil {
		t.Fatal(err)
	}
	if ok, err := early.Exported(t.Context(), m); !ok || err != nil {
		t.Errorf("before the watch: %v, %v", ok, err)
	}
}
