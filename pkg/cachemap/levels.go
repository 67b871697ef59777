package cachemap

import (
	"cmp"
	"fmt"
	"slices"
)

// topLevel is the hint of the hottest chunk (NR_CACHE_LEVELS in drivers/md/dm-cache-policy-smq.c,
// less one).
const topLevel = 63

// Streamed is the map of a cache of so many blocks that is filled by a stream: the blocks of the
// origin, hottest first, lie in that order, as far as there is room. Chunk number i of the
// source is block i of the cache. Errors: a block that is not whole
// before the origin's end.
func Streamed(origin []uint64, chunkSectors, cacheBlocks, originSectors uint64) (Map, error) {
	m := Map{ChunkSectors: chunkSectors, CacheBlocks: cacheBlocks}
	if uint64(len(origin)) > cacheBlocks {
		origin = origin[:cacheBlocks]
	}
	// The kernel caches no block that reaches over the end (cache_map in
	// drivers/md/dm-cache-target.c), and takes none out of the map that is written to.
	chunks := originSectors / chunkSectors
	for i, block := range origin {
		if block >= chunks {
			return m, fmt.Errorf("%w: it names block %d of an origin of %d blocks", ErrFormat, block, chunks)
		}
		m.Entries = append(m.Entries, Entry{Cache: uint64(i), Origin: block, Level: uint32(topLevel - topLevel*i/len(origin))})
	}
	return m, nil
}

// Hottest are the blocks of the origin that a map names, hottest first, and for each the block
// of the cache that holds it.
func (m Map) Hottest() (origin, cache []uint64) {
	entries := slices.Clone(m.Entries)
	slices.SortStableFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(a.Cache, b.Cache))
	})
	for _, e := range entries {
		origin, cache = append(origin, e.Origin), append(cache, e.Cache)
	}
	return origin, cache
}

// HotChunks is how many of so many chunks the first level has: a sixteenth, at least one.
func HotChunks(chunks uint64) uint64 { return (chunks + 15) / 16 }

// Split divides a map, in the order of Ordered, into those of the two levels. The first level's
// cache has hotBlocks blocks.
func (m Map) Split(hot, hotBlocks uint64) (first, rest Map) {
	n := min(hot, uint64(len(m.Entries)))
	first, rest = m, m
	first.CacheBlocks, first.Entries = hotBlocks, m.Entries[:n]
	rest.Entries = m.Entries[n:]
	return first, rest
}

// Merge is the map of one cache with what levels that serve have kept of the map that they
// began with. Whatever else they name was never copied, and is left out, and so is a block that
// more than one of them names: which copy is the newer one, no map says.
func Merge(whole Map, levels ...Map) (Map, error) {
	kept, named := map[Entry]bool{}, map[uint64]int{}
	for _, l := range levels {
		if l.ChunkSectors != whole.ChunkSectors {
			return Map{}, fmt.Errorf("a level has chunks of %d sectors, the cache has %d", l.ChunkSectors, whole.ChunkSectors)
		}
		if l.Dirty > 0 {
			return Map{}, fmt.Errorf("a level that is written through has %d dirty chunks", l.Dirty)
		}
		for _, e := range l.Entries {
			kept[Entry{Cache: e.Cache, Origin: e.Origin}] = true
			named[e.Origin]++
		}
	}
	out := whole
	out.Entries = nil
	for _, e := range whole.Entries {
		if kept[Entry{Cache: e.Cache, Origin: e.Origin}] && named[e.Origin] == 1 {
			out.Entries = append(out.Entries, e)
		}
	}
	slices.SortFunc(out.Entries, byCache)
	return out, nil
}
