package controller

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/scheduling"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// patience is for the largest cluster on a busy machine.
const patience = 5 * time.Minute

// figures are what one run shows of a controller in a cluster of some size.
type figures struct {
	nodes, volumes int
	// start is the time from the start until everything was looked at, and starting
	// the requests in it.
	start    time.Duration
	starting map[string]int
	// resting are the requests while nobody wants anything, for rest, and reported
	// those that followed when nodes reported of reports volumes.
	rest      time.Duration
	resting   map[string]int
	reports   int
	reported  map[string]int
	heap, rss uint64
	// moves volumes moved in the time drain; moving are the requests for that.
	moves  int
	drain  time.Duration
	moving map[string]int
	// admissions and attaches are what the calls of each move took.
	admissions, attaches []time.Duration
}

// extent is how large a run is.
type extent struct {
	nodes, volumes, drained, moves, reports int
	rest                                    time.Duration
}

func newFleet(t testing.TB, admin *rest.Config) *fleet {
	t.Helper()
	config := rest.CopyConfig(admin)
	config.QPS = -1 // the cluster's other parts are not what is measured
	f := &fleet{t: t, api: apiserver.Client(t, config), storage: backendtest.New(1 << 50)}
	if err := f.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}); err != nil {
		t.Fatal(err)
	}
	return f
}

// measure grows the cluster, and then runs a controller from its start to the end of
// a drain.
func (f *fleet) measure(config *rest.Config, e extent) figures {
	t := f.t
	t.Helper()
	f.grow(e.nodes, e.volumes)
	out := figures{nodes: e.nodes, volumes: e.volumes, rest: e.rest, reports: e.reports}
	seen, requests := reconciled(t), &apiserver.Traffic{}
	before := liveHeap()
	began := time.Now()
	counting := requests.Counted(config)
	prefer := func(c *Config) { c.Scheduling.Weights = scheduling.Weights{Warm: 80, Free: 20} }
	a := startWith(t, config, prefer, func(ctx context.Context, cfg Config) error {
		return serve(ctx, cfg, counting, map[string]storageServer{"": {storage: f.storage}})
	})
	defer a.end(t)
	within(t, patience, "every volume was looked at", func() bool { return reconciled(t)-seen >= float64(e.volumes) })
	quiet(t)
	out.start, out.starting = time.Since(began), requests.Take().Requests
	d := f.drain(a, e.drained)
	within(t, patience, "the webhook knows the cluster", func() bool {
		_, err := d.admit(t.Context(), volumeName(0))
		return err == nil
	})
	now := liveHeap()
	out.heap, out.rss = now-min(before, now), resident(t)

	requests.Take()
	time.Sleep(e.rest)
	out.resting = requests.Take().Requests
	f.report(e.reports)
	quiet(t)
	out.reported = requests.Take().Requests

	began = time.Now()
	out.moves = d.run(e.moves)
	quiet(t)
	out.drain, out.moving = time.Since(began), requests.Take().Requests
	out.admissions, out.attaches = d.admissions, d.attaches
	return out
}

// testScale compares a small cluster with a larger one: what a controller asks the API
// server for must not grow with the number of volumes but for its informers' lists,
// which are one request a page.
func testScale(t *testing.T, admin, config *rest.Config) {
	f := newFleet(t, admin)
	small := f.measure(config, extent{nodes: 20, volumes: 100, drained: 5, moves: 20, reports: 20, rest: time.Second})
	large := f.measure(config, extent{nodes: 50, volumes: 500, drained: 5, moves: 20, reports: 100, rest: time.Second})
	t.Logf("%s\n%s", small, large)
	const few = 5 // a pool's or a lease's business
	if a, b := ofVolumes(small.starting), ofVolumes(large.starting); b > a+few {
		t.Errorf("a start takes %d requests with %d volumes and %d with %d: %v", a, small.volumes, b, large.volumes, large.starting)
	}
	for _, m := range []figures{small, large} {
		if n := ofVolumes(m.resting); n > 0 {
			t.Errorf("%d requests about %d volumes at rest: %v", n, m.volumes, m.resting)
		}
		if n := ofVolumes(m.reported); n > 0 {
			t.Errorf("%d requests after reports about %d volumes: %v", n, m.reports, m.reported)
		}
		if m.moves != 20 || len(m.attaches) != 20 {
			t.Errorf("%d volumes moved, %d by calls, want 20", m.moves, len(m.attaches))
		}
	}
	a, b := float64(ofVolumes(small.moving))/20, float64(ofVolumes(large.moving))/20
	if b > 1.25*a || b < a/1.25 || b > 12 {
		t.Errorf("a move takes %.1f requests with %d volumes and %.1f with %d: %v", a, small.volumes, b, large.volumes, large.moving)
	}
}

// BenchmarkScale measures a cluster as large as nearflash is made for:
//
//	go test ./pkg/app/controller -run '^$' -bench Scale -benchtime 1x -timeout 30m
//
// Its controller keeps to the limit of requests that the real one has.
func BenchmarkScale(b *testing.B) {
	sizes := []extent{
		{nodes: 100, volumes: 1000, drained: 10, moves: 100, reports: 500, rest: 30 * time.Second},
		{nodes: 300, volumes: 3000, drained: 30, moves: 300, reports: 500, rest: 30 * time.Second},
		{nodes: 1000, volumes: 10000, drained: 100, moves: 1000, reports: 500, rest: 30 * time.Second},
	}
	admin := apiserver.Start(b)
	installAccount(b, apiserver.Client(b, admin))
	f, config := newFleet(b, admin), account(admin)
	config.QPS, config.Burst = kube.QPS, kube.Burst
	for _, e := range sizes {
		b.Run(fmt.Sprintf("%d volumes", e.volumes), func(b *testing.B) {
			f.t = b
			for range b.N {
				m := f.measure(config, e)
				b.Log(m.String())
				b.ReportMetric(float64(m.heap)/float64(e.volumes), "heap-B/volume")
				b.ReportMetric(float64(ofVolumes(m.moving))/float64(m.moves), "requests/move")
			}
		})
	}
}

// String is for the log of a test.
func (m figures) String() string {
	text := &strings.Builder{}
	fmt.Fprintf(text, "%d nodes, %d volumes: start %v, %d requests about volumes; heap %.1f MiB more, process %.1f MiB\n",
		m.nodes, m.volumes, m.start.Round(time.Millisecond), ofVolumes(m.starting), float64(m.heap)/(1<<20), float64(m.rss)/(1<<20))
	fmt.Fprintf(text, "  at start  %s\n  at rest   %v: %s\n  reports   %d: %s\n", list(m.starting), m.rest, list(m.resting), m.reports, list(m.reported))
	fmt.Fprintf(text, "  drain     %d moves in %v: %.1f requests a move: %s\n", m.moves, m.drain.Round(time.Millisecond),
		float64(ofVolumes(m.moving))/float64(max(m.moves, 1)), list(m.moving))
	fmt.Fprintf(text, "  admission %s\n  both CSI calls of a move %s", spread(m.admissions), spread(m.attaches))
	return text.String()
}

func list(n map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%s %d", k, n[k]))
	}
	return strings.Join(out, ", ")
}

// spread is the median and the 99th percentile.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "none"
	}
	slices.Sort(d)
	return fmt.Sprintf("p50 %v, p99 %v", d[len(d)/2].Round(10*time.Microsecond), d[len(d)*99/100].Round(10*time.Microsecond))
}

// liveHeap is what is in use after a collection.
func liveHeap() uint64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// resident is the memory that the kernel counts for this process.
func resident(t testing.TB) uint64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages uint64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * uint64(os.Getpagesize())
}

// reconciled is how often the reconciler of volumes has looked at one.
func reconciled(t testing.TB) float64 {
	return gathered(t, "controller_runtime_reconcile_total", "cachedvolume")
}

// quiet waits until both reconcilers have nothing to do.
func quiet(t testing.TB) {
	t.Helper()
	calm := 0
	within(t, patience, "the reconcilers are done", func() bool {
		busy := 0.0
		for _, c := range []string{"cachedvolume", "cachemigration"} {
			busy += gathered(t, "workqueue_depth", c) + gathered(t, "controller_runtime_active_workers", c)
		}
		if calm++; busy > 0 {
			calm = 0
		}
		return calm >= 4
	})
}

// gathered adds up a metric of one reconciler.
func gathered(t testing.TB, name, controller string) float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "controller" && l.GetValue() == controller }) {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
