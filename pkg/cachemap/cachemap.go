package cachemap

import (
	"errors"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// ErrFormat is wrapped by every error that speaks of the input: XML that cache_dump
// cannot have written, a map that cannot be one, bytes that are no hot set.
var ErrFormat = errors.New("not a cache map")

// maxSectors is the length of the largest device that Linux can have: its bytes are
// a signed number of 64 bits.
const maxSectors = 1 << 54

// Values that WriteXML writes: what the kernel's smq policy calls itself, and the
// width of its hints in bytes (drivers/md/dm-cache-policy-smq.c).
const (
	hintWidth = 4
	// maxCacheBlocks is bounded by the kernel's number of a cache block (dm-cblock).
	maxCacheBlocks = 1 << 32
	// MaxBlocks bounds the mappings that are read: a cache of nearflash has a million blocks
	// at most, and a little more where its size is rounded up.
	MaxBlocks = 1 << 20
)

// Entry says that a block of the cache holds a block of the origin.
type Entry struct {
	Cache, Origin uint64
	// Level is the hint of the smq policy: the higher, the hotter; 0 to 63 in maps of
	// the kernel.
	Level uint32
}

// Map is the map of a cache.
type Map struct {
	// ChunkSectors is the cache block size, CacheBlocks the length of the cache.
	ChunkSectors, CacheBlocks uint64
	// Policy and HintWidth are those of the last table that used the metadata.
	Policy    string
	HintWidth int
	// Entries are in ascending order of Cache. No block is there twice, neither of
	// the cache nor of the origin.
	Entries []Entry
	// Dirty counts the entries that the metadata call dirty. After an unclean stop
	// the kernel counts every block as dirty, whatever stands here.
	Dirty uint64
	// DirtyBlocks are the cache blocks of those entries, in the order of the entries.
	DirtyBlocks []uint64
}

// Clean is the map without the entries that the metadata call dirty.
func (m Map) Clean() Map {
	dirty := m.DirtyBlocks
	entries := make([]Entry, 0, len(m.Entries))
	for _, e := range m.Entries {
		if len(dirty) > 0 && dirty[0] == e.Cache {
			dirty = dirty[1:]
			continue
		}
		entries = append(entries, e)
	}
	m.Entries, m.Dirty, m.DirtyBlocks = entries, 0, nil
	return m
}

// Range is a run of sectors of a device.
type Range struct {
	Start, Length uint64
}

func validChunk(sectors uint64) bool {
	return sectors >= devmapper.MinChunkSectors && sectors <= devmapper.MaxChunkSectors && sectors%devmapper.ChunkUnitSectors == 0
}

// RegionSectors is the region size for a clone of the data device of a cache with
// this block size: the largest power of two that divides a block, so that no region
// belongs to two blocks, as far as dm-clone accepts it.
func RegionSectors(chunkSectors uint64) uint64 {
	return min(max(chunkSectors&-chunkSectors, devmapper.MinRegionSectors), devmapper.MaxRegionSectors)
}

// RemapTable returns the origin remap table: a table of dataSectors that has each cached block
// of the origin where the cache has it. Origin is the origin's "major:minor" and
// originSectors its length. With only, a block for which it returns false is left out.
//
// The view equals the cache's data device wherever the cache is clean. Elsewhere, and
// behind the origin's end inside its last block, it shows some part of the origin that
// means nothing. Zeroes would be plainer, but the zero target fails every read-ahead
// (drivers/md/dm-zero.c), and a multipath device above takes that for the failure of
// its path: udev's look at a new device would stop all I/O.
func (m Map) RemapTable(origin string, originSectors, dataSectors uint64, only func(cacheBlock uint64) bool) devmapper.Table {
	v := view{device: origin, sectors: originSectors, spare: originSectors / 2 / m.ChunkSectors * m.ChunkSectors}
	for _, e := range m.Entries {
		// Divisions, because products of a map that was not read by Read may overflow.
		if dataSectors == 0 || e.Cache > (dataSectors-1)/m.ChunkSectors {
			break
		}
		if originSectors == 0 || e.Origin > (originSectors-1)/m.ChunkSectors || only != nil && !only(e.Cache) {
			continue
		}
		start, from := e.Cache*m.ChunkSectors, e.Origin*m.ChunkSectors
		v.pad(start)
		v.linear(min(m.ChunkSectors, dataSectors-start, originSectors-from), from)
	}
	v.pad(dataSectors)
	return v.table
}

// Pad makes a table longer, up to the given number of sectors, with whatever a device
// of deviceSectors has. See RemapTable for why it does not add zeroes.
func Pad(t devmapper.Table, device string, deviceSectors, sectors uint64) devmapper.Table {
	v := view{device: device, sectors: deviceSectors, table: t, end: t.Sectors()}
	v.pad(sectors)
	return v.table
}

// view builds a table from its beginning.
type view struct {
	// device is what the segments are on, sectors its length.
	device  string
	sectors uint64
	// spare is where padding is taken from if it does not continue what is before it.
	// Not from the beginning: the view would look as if it had the origin's filesystem.
	spare uint64
	table devmapper.Table
	// end is the length of the table so far.
	end uint64
	// next is the sector of the device behind the last segment.
	next   uint64
	joined bool
}

// pad fills up with what means nothing, in as few segments as possible.
func (v *view) pad(to uint64) {
	for v.end < to {
		from := v.next
		switch {
		case v.sectors == 0:
			v.table = append(v.table, devmapper.Line{Start: v.end, Length: to - v.end, Target: devmapper.ZeroTarget{}})
			v.end = to
			return
		case !v.joined || from >= v.sectors:
			from = v.spare
		}
		v.linear(min(to-v.end, v.sectors-from), from)
	}
}

// linear adds sectors of the device.
func (v *view) linear(sectors, from uint64) {
	if v.joined && from == v.next {
		v.table[len(v.table)-1].Length += sectors
	} else {
		v.table = append(v.table, devmapper.Line{
			Start: v.end, Length: sectors, Target: devmapper.LinearTarget{Device: v.device, Offset: from},
		})
	}
	v.end, v.next, v.joined = v.end+sectors, from+sectors, true
}

// End is the sector of the cache where its last mapped chunk ends; 0 if none is mapped.
func (m Map) End() uint64 {
	if len(m.Entries) == 0 {
		return 0
	}
	return (m.Entries[len(m.Entries)-1].Cache + 1) * m.ChunkSectors
}

// Unmapped returns the runs of a data device of dataSectors that hold no mapped
// block, in ascending order, with what follows the last whole block.
func (m Map) Unmapped(dataSectors uint64) []Range {
	var out []Range
	end := uint64(0)
	gap := func(to uint64) {
		if to > end {
			out = append(out, Range{Start: end, Length: to - end})
		}
	}
	for _, e := range m.Entries {
		if dataSectors == 0 || e.Cache > (dataSectors-1)/m.ChunkSectors {
			break
		}
		start := e.Cache * m.ChunkSectors
		gap(start)
		end = min(start+m.ChunkSectors, dataSectors)
	}
	gap(dataSectors)
	return out
}
