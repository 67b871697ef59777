package cachemap

import (
	"slices"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Fill returns m with the other blocks of an origin of so many sectors behind its own, in ascending
// order and with the lowest hint, as far as the cache has room (Preload, states.md). m must have
// its blocks in the first places of the cache, as that of HotSet.Map. A block that is not wholly
// within the origin is left out: the kernel does not cache it.
func (m Map) Fill(originSectors uint64) Map {
	if m.ChunkSectors == 0 {
		return m
	}
	// No block behind these is reached, however large the origin is.
	blocks := min(originSectors/m.ChunkSectors, m.CacheBlocks+uint64(len(m.Entries)))
	named := volume.NewBits(blocks)
	entries := slices.Clone(m.Entries)
	for _, e := range entries {
		if e.Origin < blocks {
			named.Set(e.Origin)
		}
	}
	for b := uint64(0); b < blocks && uint64(len(entries)) < m.CacheBlocks; b++ {
		if !named.Has(b) {
			entries = append(entries, Entry{Cache: uint64(len(entries)), Origin: b})
		}
	}
	m.Entries = entries
	return m
}
