//go:build kernel

package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	sectorsPerMiB = 2048
	// meteredChunk is 64 KiB.
	meteredChunk = 128
	blockBytes   = 4096
)

// metered is a cache over linear devices, with the names that nearflash gives.
type metered struct {
	t   *testing.T
	run hostexec.Runner
	dm  devmapper.Client
	// devs are "major:minor" by name.
	devs  map[string]string
	clock *clocktesting.FakePassiveClock
	dir   string
	vol   observe.Volume
	s     *observe.Sampler
}

func newMetered(t *testing.T, mode devmapper.CacheMode) *metered {
	m := &metered{
		t: t, run: hostexec.New(), devs: map[string]string{}, dir: filepath.Join(t.TempDir(), "metrics"),
		clock: clocktesting.NewFakePassiveClock(time.Now()),
		vol:   observe.Volume{ID: "m", PV: "pv-m", Attached: true, Mode: volume.ModeWritethrough, Cached: true},
	}
	m.dm = devmapper.New(m.run)
	t.Cleanup(func() {
		for _, name := range []string{"nf-m", "nf-m.origin", "nf-m.data", "m-meta"} {
			if err := m.dm.Remove(context.Background(), name); err != nil {
				t.Error(err) // and the others all the same
			}
		}
	})
	zero, err := os.OpenFile(ssdTwo, os.O_WRONLY, 0)
	mustPass(t, "open", err)
	_, err = zero.Write(make([]byte, mib))
	mustPass(t, "make the metadata blank", err)
	mustPass(t, "close", zero.Close())
	m.linear("nf-m.origin", storageDisk, 128)
	m.linear("nf-m.data", ssdOne, 64)
	m.linear("m-meta", ssdTwo, 8)
	m.create(mode)
	for _, name := range []string{"nf-m", "nf-m.data", "nf-m.origin"} {
		mustPass(t, "measure", m.dm.StatsCreate(t.Context(), name))
		mustPass(t, "measure again", m.dm.StatsCreate(t.Context(), name))
	}
	m.open()
	return m
}

func (m *metered) linear(name, device string, mibs uint64) {
	m.t.Helper()
	var st unix.Stat_t
	mustPass(m.t, "stat", unix.Stat(device, &st))
	on := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	info, err := m.dm.Create(m.t.Context(), name, "NEARFLASH-test-"+name, devmapper.Table{{Length: mibs * sectorsPerMiB, Target: devmapper.LinearTarget{Device: on}}})
	mustPass(m.t, "create", err)
	m.devs[name] = info.DevNo()
}

func (m *metered) table(mode devmapper.CacheMode, mibs uint64) devmapper.Table {
	return devmapper.Table{{Length: mibs * sectorsPerMiB, Target: devmapper.CacheTarget{
		Metadata: m.devs["m-meta"], Data: m.devs["nf-m.data"], Origin: m.devs["nf-m.origin"], ChunkSectors: meteredChunk, Mode: mode, Policy: devmapper.PolicySMQ,
		MigrationThreshold: devmapper.MigrationThreshold(meteredChunk),
	}}}
}

func (m *metered) create(mode devmapper.CacheMode) {
	m.t.Helper()
	_, err := m.dm.Create(m.t.Context(), "nf-m", "NEARFLASH-test-top", m.table(mode, 128))
	mustPass(m.t, "create", err)
	m.activate()
}

// swap loads another table, which sets the cache's counters back.
func (m *metered) swap(mode devmapper.CacheMode, mibs uint64) {
	m.t.Helper()
	mustPass(m.t, "load", m.dm.Load(m.t.Context(), "nf-m", m.table(mode, mibs)))
	mustPass(m.t, "resume", m.dm.Resume(m.t.Context(), "nf-m"))
}

// activate is what the journal says after a table became live.
func (m *metered) activate() {
	m.vol.Activation, m.vol.Base = m.vol.Activation+"+", m.status().Counters()
}

func (m *metered) status() devmapper.CacheStatus {
	m.t.Helper()
	all, err := m.dm.StatusAll(m.t.Context())
	mustPass(m.t, "status", err)
	return all["nf-m"]
}

// open is a plugin that starts, after another was killed if there was one.
func (m *metered) open() {
	m.t.Helper()
	var err error
	m.s, err = observe.Open(observe.Config{
		Kernel: m.dm, Dir: m.dir, Now: m.clock.Now,
		Volumes: func() ([]observe.Volume, error) { return []observe.Volume{m.vol}, nil },
	})
	mustPass(m.t, "open the totals", err)
}

func (m *metered) sample() observe.Sample {
	m.t.Helper()
	m.clock.SetTime(m.clock.Now().Add(10 * time.Second))
	snap := m.s.Scrape(m.t.Context())
	if snap.Err != nil || len(snap.Volumes) != 1 {
		m.t.Fatalf("snapshot %+v", snap)
	}
	return snap.Volumes[0]
}

// access reads or writes a block of 4 KiB in each chunk from first to last.
func (m *metered) access(first, last int, write bool) {
	m.t.Helper()
	f := openDirect(m.t, "/dev/mapper/nf-m")
	defer func() { _ = f.Close() }()
	buf := aligned(blockBytes)
	for i := first; i < last; i++ {
		var err error
		if at := int64(i) * meteredChunk * 512; write {
			_, err = f.WriteAt(buf, at)
		} else {
			_, err = f.ReadAt(buf, at)
		}
		mustPass(m.t, "access", err)
	}
}

// during returns what was counted before and after f, and by nobody else: udev
// reads a device that is new or was opened for writing.
func (m *metered) during(f func()) (before, after observe.Sample) {
	m.t.Helper()
	udevadm := func(args ...string) {
		m.t.Helper()
		_, err := m.run.Run(context.Background(), hostexec.Command("udevadm", args...))
		mustPass(m.t, "udevadm", err)
	}
	udevadm("settle")
	udevadm("control", "--stop-exec-queue")
	defer udevadm("control", "--start-exec-queue")
	m.rest()
	before = m.sample()
	f()
	m.rest()
	return before, m.sample()
}

// rest waits until the kernel copies nothing any more.
func (m *metered) rest() {
	m.t.Helper()
	before, same := m.status(), 0
	for range 400 {
		time.Sleep(250 * time.Millisecond)
		now := m.status()
		if same++; now.Dirty > 0 || now.Promotions != before.Promotions || now.CacheUsed != before.CacheUsed {
			same = 0
		}
		if same > 1 { // once, a busy machine may only not have come to it
			return
		}
		before = now
	}
	m.t.Fatalf("the cache does not come to rest: %+v", before)
}

// fill caches chunks: with writeback, a chunk that is written as a whole is
// promoted at once.
func (m *metered) fill(first, last int) {
	m.t.Helper()
	write(m.t, "/dev/mapper/nf-m", pattern(1, int64(last-first)*meteredChunk*512), int64(first)*meteredChunk*512, true)
	m.rest()
	if st := m.status(); st.CacheUsed < uint64(last-first) {
		m.t.Fatalf("%d chunks are cached, want %d", st.CacheUsed, last-first)
	}
}

// grown compares what two samples counted in between.
func (m *metered) grown(before, after observe.Sample, want map[string]uint64) {
	m.t.Helper()
	values := func(s observe.Sample) map[string]uint64 {
		v := map[string]uint64{
			"read hits": s.Counts.ReadHits, "read misses": s.Counts.ReadMisses, "write hits": s.Counts.WriteHits, "write misses": s.Counts.WriteMisses,
		}
		for d, io := range s.IO {
			v[string(d)+" reads"], v[string(d)+" writes"] = io.Read.Operations, io.Write.Operations
			v[string(d)+" histogram"] = io.Histogram.Operations()
			v[string(d)+" sectors"] = io.Read.Sectors + io.Write.Sectors
		}
		return v
	}
	a, b := values(before), values(after)
	for what, n := range want {
		if got := b[what] - a[what]; got != n {
			m.t.Errorf("%s: %d more, want %d", what, got, n)
		}
	}
}

// TestKernelMetrics: a known access pattern gives exact counters, which nothing
// sets back.
func TestKernelMetrics(t *testing.T) {
	m := newMetered(t, devmapper.Writeback)
	// Chunks that were never touched miss, each once.
	a, b := m.during(func() { m.access(1000, 1200, false) })
	m.grown(a, b, map[string]uint64{
		"read misses": 200, "read hits": 0, "write hits": 0, "write misses": 0, "volume reads": 200, "volume writes": 0, "volume histogram": 200,
		"volume sectors": 200 * blockBytes / 512,
	})
	m.fill(0, 100)
	m.swap(devmapper.Writethrough, 128)
	m.activate()
	a, b = m.during(func() { m.access(0, 100, false) })
	m.grown(a, b, map[string]uint64{
		"read hits": 100, "read misses": 0, "volume reads": 100, "volume histogram": 100, "ssd reads": 100, "ssd writes": 0, "ssd histogram": 100,
		"origin reads": 0, "origin writes": 0, "origin histogram": 0,
	})
	if l := b.Latency[observe.DeviceVolume]; !l.Known || l.P50 > l.P99 || b.ReadIOPS == 0 {
		t.Errorf("latency %+v, %v reads/s", l, b.ReadIOPS)
	}
	// A request over several chunks is an access to each.
	a, b = m.during(func() { check(t, "/dev/mapper/nf-m", pattern(1, 100*meteredChunk*512)[:mib], 0) })
	m.grown(a, b, map[string]uint64{"read hits": 16, "read misses": 0, "volume reads": 16, "volume sectors": uint64(mib) / 512})
	// Writethrough: a write that hits goes to both devices.
	a, b = m.during(func() { m.access(0, 100, true) })
	m.grown(a, b, map[string]uint64{
		"write hits": 100, "write misses": 0, "volume writes": 100, "volume histogram": 100, "ssd writes": 100, "ssd histogram": 100,
		"origin writes": 100, "origin histogram": 100,
	})
	m.keepsCounting()
}

// keepsCounting does to the volume what sets the kernel's counters back.
func (m *metered) keepsCounting() {
	t := m.t
	last := m.sample()
	// then checks that nothing was lost or made up since the step before, and
	// that the volume is counted on.
	then := func(what string) {
		t.Helper()
		a, b := m.during(func() { m.access(0, 50, false) })
		if a.Counts.ReadHits < last.Counts.ReadHits || a.IO[observe.DeviceVolume].Read.Operations < last.IO[observe.DeviceVolume].Read.Operations {
			t.Errorf("%s set counters back: %+v, %+v", what, last.Counts, a.Counts)
		}
		// What udev reads meanwhile is a few blocks.
		if n := a.Counts.ReadHits - last.Counts.ReadHits; n > 200 {
			t.Errorf("%s made up %d hits", what, n)
		}
		m.grown(a, b, map[string]uint64{"read hits": 50, "read misses": 0, "volume reads": 50})
		last = b
	}
	m.open() // the plugin was killed
	then("a kill of the plugin")

	before := m.status().ReadHits
	m.swap(devmapper.Writeback, 128)
	if now := m.status().ReadHits; now >= before {
		t.Errorf("the kernel went on counting after a swap (%d, %d): what this rests on has changed", before, now)
	}
	m.activate()
	then("a change of the mode")
	m.swap(devmapper.Writethrough, 128)
	m.activate()
	m.open()
	then("a change of the mode and a kill of the plugin")

	// A swap that the journal never tells of gives no count of its own. The second
	// one would: the kernel hands on what the table before the last had counted.
	for _, mode := range []devmapper.CacheMode{devmapper.Writeback, devmapper.Writethrough} {
		m.swap(mode, 128)
		then("a swap that is not told")
	}

	// Unstage, and stage again.
	m.s.Final(t.Context(), m.vol.ID)
	m.mustRemove("nf-m")
	m.vol.Attached, m.vol.Activation = false, ""
	m.open()
	if away := m.sample(); away.Counts.ReadHits < last.Counts.ReadHits {
		t.Errorf("%d hits while it is away, before %d", away.Counts.ReadHits, last.Counts.ReadHits)
	}
	m.vol.Attached, m.vol.Activation = true, "again"
	m.create(devmapper.Writethrough)
	mustPass(t, "measure", m.dm.StatsCreate(t.Context(), "nf-m"))
	then("a new stage")

	// What lies beyond the size at which the region was made is counted too.
	table, err := m.dm.Table(t.Context(), "nf-m.origin")
	mustPass(t, "table", err)
	table[0].Length = 256 * sectorsPerMiB
	mustPass(t, "load", m.dm.Load(t.Context(), "nf-m.origin", table))
	mustPass(t, "resume", m.dm.Resume(t.Context(), "nf-m.origin"))
	m.swap(devmapper.Writethrough, 256)
	m.activate()
	a, b := m.during(func() { m.access(3000, 3050, false) })
	// A chunk beside others that were read may be promoted at once, which reads it from the origin once more.
	promoted := b.Counts.Promotions - a.Counts.Promotions
	m.grown(a, b, map[string]uint64{"read misses": 50, "volume reads": 50, "volume histogram": 50, "origin reads": 50 + promoted})
}

func (m *metered) mustRemove(name string) {
	m.t.Helper()
	mustPass(m.t, "remove", m.dm.Remove(context.Background(), name))
}
