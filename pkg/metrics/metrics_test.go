package metrics_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func io(n uint64) observe.IO {
	io := observe.IO{
		Read:  devmapper.IOStats{Operations: 2 * n, Sectors: 16 * n, Nanoseconds: n * 1e6},
		Write: devmapper.IOStats{Operations: n, Sectors: 8 * n, Nanoseconds: n * 2e6},
	}
	io.Histogram[2], io.Histogram[len(io.Histogram)-1] = 2*n, n
	return io
}

// cached is a volume of which everything is known.
func cached() observe.Sample {
	known := observe.Ratio{Value: 0.5, Known: true}
	return observe.Sample{
		Volume: observe.Volume{ID: "pvc-1", PV: "pv-1", Namespace: "shop", Claim: "data", Attached: true, Mode: volume.ModeWriteback, Cached: true},
		Cache: &observe.Cache{
			Health: observe.Healthy, Mode: volume.ModeWriteback, SizeBytes: 1000, UsedBytes: 500, DirtyBytes: 10, ChunkBytes: 100,
			MetadataBytes: 80, MetadataUsedBytes: 8, DirtySince: noon.Add(-time.Minute),
		},
		Counts: observe.Counts{ReadHits: 1, ReadMisses: 2, WriteHits: 3, WriteMisses: 4, Promotions: 5, Demotions: 6},
		Hits:   observe.HitRatios{Read: known, Write: known, ReadTotal: known, WriteTotal: known},
		IO:     map[observe.Device]observe.IO{observe.DeviceVolume: io(1), observe.DeviceSSD: io(10), observe.DeviceOrigin: io(100)},
		Reuse: &reuse.Summary{Windows: []reuse.WindowSummary{
			{Window: reuse.Hour, Reads: 1000, Hits: [6]float64{0.1, 0.2, 0.25, 0.5, 0.75, 1}}, {Window: reuse.Day, Writes: 1000},
		}},
	}
}

func pool() metrics.Pool {
	return metrics.Pool{Ready: true, Known: true, CapacityBytes: 100, FreeBytes: 50, RetainedBytes: 7, Devices: []metrics.PoolDevice{
		{Path: "/dev/nvme0n1", Health: v1alpha1.DevicePassed, WearPercent: ptr.To(int32(3))}, {Path: "/dev/vdb"},
	}}
}

func registry(t *testing.T, snap observe.Snapshot, p metrics.Pool) *prometheus.Registry {
	t.Helper()
	scrape := func(context.Context) observe.Snapshot { return snap }
	c := metrics.NewCollector("node-a", scrape, func() metrics.Pool { return p }, func() time.Time { return noon })
	c.Hydrations = func() []metrics.Hydration {
		return []metrics.Hydration{
			{Volume: "pvc-1", TotalBytes: 1000, HydratedBytes: 250, From: volume.FromPeer},
			{Volume: "retained", TotalBytes: 1, From: volume.FromOrigin},
		}
	}
	c.Leases = func(context.Context) (map[volume.ID]volume.MoveID, error) {
		return map[volume.ID]volume.MoveID{"left": {}}, nil
	}
	c.Failovers = func() uint64 { return 3 }
	c.DirtyLimits = func() []dirtylimit.Use {
		return []dirtylimit.Use{{ID: "pvc-1", Bytes: 2000, Age: time.Minute, Writethrough: 3 * time.Second, Draining: 4500 * time.Millisecond, Activations: 2}, {ID: "gone", Bytes: 1}}
	}
	c.Scrubs = func() []scrub.Use {
		return []scrub.Use{{ID: "pvc-1", CheckedBytes: 1 << 20, Corrupted: 2, Unjudged: 1, Suspensions: 3, Suspended: 30 * time.Millisecond, Longest: 20 * time.Millisecond}, {ID: "gone", Corrupted: 1}}
	}
	c.Moves = &metrics.Moves{}
	c.Moves.Ended(volume.FromPeer, volume.MoveCompleted)
	c.Moves.Ended(volume.FromPeer, volume.MoveCompleted)
	c.Moves.Ended(volume.FromOrigin, volume.MoveFailed)
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c, metrics.BuildInfo("node"))
	return r
}

func gather(t *testing.T, r *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

// TestTable: what is declared is exported, and nothing else.
func TestTable(t *testing.T) {
	all := registry(t, observe.Snapshot{Time: noon, Duration: time.Second, Volumes: []observe.Sample{cached()}}, pool())
	all.MustRegister(newCluster(true, clusterFacts(), nil))
	families := gather(t, all)
	for _, m := range metrics.Table() {
		f := families[m.Name]
		delete(families, m.Name)
		switch {
		case f == nil:
			t.Errorf("%s is declared and not exported", m.Name)
			continue
		case f.GetHelp() != m.Help:
			t.Errorf("%s: help %q", m.Name, f.GetHelp())
		case strings.ToLower(f.GetType().String()) != string(m.Type):
			t.Errorf("%s is a %s, declared as %s", m.Name, f.GetType(), m.Type)
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		want := slices.Sorted(slices.Values(m.Labels))
		if diff := cmp.Diff(want, labels); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", m.Name, diff)
		}
		if !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s: the help is no sentence: %q", m.Name, m.Help)
		}
	}
	for name := range families {
		t.Errorf("%s is exported and not declared", name)
	}
}

func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(registry(t, observe.Snapshot{Time: noon, Volumes: []observe.Sample{cached()}}, pool()))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestValues(t *testing.T) {
	want := `
# HELP nearflash_volume_info 1 for each attached volume, with its name on the node, its cache mode (the one that is asked for while it has no cache) and the health of its cache: Healthy, ReadOnly, NeedsCheck, Failed, None without a cache, Missing if it should have one and has not.
# TYPE nearflash_volume_info gauge
nearflash_volume_info{health="Healthy",mode="writeback",namespace="shop",node="node-a",pv="pv-1",pvc="data",volume="pvc-1"} 1
nearflash_volume_info{health="None",mode="none",namespace="",node="node-a",pv="plain",pvc="",volume="plain"} 1
nearflash_volume_info{health="Failed",mode="writethrough",namespace="",node="node-a",pv="failed",pvc="",volume="failed"} 1
nearflash_volume_info{health="Missing",mode="writethrough",namespace="",node="node-a",pv="missing",pvc="",volume="missing"} 1
# HELP nearflash_volume_cache_accesses_total Accesses to a cached volume, by whether the cache had the chunk. A request over several chunks is one access for each.
# TYPE nearflash_volume_cache_accesses_total counter
nearflash_volume_cache_accesses_total{namespace="shop",node="node-a",operation="read",pv="pv-1",pvc="data",result="hit"} 1
nearflash_volume_cache_accesses_total{namespace="shop",node="node-a",operation="read",pv="pv-1",pvc="data",result="miss"} 2
nearflash_volume_cache_accesses_total{namespace="shop",node="node-a",operation="write",pv="pv-1",pvc="data",result="hit"} 3
nearflash_volume_cache_accesses_total{namespace="shop",node="node-a",operation="write",pv="pv-1",pvc="data",result="miss"} 4
nearflash_volume_cache_accesses_total{namespace="",node="node-a",operation="read",pv="failed",pvc="",result="hit"} 0
nearflash_volume_cache_accesses_total{namespace="",node="node-a",operation="read",pv="failed",pvc="",result="miss"} 0
nearflash_volume_cache_accesses_total{namespace="",node="node-a",operation="write",pv="failed",pvc="",result="hit"} 0
nearflash_volume_cache_accesses_total{namespace="",node="node-a",operation="write",pv="failed",pvc="",result="miss"} 0
nearflash_volume_cache_accesses_total{namespace="",node="node-a",operation="read",pv="missing",pvc="",result="hit"} 0
nearflash_volume_cache_accesses_total{namespace="",node="node-a",operation="read",pv="missing",pvc="",result="miss"} 0
nearflash_volume_cache_accesses_total{namespace="",node="node-a",operation="write",pv="missing",pvc="",result="hit"} 0
nearflash_volume_cache_accesses_total{namespace="",node="node-a",operation="write",pv="missing",pvc="",result="miss"} 0
# HELP nearflash_volume_healthy 1 if nothing is wrong with the volume's cache, 0 if it has failed, is read-only, needs a check or is missing. A volume that should have none is healthy.
# TYPE nearflash_volume_healthy gauge
nearflash_volume_healthy{namespace="shop",node="node-a",pv="pv-1",pvc="data"} 1
nearflash_volume_healthy{namespace="",node="node-a",pv="plain",pvc=""} 1
nearflash_volume_healthy{namespace="",node="node-a",pv="failed",pvc=""} 0
nearflash_volume_healthy{namespace="",node="node-a",pv="missing",pvc=""} 0
# HELP nearflash_volume_cache_dirty_age_seconds Upper bound of the age of the oldest data that the origin does not have yet: the time since the cache was last seen without any. 0 if there is none.
# TYPE nearflash_volume_cache_dirty_age_seconds gauge
nearflash_volume_cache_dirty_age_seconds{namespace="shop",node="node-a",pv="pv-1",pvc="data"} 60
# HELP nearflash_volume_cache_dirty_limit_bytes Most that the origin may lack (maxDirtyBytes). Absent without a limit.
# TYPE nearflash_volume_cache_dirty_limit_bytes gauge
nearflash_volume_cache_dirty_limit_bytes{namespace="shop",node="node-a",pv="pv-1",pvc="data"} 2000
# HELP nearflash_volume_cache_dirty_limit_age_seconds Most that the age of such data may be (maxDirtyAge). Absent without a limit.
# TYPE nearflash_volume_cache_dirty_limit_age_seconds gauge
nearflash_volume_cache_dirty_limit_age_seconds{namespace="shop",node="node-a",pv="pv-1",pvc="data"} 60
# HELP nearflash_volume_cache_dirty_limit_active_seconds_total Time for which the dirty limit has sent writes to the origin since the plugin started: writing back in pauses (level=writethrough), or at once (level=draining). Absent without a limit.
# TYPE nearflash_volume_cache_dirty_limit_active_seconds_total counter
nearflash_volume_cache_dirty_limit_active_seconds_total{level="draining",namespace="shop",node="node-a",pv="pv-1",pvc="data"} 4.5
nearflash_volume_cache_dirty_limit_active_seconds_total{level="writethrough",namespace="shop",node="node-a",pv="pv-1",pvc="data"} 3
# HELP nearflash_volume_cache_dirty_limit_activations_total How often that began. Absent without a limit.
# TYPE nearflash_volume_cache_dirty_limit_activations_total counter
nearflash_volume_cache_dirty_limit_activations_total{namespace="shop",node="node-a",pv="pv-1",pvc="data"} 2
# HELP nearflash_volume_scrub_corrupted_chunks_total Chunks of the cache of which the SSD returned something else than was written to it. Unless the cache was ever in a writeback mode, they were replaced by what the origin has. Absent before a scrub.
# TYPE nearflash_volume_scrub_corrupted_chunks_total counter
nearflash_volume_scrub_corrupted_chunks_total{namespace="shop",node="node-a",pv="pv-1",pvc="data"} 2
# HELP nearflash_volume_scrub_longest_suspension_seconds The longest of these times since the plugin started. Absent before a scrub.
# TYPE nearflash_volume_scrub_longest_suspension_seconds gauge
nearflash_volume_scrub_longest_suspension_seconds{namespace="shop",node="node-a",pv="pv-1",pvc="data"} 0.02
# HELP nearflash_volume_predicted_hit_ratio Part of the reads, from 0 to 1, that a cache of such a part of the volume would answer (fraction, from 0.01 to 1), by what was read of late (window=hour, day or week). Absent until enough was seen. Attached volumes without a cache have it too.
# TYPE nearflash_volume_predicted_hit_ratio gauge
nearflash_volume_predicted_hit_ratio{fraction="0.01",namespace="shop",node="node-a",pv="pv-1",pvc="data",window="hour"} 0.1
nearflash_volume_predicted_hit_ratio{fraction="0.05",namespace="shop",node="node-a",pv="pv-1",pvc="data",window="hour"} 0.2
nearflash_volume_predicted_hit_ratio{fraction="0.1",namespace="shop",node="node-a",pv="pv-1",pvc="data",window="hour"} 0.25
nearflash_volume_predicted_hit_ratio{fraction="0.25",namespace="shop",node="node-a",pv="pv-1",pvc="data",window="hour"} 0.5
nearflash_volume_predicted_hit_ratio{fraction="0.5",namespace="shop",node="node-a",pv="pv-1",pvc="data",window="hour"} 0.75
nearflash_volume_predicted_hit_ratio{fraction="1",namespace="shop",node="node-a",pv="pv-1",pvc="data",window="hour"} 1
# HELP nearflash_volume_io_bytes_total Data that a device of the volume read and wrote.
# TYPE nearflash_volume_io_bytes_total counter
nearflash_volume_io_bytes_total{device="origin",namespace="shop",node="node-a",operation="read",pv="pv-1",pvc="data"} 819200
nearflash_volume_io_bytes_total{device="origin",namespace="shop",node="node-a",operation="write",pv="pv-1",pvc="data"} 409600
nearflash_volume_io_bytes_total{device="ssd",namespace="shop",node="node-a",operation="read",pv="pv-1",pvc="data"} 81920
nearflash_volume_io_bytes_total{device="ssd",namespace="shop",node="node-a",operation="write",pv="pv-1",pvc="data"} 40960
nearflash_volume_io_bytes_total{device="volume",namespace="shop",node="node-a",operation="read",pv="pv-1",pvc="data"} 8192
nearflash_volume_io_bytes_total{device="volume",namespace="shop",node="node-a",operation="write",pv="pv-1",pvc="data"} 4096
# HELP nearflash_volume_hydration_done_bytes Part of that which need not be copied any more: what was copied, and what holds nothing.
# TYPE nearflash_volume_hydration_done_bytes gauge
nearflash_volume_hydration_done_bytes{namespace="shop",node="node-a",pv="pv-1",pvc="data"} 250
# HELP nearflash_volume_hydration_info 1 for each cache that is being hydrated, with where it reads what was not copied yet: peer, the node that had the volume before, or origin.
# TYPE nearflash_volume_hydration_info gauge
nearflash_volume_hydration_info{from="peer",namespace="shop",node="node-a",pv="pv-1",pvc="data"} 1
# HELP nearflash_exported_caches Retained caches that the node exports to the new nodes of their volumes.
# TYPE nearflash_exported_caches gauge
nearflash_exported_caches{node="node-a"} 1
# HELP nearflash_cache_failovers_total Attached volumes that failed over to the origin since the plugin started, because the SSD of their cache failed.
# TYPE nearflash_cache_failovers_total counter
nearflash_cache_failovers_total{node="node-a"} 3
# HELP nearflash_moves_total Warm moves to the node that ended since the plugin started, by where they were to begin (from=peer, another node's cache, or from=origin, a list of blocks) and how they ended: completed, everything was copied; ended, the volume left or its cache was taken away before that; failed, the cache began colder.
# TYPE nearflash_moves_total counter
nearflash_moves_total{from="origin",node="node-a",outcome="completed"} 0
nearflash_moves_total{from="origin",node="node-a",outcome="ended"} 0
nearflash_moves_total{from="origin",node="node-a",outcome="failed"} 1
nearflash_moves_total{from="peer",node="node-a",outcome="completed"} 2
nearflash_moves_total{from="peer",node="node-a",outcome="ended"} 0
nearflash_moves_total{from="peer",node="node-a",outcome="failed"} 0
# HELP nearflash_pool_device_wear_ratio Part of its rated endurance that an SSD of the pool has used; it may exceed 1. Absent if the device does not tell.
# TYPE nearflash_pool_device_wear_ratio gauge
nearflash_pool_device_wear_ratio{device="/dev/nvme0n1",node="node-a"} 0.03
# HELP nearflash_pass_success 1 if the last look at all volumes was complete, else 0: some figures are old or missing then.
# TYPE nearflash_pass_success gauge
nearflash_pass_success{node="node-a"} 0
`
	plain := observe.Sample{Volume: observe.Volume{ID: "plain", Attached: true, Mode: volume.ModeNone}}
	failed := observe.Sample{Volume: observe.Volume{ID: "failed", Attached: true, Mode: volume.ModeWritethrough, Cached: true}, Cache: &observe.Cache{Health: observe.Failed}}
	missing := observe.Sample{Volume: observe.Volume{ID: "missing", Attached: true, Mode: volume.ModeWritethrough, Cached: true}}
	retained := observe.Sample{Volume: observe.Volume{ID: "retained", Mode: volume.ModeWritethrough, Cached: true}}
	snap := observe.Snapshot{Time: noon, Err: errors.New("partly"), Volumes: []observe.Sample{cached(), plain, failed, missing, retained}}
	err := testutil.GatherAndCompare(registry(t, snap, pool()), strings.NewReader(want),
		"nearflash_volume_info", "nearflash_volume_cache_accesses_total", "nearflash_volume_healthy", "nearflash_volume_cache_dirty_age_seconds",
		"nearflash_volume_cache_dirty_limit_bytes", "nearflash_volume_cache_dirty_limit_age_seconds", "nearflash_volume_cache_dirty_limit_active_seconds_total", "nearflash_volume_cache_dirty_limit_activations_total",
		"nearflash_volume_scrub_corrupted_chunks_total", "nearflash_volume_scrub_longest_suspension_seconds",
		"nearflash_volume_io_bytes_total", "nearflash_volume_predicted_hit_ratio", "nearflash_pool_device_wear_ratio", "nearflash_pass_success",
		"nearflash_volume_hydration_done_bytes", "nearflash_volume_hydration_info", "nearflash_exported_caches", "nearflash_moves_total", "nearflash_cache_failovers_total")
	if err != nil {
		t.Error(err)
	}
}

// TestWithoutMoves: a node that has no part in moves has no series of hydrations and
// leases, and neither has one whose journal cannot be read.
func TestWithoutMoves(t *testing.T) {
	scrape := func(context.Context) observe.Snapshot {
		return observe.Snapshot{Time: noon, Volumes: []observe.Sample{cached()}}
	}
	unread := func(context.Context) (map[volume.ID]volume.MoveID, error) { return nil, errors.New("unreadable") }
	for name, leases := range map[string]func(context.Context) (map[volume.ID]volume.MoveID, error){"none": nil, "unreadable": unread} {
		t.Run(name, func(t *testing.T) {
			c := metrics.NewCollector("node-a", scrape, pool, func() time.Time { return noon })
			c.Leases = leases
			r := prometheus.NewPedanticRegistry()
			r.MustRegister(c)
			families := gather(t, r)
			for name, want := range map[string]int{"nearflash_volume_hydration_size_bytes": 0, "nearflash_exported_caches": 0, "nearflash_moves_total": 6} {
				if got := len(families[name].GetMetric()); got != want {
					t.Errorf("%s has %d series, want %d", name, got, want)
				}
			}
		})
	}
}

func TestHistogram(t *testing.T) {
	families := gather(t, registry(t, observe.Snapshot{Time: noon, Volumes: []observe.Sample{cached()}}, metrics.Pool{}))
	for _, m := range families["nearflash_volume_io_duration_seconds"].GetMetric() {
		h := m.GetHistogram()
		n := map[string]uint64{"volume": 1, "ssd": 10, "origin": 100}[m.GetLabel()[0].GetValue()]
		if h.GetSampleCount() != 3*n || h.GetSampleSum() != float64(3*n)/1000 {
			t.Errorf("%s: count %d, sum %v", m.GetLabel()[0], h.GetSampleCount(), h.GetSampleSum())
		}
		bounds := devmapper.StatsBounds()
		if len(h.GetBucket()) != len(bounds) {
			t.Fatalf("%d buckets", len(h.GetBucket()))
		}
		for i, b := range h.GetBucket() {
			want := uint64(0)
			if i >= 2 {
				want = 2 * n
			}
			if b.GetUpperBound() != bounds[i].Seconds() || b.GetCumulativeCount() != want {
				t.Errorf("bucket %d: %v has %d, want %d", i, b.GetUpperBound(), b.GetCumulativeCount(), want)
			}
		}
	}
	if _, found := families["nearflash_pool_capacity_bytes"]; found {
		t.Error("an unknown pool has a capacity")
	}
}

// TestReference: the reference is what is generated.
func TestReference(t *testing.T) {
	file, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(metrics.Reference(), string(file)); diff != "" {
		t.Errorf("docs/reference/metrics.md is not what hack/generate.sh makes (-generated +file):\n%s", diff)
	}
}
