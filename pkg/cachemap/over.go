package cachemap

import (
	"fmt"
	"slices"

	"github.com/nearflash/nearflash/pkg/volume"
)

// thereMark is added to the levels of chunks that are there already: above all hints.
const thereMark = topLevel + 1

// Over is the map of a cache of so many blocks that is filled by a stream, of which some chunks of
// the list are there already, at the same places as in the source's cache. The others are at free
// places in ascending order, hottest first, as far as there is room. there is how many were; the
// map marks them, for Ordered. Errors: as those of Streamed, and a place that is twice there.
func Over(l volume.ChunkList, has func(place uint64) bool, cacheBlocks, originSectors uint64) (m Map, there uint64, err error) {
	m = Map{ChunkSectors: l.ChunkSectors, CacheBlocks: cacheBlocks}
	chunks, taken := originSectors/l.ChunkSectors, volume.NewBits(cacheBlocks)
	here := func(i int) bool { at := uint64(l.Places[i]); return at < cacheBlocks && has(at) }
	for i := range l.Blocks {
		if !here(i) {
			continue
		}
		if at := uint64(l.Places[i]); taken.Has(at) {
			return m, 0, fmt.Errorf("%w: two chunks are at place %d", ErrFormat, at)
		}
		taken.Set(uint64(l.Places[i]))
	}
	free := uint64(0)
	for i, block := range l.Blocks {
		e := Entry{Origin: block, Level: uint32(topLevel - topLevel*i/len(l.Blocks))}
		if here(i) {
			e.Cache, e.Level = uint64(l.Places[i]), e.Level+thereMark
			there++
		} else {
			for taken.Has(free) {
				free++
			}
			if free >= cacheBlocks {
				continue
			}
			e.Cache, free = free, free+1
		}
		if block >= chunks {
			return m, 0, fmt.Errorf("%w: it names block %d of an origin of %d blocks", ErrFormat, block, chunks)
		}
		m.Entries = append(m.Entries, e)
	}
	slices.SortFunc(m.Entries, byCache)
	return m, there, nil
}

// Ordered is the map with what was there already before the others, each in ascending order of the
// cache's blocks: the order in which a stream copies. Every other map is as it was.
func (m Map) Ordered() Map {
	var marked, others []Entry
	for _, e := range m.Entries {
		if e.Level >= thereMark {
			e.Level -= thereMark
			marked = append(marked, e)
		} else {
			others = append(others, e)
		}
	}
	m.Entries = append(marked, others...)
	return m
}

// Numbers are the numbers that a map's entries have in the list that it was made of by Over, from
// an entry of its order on; Skip has all others. Errors: ErrFormat for another list.
func (m Map) Numbers(l volume.ChunkList, from uint64) (numbers []int, skip volume.Bits, err error) {
	skip = volume.NewBits(uint64(len(l.Blocks)))
	entries := m.Entries[min(from, uint64(len(m.Entries))):]
	for i, block := range l.Blocks {
		if n := len(numbers); n < len(entries) && entries[n].Origin == block {
			numbers = append(numbers, i)
			continue
		}
		skip.Set(uint64(i))
	}
	if len(numbers) < len(entries) || l.ChunkSectors != m.ChunkSectors {
		return nil, nil, fmt.Errorf("%w: it lists other chunks than before", ErrFormat)
	}
	return numbers, skip, nil
}
