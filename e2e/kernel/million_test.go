//go:build kernel

package kernel

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// smallestChunk is the kernel's; a million of them are 30 GiB, which the guest's
	// sparse disks hold.
	smallestChunk = devmapper.MinChunkSectors * devmapper.SectorSize
	// fewChunks is what a stage with a million is compared with.
	fewChunks = 8_000
	// containerBytes is the chart's limit of the node plugin's memory.
	containerBytes = 512 << 20
)

// TestKernelMillion moves a cache with as many chunks as a cache may have, and lets its
// source die: everything works, within the memory that the chart gives the plugin. How
// much longer it takes than with a small cache is in docs/benchmarks.md.
func TestKernelMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many minutes and large disks: make test-million")
	}
	m := newMachine(t)
	few := m.moveChunks(fewChunks, everyChunk)
	for name, holes := range map[string]int{"all mapped": everyChunk, "every second mapped": everySecond} {
		many := m.moveChunks(devmapper.MaxCacheBlocks, holes)
		t.Logf("%s: the stage of a move takes %.1f times as long as with %d chunks", name, float64(many.stage)/float64(few.stage), fewChunks)
		for what, peak := range map[string]int64{"stage": many.stagePeak, "death of the source": many.deathPeak} {
			if peak > containerBytes {
				t.Errorf("%s: %s: the plugin had %d MiB of memory, the chart allows %d", name, what, peak/mib, int64(containerBytes)/mib)
			}
		}
	}
}

// TestKernelBigTable: a table with more lines than dmsetup is asked for is what the kernel
// has afterwards, in a new device and in one that is swapped.
func TestKernelBigTable(t *testing.T) {
	const name, lines = "nf-bigtable", 150_000
	ctx, dm, m := t.Context(), devmapper.New(hostexec.New()), &machine{t: t, run: hostexec.New()}
	devno := func() string {
		var st unix.Stat_t
		mustPass(t, "stat", unix.Stat(ssdOne, &st))
		return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}()
	table := func(first uint64) devmapper.Table {
		out := make(devmapper.Table, lines)
		for i := range out {
			out[i] = devmapper.Line{Start: uint64(i), Length: 1, Target: devmapper.LinearTarget{Device: devno, Offset: first + uint64(2*i)}}
		}
		return out
	}
	_, err := dm.CreateReadOnly(ctx, name, "NEARFLASH-bigtable", table(0))
	mustPass(t, "create", err)
	t.Cleanup(func() { mustPass(t, "remove", dm.Remove(context.Background(), name)) })
	want := func(first uint64) {
		t.Helper()
		lastLine := fmt.Sprintf("%d 1 linear %s %d", lines-1, devno, first+2*(lines-1))
		if got := strings.Split(strings.TrimSpace(m.must("dmsetup", "table", name)), "\n"); len(got) != lines || got[lines-1] != lastLine {
			t.Errorf("the kernel has %d lines, the last is %q; want %d and %q", len(got), got[len(got)-1], lines, lastLine)
		}
		if below, err := dm.Deps(ctx, name); err != nil || !slices.Equal(below, []string{devno}) {
			t.Errorf("it rests on %q (%v), want %s", below, err, devno)
		}
	}
	want(0)
	mustPass(t, "load", dm.LoadReadOnly(ctx, name, table(1)))
	mustPass(t, "resume", dm.Resume(ctx, name))
	want(1)
}

// How far the mapped chunks of a cache are apart.
const (
	everyChunk  = 1
	everySecond = 2
)

// chunkMove is what a move cost: times, and the most memory that the process of both
// plugins and of the storage server had.
type chunkMove struct {
	stage, death         time.Duration
	stagePeak, deathPeak int64
}

// moveChunks moves a cache of n chunks, one of every `apart` mapped to anywhere in the
// origin, and then takes its source away.
func (m *machine) moveChunks(n int64, apart int) chunkMove {
	t := m.t
	size := (n + n/4) * smallestChunk
	spec := cached(volume.ModeWriteback, n*smallestChunk)
	spec.ChunkBytes = smallestChunk
	v := newMoversOf(t, m, fmt.Sprintf("chunks-%d-%d", n, apart), size, spec)
	v.stage()
	v.unstage()
	restored := v.scatter(apart)
	if apart == everyChunk {
		// As the flush of such a cache would have noted.
		e, err := v.a.Journal.Load(string(v.req.ID))
		mustPass(t, "journal", err)
		e.Full = true
		mustPass(t, "journal", v.a.Journal.Save(string(v.req.ID), e))
	}
	var out chunkMove

	v.publishTo(v.b, otherName)
	resetPeak(t)
	began := time.Now()
	v.stage()
	out.stage, out.stagePeak = time.Since(began), peakMemory(t)
	if e, err := v.b.Journal.Load(string(v.req.ID)); err != nil || e.Hydration == nil || e.Hydration.Peer == nil {
		t.Fatalf("the cache did not come from the other node: %+v, %v", e, err)
	}
	if st, found := v.cache(); !found || st.CacheUsed != restored {
		t.Errorf("%d chunks came along, %d were there", st.CacheUsed, restored)
	}

	stop := v.b.runHydrations(t.Context())
	resetPeak(t)
	began = time.Now()
	mustPass(t, "loss", v.a.Exporter.Unexport(t.Context(), string(v.req.ID)))
	v.waitRemapped()
	out.death, out.deathPeak = time.Since(began), peakMemory(t)
	check(t, v.device(), make([]byte, mib), 0)
	stop()
	t.Logf("%d chunks, one of %d mapped: stage of the move %v, memory at most %d MiB; from the death of the source to its replacement %v, %d MiB",
		n, apart, out.stage.Round(time.Millisecond), out.stagePeak/mib, out.death.Round(time.Millisecond), out.deathPeak/mib)
	v.ask(mode(volume.ModeNone))
	v.unstage()
	v.remove()
	mustPass(t, "repair", v.a.Repair(t.Context()))
	mustPass(t, "repair", v.b.Repair(t.Context()))
	m.dropPool(onOneSSD())
	m.try("vgremove", "--yes", "--force", pool.VolumeGroup(otherName))
	m.try("pvremove", "--yes", ssdTwo)
	return out
}

// scatter gives the retained cache of the first node a map whose neighbours in the cache
// are far apart in the origin, so that nothing can be described in ranges, and returns
// the number of mapped chunks. No data are needed: what was never written is zero.
func (v *movers) scatter(apart int) uint64 {
	t := v.m.t
	t.Helper()
	ctx := t.Context()
	vg := pool.VolumeGroup(nodeName)
	meta := string(v.req.ID) + ".meta"
	mustPass(t, "activate", v.a.LVM.Activate(ctx, vg, meta))
	lvs, err := v.a.LVM.LVs(ctx, vg)
	mustPass(t, "lvs", err)
	device := ""
	for _, lv := range lvs {
		if lv.Name == meta {
			device = lv.DevPath()
		}
	}
	tools := cachetools.Tools{Run: v.m.run}
	file := filepath.Join(t.TempDir(), "map.xml")
	mustPass(t, "dump", tools.Dump(ctx, device, file))
	f, err := os.Open(file)
	mustPass(t, "open", err)
	was, err := cachemap.Read(f)
	mustPass(t, "read", err)
	mustPass(t, "close", f.Close())

	// A step that shares no factor with the origin's length reaches each block once.
	blocks := uint64(v.size) / smallestChunk
	step := blocks/2 + 1
	for gcd(step, blocks) != 1 {
		step++
	}
	was.Entries = nil
	for c := uint64(0); c < was.CacheBlocks; c += uint64(apart) {
		was.Entries = append(was.Entries, cachemap.Entry{Cache: c, Origin: c * step % blocks, Level: uint32(c % 64)})
	}
	f, err = os.Create(file)
	mustPass(t, "create", err)
	mustPass(t, "write", was.WriteXML(f))
	mustPass(t, "close", f.Close())
	began := time.Now()
	mustPass(t, "restore", tools.Restore(ctx, file, device))
	took := time.Since(began)
	began = time.Now()
	mustPass(t, "dump", tools.Dump(ctx, device, file))
	t.Logf("%d mappings: cache_restore %v, cache_dump %v", len(was.Entries), took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return uint64(len(was.Entries))
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// waitRemapped waits until the origin has taken the dead source's place.
func (v *movers) waitRemapped() {
	t := v.m.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		e, err := v.b.Journal.Load(string(v.req.ID))
		mustPass(t, "journal", err)
		if e.Hydration == nil || e.Hydration.Peer == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal("the origin does not take the place of the source")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// resetPeak begins to note anew how much memory this process has at most.
func resetPeak(t *testing.T) {
	t.Helper()
	mustPass(t, "reset the peak", os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o200))
}

// peakMemory is the most that this process had since then, in bytes.
func peakMemory(t *testing.T) int64 {
	t.Helper()
	f, err := os.Open("/proc/self/status")
	mustPass(t, "status", err)
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			mustPass(t, "peak", err)
			return n << 10
		}
	}
	t.Fatal("the kernel does not say how much memory the process had at most")
	return 0
}
