//go:build kernel

package kernel

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// TestKernelStreamLevels: the copy of another node's cache begins to serve below a live volume,
// the hottest chunks first, and becomes one cache at last. What is written meanwhile is never
// hidden by what was copied.
func TestKernelStreamLevels(t *testing.T) {
	cases := map[string]struct {
		// topFirst suspends the upper level around the swap of the lower one.
		topFirst bool
		// lost: the copy of the second level has no end.
		lost bool
	}{"both": {}, "both, upper suspended first": {topFirst: true}, "source lost": {lost: true}}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newLevels(t, streamChunks, streamHot, streamOrigin*streamChunk+streamRest)
			s.fillDevices()
			s.stack()
			s.load = startStream(t, s.tgt[1].DevPath(), int64(s.originSectors)*devmapper.SectorSize/loadBlock, false)
			s.load.await(300)
			mustPass(t, "whole device", s.load.verifyAll(s.origin.DevPath()))
			live := []int{0, 1}
			if tc.lost {
				live = live[:1]
			}
			for _, i := range live {
				s.copyLevel(i)
				s.goLive(i, tc.topFirst)
				s.checkStatic(live[:i+1])
			}
			s.merge(live)
			s.checkPromotes()
			s.load.end()
			mustPass(t, "whole device", s.load.verifyAll(s.origin.DevPath()))
		})
	}
}

// TestKernelStreamLevelsControl: the checks of TestKernelStreamLevels find what they are for.
func TestKernelStreamLevelsControl(t *testing.T) {
	s := newLevels(t, streamChunks, streamHot, streamOrigin*streamChunk+streamRest)
	s.fillDevices()
	s.stack()
	s.load = startStream(t, s.tgt[1].DevPath(), int64(s.originSectors)*devmapper.SectorSize/loadBlock, false)
	s.load.await(300)
	s.copyLevel(0)
	s.load.end()
	mustPass(t, "whole device", s.load.verifyAll(s.origin.DevPath()))
	// A map of before the first write, as if nothing had noted the writes.
	s.restore(s.maps[0], s.meta)
	for _, policy := range []devmapper.CachePolicy{devmapper.PolicyCleaner, devmapper.PolicySMQ} {
		mustPass(t, "load", s.dm.Load(t.Context(), levelName[0], s.cache(s.meta, s.ssd[0], s.origin, devmapper.Writethrough, policy)))
		mustPass(t, "resume", s.dm.Resume(t.Context(), levelName[0]))
		err := s.load.verifyAll()
		if t.Logf("%s: %v", policy, err); !errors.Is(err, errStale) {
			t.Errorf("no stale data were found, but %v", err)
		}
	}
	// smq promotes what checkStatic reads.
	s.hammer(s.maps[0].Entries, s.maps[1].Entries, time.Minute, func() bool { return s.status(0).Promotions > 0 })
	if st := s.status(0); st.Promotions == 0 {
		t.Errorf("nothing was promoted: %+v", st)
	} else {
		t.Logf("smq: %d promotions, %d demotions", st.Promotions, st.Demotions)
	}
}

// hammer makes chunks hot that no map has, until enough or for a time: small reads, and
// reads and writes of whole chunks.
func (s *levels) hammer(one, two []cachemap.Entry, most time.Duration, enough func() bool) {
	s.t.Helper()
	f := openDirect(s.t, s.tgt[1].DevPath())
	defer func() { _ = f.Close() }()
	cached := map[int64]bool{}
	for _, e := range append(slices.Clone(one), two...) {
		cached[int64(e.Origin)] = true
	}
	var hot []int64
	for chunk := s.load.pages/streamChunkPages - 1; len(hot) < 8; chunk-- {
		if !cached[chunk] {
			hot = append(hot, chunk)
		}
	}
	var err error
	for began := time.Now(); time.Since(began) < most && !enough() && err == nil; {
		for n := range 200 {
			page, count := hot[n%len(hot)]*streamChunkPages, int64(1)
			if n%3 == 0 {
				count = streamChunkPages
			}
			if !s.load.claim(page, count) {
				continue
			}
			if n%12 == 0 {
				err = errors.Join(err, s.load.write(f, page, count))
			}
			err = errors.Join(err, s.load.verify(f, page, count))
			s.load.release(page, count)
		}
	}
	mustPass(s.t, "access", err)
}

// checkStatic: whatever is read and written, levels that are live change nothing in their maps.
func (s *levels) checkStatic(live []int) {
	s.t.Helper()
	var before [2][]cachemap.Entry
	for _, i := range live {
		before[i] = s.liveMap(s.metas[i]).Entries
	}
	s.hammer(s.maps[0].Entries, s.maps[1].Entries, hammerTime, func() bool { return false })
	mustPass(s.t, "whole device", s.load.verifyAll(s.origin.DevPath()))
	for _, i := range live {
		s.checkCounters(i)
		if now := s.liveMap(s.metas[i]).Entries; !slices.Equal(before[i], now) {
			s.t.Errorf("%s: the map has changed: %d chunks, then %d", levelName[i], len(before[i]), len(now))
		}
	}
}

func (s *levels) checkCounters(i int) {
	s.t.Helper()
	st := s.status(i)
	if st.Promotions > 0 || st.Demotions > 0 || st.Mode() != devmapper.Writethrough || st.Policy != devmapper.PolicyCleaner {
		s.t.Errorf("%s: %+v", levelName[i], st)
	}
	s.t.Logf("%s: %d chunks, reads %d hits %d misses, writes %d hits %d misses, %d promotions, %d demotions", levelName[i],
		st.CacheUsed, st.ReadHits, st.ReadMisses, st.WriteHits, st.WriteMisses, st.Promotions, st.Demotions)
}

// merge makes one cache of the levels that are live, beside the load.
func (s *levels) merge(live []int) {
	t := s.t
	t.Helper()
	ctx := t.Context()
	began := time.Now()
	var maps []cachemap.Map
	for _, i := range live {
		maps = append(maps, s.liveMap(s.metas[i]))
	}
	merged, err := cachemap.Merge(s.whole, maps...)
	mustPass(t, "merge", err)
	dumped := time.Since(began)
	restored := s.restore(merged, s.meta)
	mustPass(t, "load", s.dm.Load(ctx, levelName[1], s.cache(s.meta, s.data, s.origin, devmapper.Writethrough, devmapper.PolicySMQ)))
	s.load.await(2 * streamWorkers)
	s.load.slowest.Store(0)
	began = time.Now()
	s.dmsetup("suspend", levelName[1])
	suspended := time.Since(began)
	for _, i := range live {
		s.checkCounters(i) // a promotion between the dump and now would be lost, or worse
	}
	mustPass(t, "resume", s.dm.Resume(ctx, levelName[1]))
	took := time.Since(began)
	s.load.await(4 * streamWorkers)
	t.Logf("merge of %d chunks: maps read and merged %v, restore %v, suspend %v, all of the swap %v, slowest access %v", len(merged.Entries), dumped, restored, suspended, took,
		time.Duration(s.load.slowest.Load()))
	st := s.status(1)
	if used := uint64(len(merged.Entries)); st.CacheTotal != s.chunks || st.CacheUsed < used || st.CacheUsed > used+st.Promotions {
		t.Errorf("%d chunks were merged: %+v", used, st)
	}
	for _, name := range []string{levelName[0], hotData} {
		mustPass(t, "remove", s.dm.Remove(ctx, name))
	}
	for n, i := range live {
		if now := s.liveMap(s.metas[i]).Entries; !slices.Equal(maps[n].Entries, now) {
			t.Errorf("%s: the map has changed since it was read: %d chunks, then %d", levelName[i], len(maps[n].Entries), len(now))
		}
	}
	mustPass(t, "whole device", s.load.verifyAll(s.origin.DevPath()))
	s.checkMerged(merged)
}

// checkMerged: what the levels had is served by the one cache, where they had it.
func (s *levels) checkMerged(merged cachemap.Map) {
	s.t.Helper()
	path := s.tgt[1].DevPath()
	f, buf := openDirect(s.t, path), aligned(loadBlock)
	defer func() { _ = f.Close() }()
	before, read := s.status(1), some(merged.Entries)
	for _, e := range read {
		_, err := f.ReadAt(buf, int64(e.Origin)*streamChunk)
		mustPass(s.t, "read", err)
	}
	if st := s.status(1); st.ReadHits-before.ReadHits+st.Demotions < uint64(len(read)) {
		s.t.Errorf("%d hits of %d chunks: %+v", st.ReadHits-before.ReadHits, len(read), st)
	}
}

// checkPromotes: the one cache is like any other from now on.
func (s *levels) checkPromotes() {
	s.t.Helper()
	mapped := s.liveMap(s.meta).Entries
	s.hammer(mapped, nil, time.Minute, func() bool { return s.status(1).Promotions > 0 })
	if st := s.status(1); st.Promotions == 0 {
		s.t.Errorf("nothing is promoted: %+v", st)
	}
}
