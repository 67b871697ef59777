//go:build kernel

package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
)

const (
	// streamChunks are cached on the old node, the first streamHot of them as its hottest.
	streamChunks, streamHot = 1600, 300
	// streamOrigin is the length of the origin in chunks; a part of one follows.
	streamOrigin, streamRest = 2400, 5 * loadBlock
	// hammerTime is longer than smq waits before it looks anew at what is hot.
	hammerTime = 5 * time.Second
)

// How a level's devices are called. The lower level has a part of the data device, hotData.
var levelName = [2]string{"test-low", "test-top"}

const hotData = "test-hot-data"

// levels are two caches above each other, which share one data device: the lower one has its
// first chunks, the hottest, and the upper one all of it, of which it uses the others. That is the
// layout of a stream (pkg/attach/stack, CreateLevels).
type levels struct {
	t     *testing.T
	dm    devmapper.Client
	run   hostexec.Runner
	tools cachetools.Tools

	chunks, originSectors uint64
	// maps are those of the levels before the first write, whole that of one cache.
	maps  [2]cachemap.Map
	whole cachemap.Map

	origin, data, meta devmapper.Info
	ssd, metas, tgt    [2]devmapper.Info // ssd are the levels' data devices
	load               *streamLoad
}

// newLevels makes the devices below two levels, with metadata in which everything is mapped.
func newLevels(t *testing.T, chunks, hot, originBytes uint64) *levels {
	t.Helper()
	run := hostexec.New()
	s := &levels{t: t, run: run, dm: devmapper.New(run), tools: cachetools.Tools{Run: run}, chunks: chunks, originSectors: originBytes / devmapper.SectorSize}
	blocks := originBytes / streamChunk
	step := blocks/2 + 1
	for gcd(step, blocks) != 1 {
		step++
	}
	s.whole = cachemap.Map{ChunkSectors: devmapper.MinChunkSectors, CacheBlocks: chunks}
	for i := range chunks {
		s.whole.Entries = append(s.whole.Entries, cachemap.Entry{Cache: i, Origin: i * step % blocks, Level: uint32(i % 64)})
	}
	s.maps[0], s.maps[1] = s.whole.Split(hot, hot)

	metaSectors := uint64(devmapper.MetadataBytes(chunks)) / devmapper.SectorSize
	s.metas = [2]devmapper.Info{s.part("test-meta1", ssdOne, 0, metaSectors), s.part("test-meta2", ssdOne, metaSectors, metaSectors)}
	s.meta = s.part("test-meta", ssdOne, 2*metaSectors, metaSectors)
	s.data = s.part("test-data", ssdOne, 3*metaSectors, chunks*devmapper.MinChunkSectors)
	s.ssd = [2]devmapper.Info{s.part(hotData, s.data.DevPath(), 0, hot*devmapper.MinChunkSectors), s.data}
	s.origin = s.part("test-origin", storageDisk, 0, s.originSectors)
	return s
}

// device makes a device that is removed at the end of the test.
func (s *levels) device(name string, table devmapper.Table) devmapper.Info {
	s.t.Helper()
	info, err := s.dm.Create(s.t.Context(), name, "TEST-"+name, table)
	mustPass(s.t, "create", err)
	s.t.Cleanup(func() { mustPass(s.t, "remove", s.dm.Remove(context.Background(), name)) })
	return info
}

func (s *levels) part(name, disk string, start, sectors uint64) devmapper.Info {
	s.t.Helper()
	devno, err := blockdev.DevNo(disk)
	mustPass(s.t, "device", err)
	return s.device(name, devmapper.Table{{Length: sectors, Target: devmapper.LinearTarget{Device: devno, Offset: start}}})
}

// fillDevices gives the origin the first version of each block, and the SSD what must never be
// read.
func (s *levels) fillDevices() {
	s.t.Helper()
	old := aligned(int64(s.originSectors) * devmapper.SectorSize)
	for page := range int64(len(old) / loadBlock) {
		fill(old[page*loadBlock:][:loadBlock], page, 0)
	}
	write(s.t, s.origin.DevPath(), old, 0, true)
	garbage := aligned(int64(s.chunks) * streamChunk)
	for i := range garbage {
		garbage[i] = 0xa5
	}
	write(s.t, s.data.DevPath(), garbage, 0, true)
}

// cache is the table of a cache.
func (s *levels) cache(meta, data, origin devmapper.Info, mode devmapper.CacheMode, policy devmapper.CachePolicy) devmapper.Table {
	return devmapper.Table{{Length: s.originSectors, Target: devmapper.CacheTarget{
		Metadata: meta.DevNo(), Data: data.DevNo(), Origin: origin.DevNo(), ChunkSectors: devmapper.MinChunkSectors, Mode: mode, Policy: policy,
	}}}
}

// level is the table of one level: the lower one is above the origin, the other one above it.
func (s *levels) level(i int, mode devmapper.CacheMode, policy devmapper.CachePolicy) devmapper.Table {
	below := [2]devmapper.Info{s.origin, s.tgt[0]}
	return s.cache(s.metas[i], s.ssd[i], below[i], mode, policy)
}

// stack restores both maps at once and makes the levels, which serve nothing yet and note what is
// written.
func (s *levels) stack() {
	s.t.Helper()
	began := time.Now()
	var g errgroup.Group
	for i := range s.maps {
		g.Go(func() error { return s.restoreMap(s.maps[i], s.metas[i]) })
	}
	mustPass(s.t, "restore", g.Wait())
	s.t.Logf("both maps restored: %v", time.Since(began))
	for i := range s.maps {
		began := time.Now()
		s.tgt[i] = s.device(levelName[i], s.level(i, devmapper.Passthrough, devmapper.PolicyCleaner))
		s.t.Logf("%s: %d chunks, create %v", levelName[i], len(s.maps[i].Entries), time.Since(began))
		if st := s.status(i); st.CacheUsed != uint64(len(s.maps[i].Entries)) {
			s.t.Fatalf("%s has %d chunks of %d", levelName[i], st.CacheUsed, len(s.maps[i].Entries))
		}
	}
}

// restore writes a map to metadata that no table uses.
func (s *levels) restore(m cachemap.Map, meta devmapper.Info) time.Duration {
	s.t.Helper()
	began := time.Now()
	mustPass(s.t, "restore", s.restoreMap(m, meta))
	return time.Since(began)
}

func (s *levels) restoreMap(m cachemap.Map, meta devmapper.Info) error {
	path := filepath.Join(s.t.TempDir(), "map.xml")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(m.WriteXML(f), f.Close()); err != nil {
		return err
	}
	if err := blockdev.ZeroHead(s.t.Context(), meta.DevPath(), loadBlock); err != nil {
		return err
	}
	return s.tools.Restore(s.t.Context(), path, meta.DevPath())
}

// liveMap reads a map that a table may be using, and does not change: one that does may be
// read in two halves that do not belong together.
func (s *levels) liveMap(meta devmapper.Info) cachemap.Map {
	s.t.Helper()
	m, err := cachetools.ReadMap(s.t.Context(), s.tools.Dump, meta.DevPath(), filepath.Join(s.t.TempDir(), "live"))
	mustPass(s.t, "read the map", err)
	if m.Dirty > 0 {
		s.t.Fatalf("%d chunks of %s are dirty", m.Dirty, meta.Name)
	}
	for i := range m.Entries {
		m.Entries[i].Level = 0 // each policy has its own
	}
	return m
}

// status is that of a level, which must be sound.
func (s *levels) status(i int) devmapper.CacheStatus {
	s.t.Helper()
	st, found, err := s.dm.Status(s.t.Context(), levelName[i])
	mustPass(s.t, "status", err)
	if !found || st.Fail || st.ReadOnly || st.NeedsCheck || st.Dirty > 0 {
		s.t.Fatalf("status of %s: %+v", levelName[i], st)
	}
	return st
}

// copyLevel writes what the old node had cached into the level's part of the data device.
func (s *levels) copyLevel(i int) {
	s.t.Helper()
	f := openDirect(s.t, s.ssd[i].DevPath())
	defer func() { _ = f.Close() }()
	buf := aligned(streamChunk)
	for n, e := range s.maps[i].Entries {
		for p := range streamChunkPages {
			fill(buf[p*loadBlock:][:loadBlock], int64(e.Origin)*streamChunkPages+p, 0)
		}
		_, err := f.WriteAt(buf, int64(e.Cache)*streamChunk)
		mustPass(s.t, "copy", err)
		if n%32 == 0 {
			s.load.await(12) // writes before, during and after the copy of a chunk
		}
	}
	mustPass(s.t, "fsync", f.Sync())
}

// swap makes a table live, and returns how long that took and how long I/O stood still.
func (s *levels) swap(name string, table devmapper.Table) (load, resume, pause time.Duration) {
	s.t.Helper()
	began := time.Now()
	mustPass(s.t, "load", s.dm.Load(s.t.Context(), name, table))
	load = time.Since(began)
	s.load.await(2 * streamWorkers) // those that the load has slowed down
	s.load.slowest.Store(0)
	began = time.Now()
	mustPass(s.t, "resume", s.dm.Resume(s.t.Context(), name))
	resume = time.Since(began)
	s.load.await(4 * streamWorkers)
	return load, resume, time.Duration(s.load.slowest.Load())
}

// goLive swaps a level to writethrough. What was written while it was passthrough must not be
// mapped any more, and all else must be.
func (s *levels) goLive(i int, topFirst bool) {
	t := s.t
	t.Helper()
	s.load.slowest.Store(0)
	s.load.await(200)
	usual := time.Duration(s.load.slowest.Load())
	before := marked(s.load.written)
	table := s.level(i, devmapper.Writethrough, devmapper.PolicyCleaner)
	if topFirst && i == 0 {
		s.liveBelow(table)
	} else {
		load, resume, pause := s.swap(levelName[i], table)
		t.Logf("%s live: load %v, suspend and resume %v, slowest access %v (otherwise %v)", levelName[i], load, resume, pause, usual)
	}
	after := marked(s.load.begun)
	mapped := map[uint64]bool{}
	for _, e := range s.liveMap(s.metas[i]).Entries {
		mapped[e.Origin] = true
		if before[e.Origin] {
			t.Errorf("%s: chunk %d was written and is mapped", levelName[i], e.Origin)
		}
	}
	for _, e := range s.maps[i].Entries {
		if !mapped[e.Origin] && !after[e.Origin] {
			t.Errorf("%s: chunk %d was never written and is not mapped", levelName[i], e.Origin)
		}
	}
	t.Logf("%s: %d of %d chunks are left", levelName[i], len(mapped), len(s.maps[i].Entries))
	if len(mapped) < 20 || len(s.maps[i].Entries)-len(mapped) < 20 {
		t.Fatal("too few are left, or too few were written: this test proves nothing")
	}
	mustPass(t, "whole device", s.load.verifyAll(s.origin.DevPath()))
	s.checkHits(i)
}

// liveBelow swaps the lower level while the upper one is suspended.
func (s *levels) liveBelow(table devmapper.Table) {
	s.t.Helper()
	ctx := s.t.Context()
	mustPass(s.t, "load", s.dm.Load(ctx, levelName[0], table))
	s.load.slowest.Store(0)
	began := time.Now()
	s.dmsetup("suspend", levelName[1])
	mustPass(s.t, "resume", s.dm.Resume(ctx, levelName[0]))
	mustPass(s.t, "resume", s.dm.Resume(ctx, levelName[1]))
	took := time.Since(began)
	s.load.await(4 * streamWorkers)
	s.t.Logf("%s live with the upper one suspended around it: %v, slowest access %v", levelName[0], took, time.Duration(s.load.slowest.Load()))
}

func (s *levels) dmsetup(args ...string) {
	s.t.Helper()
	_, err := s.run.Run(s.t.Context(), hostexec.Change(args[len(args)-1], "dmsetup", args...))
	mustPass(s.t, "dmsetup", err)
}

// checkHits reads chunks that a level still has through the upper one.
func (s *levels) checkHits(i int) {
	s.t.Helper()
	f, buf := openDirect(s.t, s.tgt[1].DevPath()), aligned(loadBlock)
	defer func() { _ = f.Close() }()
	before, have := s.status(i), some(s.liveMap(s.metas[i]).Entries)
	for _, e := range have {
		_, err := f.ReadAt(buf, int64(e.Origin)*streamChunk)
		mustPass(s.t, "read", err)
	}
	if hits := s.status(i).ReadHits - before.ReadHits; hits < uint64(len(have)) {
		s.t.Errorf("%s: %d hits of %d chunks", levelName[i], hits, len(have))
	}
}

// some are entries of all parts of a map, as many as can be read one by one.
func some(entries []cachemap.Entry) []cachemap.Entry {
	const most = 4000
	var out []cachemap.Entry
	for i := 0; i < len(entries); i += len(entries)/most + 1 {
		out = append(out, entries[i])
	}
	return out
}
