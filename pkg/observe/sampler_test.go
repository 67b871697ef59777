package observe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/volume"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// machine is a kernel and a journal that a test moves about.
type machine struct {
	t       *testing.T
	dir     string
	clock   *clocktesting.FakePassiveClock
	sampler *observe.Sampler

	mu                   sync.Mutex
	status               map[string]devmapper.CacheStatus
	stats                map[string]devmapper.Stats
	volumes              []observe.Volume
	statusErr, volumeErr error
	statsErr             error
	passes               int
	// hang holds StatusAll up until its context ends.
	hang bool
	// ended are what the contexts of passes said.
	ended []error
}

func newMachine(t *testing.T) *machine {
	m := &machine{
		t: t, dir: filepath.Join(t.TempDir(), "metrics"), clock: clocktesting.NewFakePassiveClock(noon),
		status: map[string]devmapper.CacheStatus{}, stats: map[string]devmapper.Stats{},
	}
	m.restart()
	return m
}

// restart is a plugin that was killed and comes back.
func (m *machine) restart() {
	m.t.Helper()
	s, err := observe.Open(observe.Config{Kernel: m, Dir: m.dir, Now: m.clock.Now, Volumes: func() ([]observe.Volume, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return append([]observe.Volume(nil), m.volumes...), m.volumeErr
	}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.sampler = s
}

func (m *machine) StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passes++
	m.ended = append(m.ended, ctx.Err())
	if m.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if m.statusErr != nil {
		return nil, m.statusErr
	}
	return m.status, nil
}

func (m *machine) StatsAll(context.Context, string) (map[string]devmapper.Stats, error) {
	return m.stats, m.statsErr
}

func (m *machine) step(d time.Duration) { m.clock.SetTime(m.clock.Now().Add(d)) }

// cached adds a volume with a cache of 100 chunks of 128 KiB.
func (m *machine) cached(id string, activation string) {
	m.volumes = append(m.volumes, observe.Volume{
		ID: volume.ID(id), PV: "pv-" + id, Attached: true, Mode: volume.ModeWriteback, Cached: true, Activation: activation,
	})
	m.status["nf-"+id] = devmapper.CacheStatus{
		ChunkSectors: 256, CacheTotal: 100, CacheUsed: 50, MetadataBlockSectors: 8, MetadataTotal: 2048, MetadataUsed: 16,
		Features: []string{"metadata2", "writeback"},
	}
}

// hits sets what the kernel shows.
func (m *machine) hits(id string, hits, misses uint64) {
	st := m.status["nf-"+id]
	st.ReadHits, st.ReadMisses = hits, misses
	m.status["nf-"+id] = st
}

func (m *machine) dirty(id string, blocks uint64) {
	st := m.status["nf-"+id]
	st.Dirty = blocks
	m.status["nf-"+id] = st
}

func io(region, reads uint64, bucket int) devmapper.Stats {
	st := devmapper.Stats{Region: region, Read: devmapper.IOStats{Operations: reads, Sectors: 8 * reads, Nanoseconds: 1000 * reads}}
	st.Histogram[bucket] = reads
	return st
}

func (m *machine) scrape() observe.Snapshot { return m.sampler.Scrape(m.t.Context()) }

func (m *machine) one(snap observe.Snapshot, id string) observe.Sample {
	m.t.Helper()
	for _, s := range snap.Volumes {
		if string(s.ID) == id {
			return s
		}
	}
	m.t.Fatalf("volume %s is missing in %+v", id, snap)
	return observe.Sample{}
}

func (m *machine) wantHits(id string, want uint64) {
	m.t.Helper()
	if got := m.one(m.scrape(), id).Counts.ReadHits; got != want {
		m.t.Errorf("%s has %d hits, want %d", id, got, want)
	}
}

func TestSample(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.volumes = append(m.volumes, observe.Volume{ID: "plain", Attached: true, Mode: volume.ModeNone})
	m.stats = map[string]devmapper.Stats{"nf-v": io(1, 100, 4), "nf-v.data": io(2, 90, 2), "nf-v.origin": io(3, 10, 12), "nf-plain": io(4, 1, 0)}
	m.hits("v", 90, 10)
	m.scrape()
	m.step(10 * time.Second)
	m.stats["nf-v"], m.stats["nf-v.data"] = io(1, 1100, 4), io(2, 1080, 2)
	m.hits("v", 1080, 20)
	snap := m.scrape()
	if snap.Err != nil || len(snap.Volumes) != 2 || snap.Volumes[0].ID != "plain" {
		t.Fatalf("snapshot %+v", snap)
	}
	v := m.one(snap, "v")
	bounds := devmapper.StatsBounds()
	wantCache := observe.Cache{
		Health: observe.Healthy, Mode: volume.ModeWriteback, SizeBytes: 100 * 128 << 10, UsedBytes: 50 * 128 << 10,
		ChunkBytes: 128 << 10, MetadataBytes: 2048 * 4096, MetadataUsedBytes: 16 * 4096,
	}
	if *v.Cache != wantCache || !v.Healthy() {
		t.Errorf("cache %+v, want %+v", *v.Cache, wantCache)
	}
	if v.Hits.Read != (observe.Ratio{Value: 0.99, Known: true}) || v.Hits.ReadTotal.Value != 1080.0/1100 || v.Hits.Write.Known {
		t.Errorf("hits %+v", v.Hits)
	}
	if v.ReadIOPS != 100 || v.WriteIOPS != 0 || !v.RatesKnown {
		t.Errorf("rates %v, %v", v.ReadIOPS, v.WriteIOPS)
	}
	if l := v.Latency[observe.DeviceSSD]; l.P50 != bounds[2] || l.P99 != bounds[2] {
		t.Errorf("latency %+v", v.Latency)
	}
	if _, known := v.Latency[observe.DeviceOrigin]; known {
		t.Error("an idle origin has a latency")
	}
	if n := v.IO[observe.DeviceOrigin].Histogram.Operations(); n != 10 {
		t.Errorf("origin has %d operations", n)
	}
	plain := m.one(snap, "plain")
	if plain.Cache != nil || !plain.Healthy() || len(plain.IO) != 1 {
		t.Errorf("plain volume %+v", plain)
	}
}

func TestHealth(t *testing.T) {
	m := newMachine(t)
	cases := map[string]struct {
		change func(*devmapper.CacheStatus)
		want   observe.Health
	}{
		"failed":      {func(s *devmapper.CacheStatus) { *s = devmapper.CacheStatus{Fail: true} }, observe.Failed},
		"read-only":   {func(s *devmapper.CacheStatus) { s.ReadOnly, s.NeedsCheck = true, true }, observe.ReadOnly},
		"needs-check": {func(s *devmapper.CacheStatus) { s.NeedsCheck = true }, observe.NeedsCheck},
		"healthy":     {func(*devmapper.CacheStatus) {}, observe.Healthy},
	}
	for id, tc := range cases {
		m.cached(id, "a")
		st := m.status["nf-"+id]
		tc.change(&st)
		m.status["nf-"+id] = st
	}
	m.cached("missing", "a")
	delete(m.status, "nf-missing")
	snap := m.scrape()
	for id, tc := range cases {
		if s := m.one(snap, id); s.Cache.Health != tc.want || s.Healthy() != (tc.want == observe.Healthy) {
			t.Errorf("%s: %+v", id, s.Cache)
		}
	}
	if m.one(snap, "missing").Healthy() {
		t.Error("a volume whose cache is missing is healthy")
	}
}

// TestMonotonic: whatever is served is never less afterwards.
func TestMonotonic(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.hits("v", 100, 0)
	m.wantHits("v", 100)
	m.step(2 * time.Second)
	m.hits("v", 150, 0)
	m.wantHits("v", 100) // not durable yet, so not served
	m.restart()
	m.wantHits("v", 150)

	// The machine crashes: the metadata show an older count.
	m.step(10 * time.Second)
	m.hits("v", 180, 0)
	m.wantHits("v", 180)
	m.restart()
	m.volumes[0].Activation, m.volumes[0].Base = "b", devmapper.Counters{ReadHits: 90}
	m.hits("v", 95, 0)
	m.wantHits("v", 185)

	// The cache is taken down; its volume stays known and comes back warm.
	m.step(time.Second)
	m.hits("v", 99, 0)
	m.sampler.Final(t.Context(), "v")
	st := m.status["nf-v"]
	delete(m.status, "nf-v")
	m.volumes[0].Attached, m.volumes[0].Activation = false, ""
	m.restart()
	m.step(time.Hour)
	m.wantHits("v", 189)
	m.volumes[0].Attached, m.volumes[0].Activation, m.volumes[0].Base = true, "c", devmapper.Counters{ReadHits: 99}
	st.ReadHits = 100
	m.status["nf-v"] = st
	m.step(10 * time.Second)
	m.wantHits("v", 190)

	// Evicted: the volume is not known any more.
	m.volumes = nil
	m.step(10 * time.Second)
	if snap := m.scrape(); len(snap.Volumes) != 0 {
		t.Errorf("volumes %+v", snap.Volumes)
	}
	m.restart()
	m.cached("v", "d")
	m.hits("v", 5, 0)
	m.step(10 * time.Second)
	m.wantHits("v", 5)
}

// What Final saw is served later, too, although nobody scraped it.
func TestFinalIsDurable(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.stats["nf-v"] = io(1, 10, 0)
	m.hits("v", 10, 0)
	m.sampler.Final(t.Context(), "v")
	m.restart()
	m.stats["nf-v"] = io(2, 1, 0) // made anew
	v := m.one(m.scrape(), "v")
	if v.Counts.ReadHits != 10 || v.IO[observe.DeviceVolume].Read.Operations != 11 {
		t.Errorf("%+v", v)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	m.hang = true
	began := time.Now()
	m.sampler.Final(ctx, "v")
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("Final took %v", took)
	}
}

func TestSharedPasses(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { m.scrape() })
	}
	wg.Wait()
	m.step(999 * time.Millisecond)
	m.scrape()
	if m.passes != 1 {
		t.Errorf("%d passes within a second", m.passes)
	}
	m.step(time.Millisecond)
	m.scrape()
	if m.passes != 2 {
		t.Errorf("%d passes after it", m.passes)
	}
}

func TestDirtySince(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	since := func() time.Time { return m.one(m.scrape(), "v").Cache.DirtySince }
	want := func(what string, want time.Time) {
		t.Helper()
		if got := since(); !got.Equal(want) {
			t.Errorf("%s: dirty since %v, want %v", what, got, want)
		}
	}
	want("clean", time.Time{})
	m.step(time.Minute)
	want("still clean", time.Time{})
	m.step(time.Minute)
	m.dirty("v", 3)
	want("dirty", noon.Add(time.Minute))
	m.step(time.Hour)
	m.restart()
	m.dirty("v", 4)
	want("after a restart", noon.Add(time.Minute))
	if got := m.sampler.DirtySince(t.Context(), "v"); !got.Equal(noon.Add(time.Minute)) {
		t.Errorf("asked for: dirty since %v", got)
	}
	swapped := m.status["nf-v"]
	m.status["nf-v"] = devmapper.CacheStatus{ChunkSectors: 256, CacheTotal: 100, Features: []string{"metadata2", "writethrough"}}
	m.step(time.Minute)
	m.scrape()
	m.status["nf-v"] = swapped
	m.step(time.Minute)
	want("after a swap that was seen half way", noon.Add(time.Minute))
	m.dirty("v", 0)
	m.step(time.Minute)
	want("flushed", time.Time{})
	// A week without the volume does not make its next write a week old.
	m.volumes[0].Attached = false
	delete(m.status, "nf-v")
	m.step(7 * 24 * time.Hour)
	m.scrape()
	back := m.clock.Now()
	m.step(time.Minute)
	m.cached("v", "b")
	m.volumes = m.volumes[1:]
	m.dirty("v", 1)
	want("back", back)
}

// TestPartial: what cannot be read does not hide the rest.
func TestPartial(t *testing.T) {
	m := newMachine(t)
	for i := range 3 {
		m.cached(fmt.Sprintf("v%d", i), "a")
		m.hits(fmt.Sprintf("v%d", i), 10, 0)
	}
	m.scrape()
	m.step(10 * time.Second)
	m.status["nf-v1"] = devmapper.CacheStatus{Fail: true, Unparsed: "what is this"}
	m.hits("v2", 20, 0)
	snap := m.scrape()
	if snap.Err == nil || !strings.Contains(snap.Err.Error(), "v1") || !strings.Contains(snap.Err.Error(), "what is this") {
		t.Errorf("error %v", snap.Err)
	}
	if m.one(snap, "v1").Counts.ReadHits != 10 || m.one(snap, "v2").Counts.ReadHits != 20 {
		t.Errorf("%+v", snap.Volumes)
	}
	// A journal that is partly unreadable makes nothing forgotten.
	m.step(10 * time.Second)
	all := m.volumes
	m.volumes, m.volumeErr = all[:2], journal.ErrCorrupt
	if snap := m.scrape(); !errors.Is(snap.Err, journal.ErrCorrupt) || len(snap.Volumes) != 2 {
		t.Errorf("%+v", snap)
	}
	m.volumes, m.volumeErr = all, nil
	m.step(10 * time.Second)
	m.wantHits("v2", 20)
	// dmsetup fails: nothing is said of the caches' health, statistics go on.
	m.step(10 * time.Second)
	m.statusErr = errors.New("dmsetup failed")
	m.stats["nf-v2"] = io(1, 5, 0)
	snap = m.scrape()
	if v := m.one(snap, "v2"); snap.Err == nil || !v.Healthy() || v.IO[observe.DeviceVolume].Read.Operations != 5 {
		t.Errorf("%+v, %v", v, snap.Err)
	}
}

// A dmsetup that waits for an SSD is not joined by more of them; statistics are
// read all the same.
func TestHungStatus(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.hits("v", 10, 0)
	m.scrape()
	m.step(10 * time.Second)
	m.statusErr = fmt.Errorf("dmsetup: %w", context.DeadlineExceeded)
	m.passes = 0
	for i := range 11 {
		m.stats["nf-v"] = io(1, uint64(i), 0)
		snap := m.scrape()
		v := m.one(snap, "v")
		if !errors.Is(snap.Err, context.DeadlineExceeded) || !v.Healthy() || v.IO[observe.DeviceVolume].Read.Operations != uint64(i) {
			t.Errorf("%+v, %v", v, snap.Err)
		}
		m.step(10 * time.Second)
	}
	if m.passes != 2 {
		t.Errorf("dmsetup was started %d times in 110 seconds, want 2", m.passes)
	}
	m.statusErr = nil
	m.step(time.Minute)
	if snap := m.scrape(); snap.Err != nil {
		t.Error(snap.Err)
	}
}

func TestCorruptTotals(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.hits("v", 10, 0)
	m.scrape()
	file := filepath.Join(m.dir, "totals.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.restart()
	m.step(10 * time.Second)
	m.wantHits("v", 10) // what the kernel shows
	if b, err := os.ReadFile(file + ".corrupt"); err != nil || string(b) != "{" {
		t.Errorf("the evidence: %q, %v", b, err)
	}
}

// A disk that takes no totals does not keep the figures from being served.
func TestUnsaved(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.scrape()
	if err := os.RemoveAll(m.dir); err != nil {
		t.Fatal(err)
	}
	m.hits("v", 10, 0)
	m.step(10 * time.Second)
	snap := m.scrape()
	if snap.Err == nil || m.one(snap, "v").Counts.ReadHits != 10 {
		t.Errorf("%+v", snap)
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m.step(10 * time.Second)
	if snap := m.scrape(); snap.Err != nil {
		t.Error(snap.Err)
	}
}

// TestIdleWritesNothing: without I/O the file is left alone.
func TestIdleWritesNothing(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.scrape()
	file := filepath.Join(m.dir, "totals.json")
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		m.step(time.Minute)
		m.scrape()
	}
	after, err := os.Stat(file)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was replaced: %v", err)
	}
}

func TestRunSavesAtTheEnd(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.hits("v", 10, 0)
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan observe.Snapshot, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.sampler.Run(ctx, func(_ context.Context, s observe.Snapshot) { seen <- s })
	}()
	if s := <-seen; m.one(s, "v").Counts.ReadHits != 10 {
		t.Errorf("%+v", s)
	}
	cancel()
	<-done
	b, err := os.ReadFile(filepath.Join(m.dir, "totals.json"))
	if err != nil || !json.Valid(b) || !strings.Contains(string(b), `"rh":10`) {
		t.Errorf("%s, %v", b, err)
	}
}
