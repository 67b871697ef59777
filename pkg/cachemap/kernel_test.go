//go:build kernel

package cachemap_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
)

const (
	mib        = 1 << 20
	mibSectors = mib / devmapper.SectorSize

	// chunk is three regions: not a power of two.
	chunk      = 192
	chunkBytes = chunk * devmapper.SectorSize
	// originSectors ends inside a chunk.
	originSectors = 96*mibSectors + 40
	cacheBlocks   = 300
	// dataSectors has more than whole chunks, and ends inside a region.
	dataSectors = cacheBlocks*chunk + 104

	garbage = 0xa5
	dmWait  = 2 * time.Minute
)

var ssd, originDisk = guest.Disk("b"), guest.Disk("d")

func TestMain(m *testing.M) { os.Exit(guest.Main(m)) }

// machine has the parts of the guest's disks that a cache is made of.
type machine struct {
	t       *testing.T
	run     hostexec.Runner
	dm      devmapper.Client
	tools   cachetools.Tools
	content []byte // of the origin

	origin, meta, meta2, data, hydration devmapper.Info
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	for _, d := range []string{ssd, originDisk} {
		if _, err := os.Stat(d); err != nil || os.Geteuid() != 0 {
			t.Fatalf("run as root in a throw-away guest with %s, whose content is destroyed: %v", d, err)
		}
	}
	run := hostexec.New()
	m := &machine{t: t, run: run, dm: devmapper.New(run), tools: cachetools.Tools{Run: run}}
	m.meta = m.part("test-meta", ssd, 0, 8*mibSectors)
	m.meta2 = m.part("test-meta2", ssd, 8*mibSectors, 8*mibSectors)
	m.hydration = m.part("test-fill", ssd, 16*mibSectors, 4*mibSectors)
	m.data = m.part("test-disk", ssd, 20*mibSectors, dataSectors)
	m.origin = m.part("test-origin", originDisk, 0, originSectors)
	for _, d := range []devmapper.Info{m.meta, m.meta2, m.hydration} {
		m.ok(blockdev.ZeroHead(t.Context(), d.DevPath(), 8*mib))
	}
	m.content = make([]byte, originSectors*devmapper.SectorSize)
	_, _ = rand.NewChaCha8([32]byte{4}).Read(m.content) // never fails
	m.write(m.origin, m.content)
	m.write(m.data, bytes.Repeat([]byte{garbage}, dataSectors*devmapper.SectorSize))
	return m
}

func (m *machine) ok(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// device makes a device that is removed at the end of the test.
func (m *machine) device(name string, t devmapper.Table) devmapper.Info {
	m.t.Helper()
	info, err := m.dm.Create(m.t.Context(), name, "TEST-"+name, t)
	m.ok(err)
	m.t.Cleanup(func() { m.remove(name) })
	// Whoever looks at new devices shall not be counted among the test's reads.
	_, _ = m.run.Run(m.t.Context(), hostexec.Command("udevadm", "settle", "-t", "120"))
	return info
}

func (m *machine) remove(name string) {
	m.t.Helper()
	// At the end of a test its context has ended.
	if err := m.dm.Remove(context.WithoutCancel(m.t.Context()), name); err != nil {
		m.t.Error(err)
	}
}

func (m *machine) part(name, disk string, start, sectors uint64) devmapper.Info {
	m.t.Helper()
	var st unix.Stat_t
	m.ok(unix.Stat(disk, &st))
	devno := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	return m.device(name, devmapper.Table{{Length: sectors, Target: devmapper.LinearTarget{Device: devno, Offset: start}}})
}

// open opens past the page cache.
func (m *machine) open(d devmapper.Info, flags int) *os.File {
	m.t.Helper()
	f, err := blockdev.Open(d.DevPath(), flags|unix.O_DIRECT)
	m.ok(err)
	m.t.Cleanup(func() { _ = f.Close() })
	return f
}

func (m *machine) write(d devmapper.Info, content []byte) {
	m.t.Helper()
	f, err := blockdev.Open(d.DevPath(), unix.O_WRONLY)
	m.ok(err)
	_, err = f.WriteAt(content, 0)
	m.ok(errors.Join(err, f.Sync(), f.Close()))
}

// buffer is aligned for O_DIRECT.
func (m *machine) buffer(n int) []byte {
	m.t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	m.ok(err)
	m.t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// cache makes a cache. The cleaner policy promotes nothing, whoever reads.
func (m *machine) cache(meta, data devmapper.Info, p devmapper.CachePolicy) devmapper.Info {
	m.t.Helper()
	return m.device("test-cache", devmapper.Table{{Length: originSectors, Target: devmapper.CacheTarget{
		Metadata: meta.DevNo(), Data: data.DevNo(), Origin: m.origin.DevNo(), ChunkSectors: chunk,
		Mode: devmapper.Writethrough, Policy: p, NoDiscardPassdown: true,
	}}})
}

func (m *machine) status() devmapper.CacheStatus {
	m.t.Helper()
	all, err := m.dm.StatusAll(m.t.Context())
	m.ok(err)
	s, found := all["test-cache"]
	if !found || s.Fail {
		m.t.Fatalf("status of the cache: %+v", s)
	}
	return s
}

func (m *machine) clone() devmapper.CloneStatus {
	m.t.Helper()
	all, err := m.dm.CloneStatusAll(m.t.Context())
	m.ok(err)
	s, found := all["test-data"]
	if !found || s.Fail {
		m.t.Fatalf("status of the clone: %+v", s)
	}
	return s
}

// warm reads until blocks of the cache are in use.
func (m *machine) warm(d devmapper.Info, blocks uint64) {
	m.t.Helper()
	f, buf, r := m.open(d, unix.O_RDONLY), m.buffer(4096), random(5)
	for end := time.Now().Add(5 * time.Minute); m.status().CacheUsed < blocks; {
		if time.Now().After(end) {
			m.t.Fatalf("%+v", m.status())
		}
		for range 2000 {
			// The smaller, the hotter.
			block := r.IntN(1 + r.IntN(200))
			_, err := f.ReadAt(buf, int64(block)*chunkBytes+int64(r.IntN(chunkBytes/4096))*4096)
			m.ok(err)
		}
	}
	m.ok(f.Close())
}

func (m *machine) dump(meta devmapper.Info) cachemap.Map {
	m.t.Helper()
	file := filepath.Join(m.t.TempDir(), "map.xml")
	m.ok(m.tools.Dump(m.t.Context(), meta.DevPath(), file))
	f, err := os.Open(file)
	m.ok(err)
	got, err := cachemap.Read(f)
	m.ok(errors.Join(err, f.Close()))
	return got
}

func (m *machine) restore(c cachemap.Map, meta devmapper.Info) {
	m.t.Helper()
	f, err := os.CreateTemp(m.t.TempDir(), "map")
	m.ok(err)
	m.ok(errors.Join(c.WriteXML(f), f.Close()))
	m.ok(m.tools.Restore(m.t.Context(), f.Name(), meta.DevPath()))
	r, err := os.Open(meta.DevPath())
	m.ok(err)
	sb, err := devmapper.ReadCacheSuperblock(r)
	m.ok(errors.Join(err, r.Close()))
	if !sb.CleanShutdown || sb.NeedsCheck || sb.FormatVersion != 2 || sb.PolicyName != "smq" || sb.HintSize != 4 {
		m.t.Fatalf("superblock: %+v", sb)
	}
}

// readAll reads every mapped chunk through the cache, which must have them all.
func (m *machine) readAll(d devmapper.Info, c cachemap.Map) {
	m.t.Helper()
	f, buf := m.open(d, unix.O_RDONLY), m.buffer(chunkBytes)
	before := m.status()
	for _, e := range c.Entries {
		from := int(e.Origin) * chunkBytes
		want := m.content[from:min(from+chunkBytes, len(m.content))]
		_, err := f.ReadAt(buf[:len(want)], int64(from))
		m.ok(err)
		if !bytes.Equal(buf[:len(want)], want) {
			m.t.Fatalf("cache block %d is not what origin block %d has", e.Cache, e.Origin)
		}
	}
	m.ok(f.Close())
	after := m.status()
	if after.CacheUsed != before.CacheUsed || after.CacheUsed < uint64(len(c.Entries)) || after.ReadHits-before.ReadHits < uint64(len(c.Entries)) ||
		after.ReadMisses != before.ReadMisses || after.Promotions != before.Promotions || after.Dirty != 0 {
		m.t.Errorf("before: %+v\nafter: %+v\n%d blocks are mapped", before, after, len(c.Entries))
	}
}

// The kernel takes restored metadata as its own: no block is lost, the hints stay, and
// everything that is mapped is a hit.
func TestKernelRestoredMetadata(t *testing.T) {
	m := newMachine(t)
	m.warm(m.cache(m.meta, m.data, devmapper.PolicySMQ), 120)
	m.remove("test-cache")
	c := m.dump(m.meta)
	if len(c.Entries) < 120 || c.Dirty != 0 || c.Policy != "smq" {
		t.Fatalf("%+v", c)
	}
	// For its first minute the kernel calls every block equally hot.
	r := random(7)
	for i := range c.Entries {
		c.Entries[i].Level = r.Uint32N(64)
	}
	m.restore(c, m.meta2)
	if got := m.dump(m.meta2); !slices.Equal(got.Entries, c.Entries) {
		t.Errorf("the restored map differs:\n%+v\n%+v", c, got)
	}

	// Activated and removed again, the hints are what the kernel has made of them.
	m.cache(m.meta2, m.data, devmapper.PolicySMQ)
	m.remove("test-cache")
	m.checkOrder(c, m.dump(m.meta2))

	m.readAll(m.cache(m.meta2, m.data, devmapper.PolicySMQ), c)
}

// checkOrder: what was hotter is still not colder. The kernel evens the number of
// blocks of each level out, and whoever looks at a new device makes some hotter.
func (m *machine) checkOrder(before, after cachemap.Map) {
	m.t.Helper()
	levels := map[uint64]uint32{}
	for _, e := range after.Entries {
		levels[e.Origin] = e.Level
	}
	pairs, kept := 0, 0
	for _, a := range before.Entries {
		if _, mapped := levels[a.Origin]; !mapped {
			m.t.Errorf("origin block %d is not mapped any more", a.Origin)
		}
		for _, b := range before.Entries {
			if a.Level >= b.Level+8 {
				pairs++
				if levels[a.Origin] >= levels[b.Origin] {
					kept++
				}
			}
		}
	}
	m.t.Logf("%d of %d pairs kept their order", kept, pairs)
	if kept < pairs*9/10 {
		m.t.Errorf("%d of %d pairs kept their order", kept, pairs)
	}
}

// someMap goes through the hot set, and has gaps, which no map of a hot set has.
func someMap(t *testing.T) cachemap.Map {
	t.Helper()
	hot := decode(t, cachemap.EncodeHotSet(anyMap(random(6), chunk, 200, originSectors/chunk), cachemap.MaxHotSetBytes))
	c := hot.Map(chunk, cacheBlocks, originSectors)
	n := uint64(len(c.Entries))
	for i := range c.Entries {
		c.Entries[i].Cache += uint64(i) * (cacheBlocks - 1 - n) / n
	}
	return c
}

// A hydration from the origin remap table: discards mark what nobody needs, reads are right
// before, while and after the source is away, and the copy is the origin's.
func TestKernelHydrationFromRemapTable(t *testing.T) {
	m := newMachine(t)
	ctx := t.Context()
	c := someMap(t)
	gather := c.RemapTable(m.origin.DevNo(), originSectors, dataSectors, nil)
	path := m.device("test-path", gather)
	source := m.device("test-source", devmapper.Table{{Length: dataSectors, Target: devmapper.MultipathTarget{
		QueueIfNoPath: true, Bio: true, Paths: []string{path.DevNo()},
	}}})
	clone := devmapper.CloneTarget{
		Metadata: m.hydration.DevNo(), Destination: m.data.DevNo(), Source: source.DevNo(), RegionSectors: cachemap.RegionSectors(chunk),
		NoHydration: true, NoDiscardPassdown: true, HydrationBatch: 4,
	}
	data := m.device("test-data", devmapper.Table{{Length: dataSectors, Target: clone}})
	m.checkTables(map[string]devmapper.Table{"test-path": gather, "test-data": {{Length: dataSectors, Target: clone}}})

	// Read through the page cache, as udev does: with read-ahead.
	m.readBuffered(source)
	m.readBuffered(data)
	if p := m.path(); !p.Active || p.Failures > 0 {
		t.Fatalf("the path failed: %+v", p)
	}

	m.discardUnmapped(data, c)
	m.restore(c, m.meta)
	cache := m.cache(m.meta, data, devmapper.PolicyCleaner)
	m.readAll(cache, c)
	m.loseSource(cache, c, path)

	m.ok(m.dm.Message(ctx, "test-data", 0, "enable_hydration"))
	for end := time.Now().Add(dmWait); !m.clone().Complete(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", m.clone())
		}
	}
	if s := m.clone(); !s.HydrationEnabled() || s.HydratedBytes() != dataSectors*devmapper.SectorSize {
		t.Errorf("%+v", s)
	}
	m.checkCopy(c, true)

	m.ok(m.dm.Load(ctx, "test-data", devmapper.LinearTable(dataSectors, m.data.DevNo())))
	m.ok(m.dm.Resume(ctx, "test-data"))
	m.remove("test-source")
	m.remove("test-path")
	m.readAll(cache, c)
}

func (m *machine) readBuffered(d devmapper.Info) {
	m.t.Helper()
	f, err := os.Open(d.DevPath())
	m.ok(err)
	n, err := io.Copy(io.Discard, f)
	m.ok(errors.Join(err, f.Close()))
	if n != dataSectors*devmapper.SectorSize {
		m.t.Errorf("%s has %d bytes", d.Name, n)
	}
}

// checkTables: the kernel has what was asked for, and prints it in a form that is
// read back.
func (m *machine) checkTables(want map[string]devmapper.Table) {
	m.t.Helper()
	for name, w := range want {
		got, err := m.dm.Table(m.t.Context(), name)
		m.ok(err)
		if got.String() != w.String() {
			m.t.Errorf("table of %s: got\n%s\nwant\n%s", name, got, w)
		}
		for _, l := range got {
			if raw, isRaw := l.Target.(devmapper.RawTarget); isRaw {
				m.t.Errorf("table of %s: %+v was not understood", name, raw)
			}
		}
	}
}

// discardUnmapped discards what is not mapped, which must mark every region there
// as copied and leave the destination alone.
func (m *machine) discardUnmapped(data devmapper.Info, c cachemap.Map) {
	m.t.Helper()
	region := cachemap.RegionSectors(chunk)
	var ranges [][2]uint64
	want := uint64(0)
	for _, r := range c.Unmapped(dataSectors) {
		ranges = append(ranges, [2]uint64{r.Start * devmapper.SectorSize, r.Length * devmapper.SectorSize})
		want += (r.Start+r.Length)/region - r.Start/region
	}
	before := m.clone()
	if before.Hydrated != 0 || before.Regions != (dataSectors+region-1)/region || before.HydrationEnabled() || before.Sectors != dataSectors {
		m.t.Errorf("before: %+v", before)
	}
	start := time.Now()
	m.ok(blockdev.Discard(m.t.Context(), data.DevPath(), ranges))
	m.t.Logf("%d discards in %v", len(ranges), time.Since(start))
	after := m.clone()
	if after.Hydrated != want || want == 0 || len(ranges) < 10 {
		m.t.Errorf("after: %+v, want %d regions hydrated", after, want)
	}
	m.checkCopy(c, false)
}

// checkCopy reads the destination: where nothing is mapped its old content, and the
// origin's blocks if they are copied.
func (m *machine) checkCopy(c cachemap.Map, copied bool) {
	m.t.Helper()
	want := bytes.Repeat([]byte{garbage}, dataSectors*devmapper.SectorSize)
	tail := uint64(len(want))
	if copied {
		// The last region is not whole: a discard does not reach it, and what the view
		// has there means nothing.
		tail = dataSectors / cachemap.RegionSectors(chunk) * cachemap.RegionSectors(chunk) * devmapper.SectorSize
		for _, e := range c.Entries {
			from := m.content[e.Origin*chunkBytes:]
			copy(want[e.Cache*chunkBytes:][:chunkBytes], from[:min(chunkBytes, len(from))])
		}
	}
	got := m.buffer(len(want))
	_, err := m.open(m.data, unix.O_RDONLY).ReadAt(got, 0)
	m.ok(err)
	for s := uint64(0); s < tail; s += devmapper.SectorSize {
		if !bytes.Equal(got[s:s+devmapper.SectorSize], want[s:s+devmapper.SectorSize]) {
			m.t.Fatalf("copied: %t: sector %d of the destination is wrong", copied, s/devmapper.SectorSize)
		}
	}
}

// loseSource takes the source away below a read, and puts the origin remap table back.
func (m *machine) loseSource(cache devmapper.Info, c cachemap.Map, path devmapper.Info) {
	m.t.Helper()
	ctx := m.t.Context()
	gather, err := m.dm.Table(ctx, "test-path")
	m.ok(err)
	before := m.path()
	if !before.Active || before.Device != path.DevNo() {
		m.t.Fatalf("before: %+v", before)
	}
	m.ok(m.dm.Load(ctx, "test-path", devmapper.Table{{Length: dataSectors, Target: devmapper.ErrorTarget{}}}))
	m.ok(m.dm.Resume(ctx, "test-path"))
	done := make(chan error, 1)
	f, buf := m.open(cache, unix.O_RDONLY), m.buffer(4096)
	from := c.Entries[7].Origin * chunkBytes
	go func() {
		_, err := f.ReadAt(buf, int64(from))
		done <- err
	}()
	for end := time.Now().Add(dmWait); m.path().Active; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatal("the path did not fail")
		}
	}
	select {
	case err := <-done:
		m.t.Fatalf("the read ended without a source: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	m.ok(m.dm.Load(ctx, "test-path", gather))
	m.ok(m.dm.Resume(ctx, "test-path"))
	m.ok(m.dm.Message(ctx, "test-source", 0, "reinstate_path", path.DevNo()))
	select {
	case err := <-done:
		m.ok(err)
	case <-time.After(dmWait):
		m.t.Fatal("the read did not end")
	}
	if !bytes.Equal(buf, m.content[from:from+4096]) {
		m.t.Error("the read that waited is wrong")
	}
	if p := m.path(); !p.Active || p.Failures <= before.Failures {
		m.t.Errorf("after: %+v", p)
	}
}

func (m *machine) path() devmapper.PathStatus {
	m.t.Helper()
	s, err := m.dm.MultipathStatus(m.t.Context(), "test-source")
	m.ok(err)
	if len(s.Paths) != 1 || s.HasPath() != s.Paths[0].Active {
		m.t.Fatalf("%+v", s)
	}
	return s.Paths[0]
}
