package cachemap

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// MaxHotSetBytes is how long an encoded hot set may be (The hot set, states.md).
const MaxHotSetBytes = 64 << 10

// The encoded form, version 1. All numbers are unsigned varints in their shortest
// form (package encoding/binary):
//
//	"NFH" 0x01  chunk size in sectors  number of classes
//	for each class, the hottest first:
//	    level  number of runs
//	    for each run, in ascending order of the origin's blocks:
//	        2*gap + (1 if it is longer than one block)  [length - 2]
//
// The gap of the first run of a class is its first block, that of the others the
// number of blocks since the run before, less one: two runs that touch would be one.
const (
	hotMagic = "NFH\x01"
	// hotClasses is into how many classes a map is divided. More of them would keep
	// more of the order; but a block costs the more bits the fewer blocks are listed
	// with it.
	hotClasses = 4
	// maxHotClasses bounds what is accepted.
	maxHotClasses = 64
)

// HotSet is a list of blocks of an origin, without their content.
type HotSet struct {
	// ChunkSectors is the block size of the cache that the list was made from.
	ChunkSectors uint64
	// Classes begin with the hottest; no sector is in two of them.
	Classes []HotClass
}

// HotClass are blocks of about the same hotness.
type HotClass struct {
	// Level is the smq level of a block in the middle of the class; each class has a
	// lower one than the class before.
	Level uint32
	// Ranges are sectors of the origin in ascending order; no two of them touch.
	Ranges []Range
}

// Sectors is the length of all ranges.
func (h HotSet) Sectors() uint64 {
	n := uint64(0)
	for _, c := range h.Classes {
		for _, r := range c.Ranges {
			n += r.Length
		}
	}
	return n
}

// EncodeHotSet lists the blocks of a map by hotness in at most maxBytes; the coldest
// are left out if there is no room for them. It returns nil if there is not even room
// for an empty list, or if m has no valid chunk size.
func EncodeHotSet(m Map, maxBytes int) []byte {
	if !validChunk(m.ChunkSectors) {
		return nil
	}
	h := rank(m)
	fits, least := len(h.levels), 0
	best := h.encode(fits)
	if len(best) <= maxBytes {
		return best
	}
	if best = h.encode(0); len(best) > maxBytes {
		return nil
	}
	// The length does not quite grow with every block, since one may join two runs;
	// what is returned was measured.
	for fits-least > max(1, least/256) {
		mid := least + (fits-least)/2
		if b := h.encode(mid); len(b) <= maxBytes {
			best, least = b, mid
		} else {
			fits = mid
		}
	}
	return best
}

// ranking is a map in two orders.
type ranking struct {
	chunk uint64
	// blocks are the origin's, in ascending order, and ranks the places of each in
	// the order of hotness.
	blocks []uint64
	ranks  []uint32
	// levels are in the order of hotness, the hottest first.
	levels []uint32
}

func rank(m Map) ranking {
	e := slices.Clone(m.Entries)
	// A block beyond every device could not be read back.
	e = slices.DeleteFunc(e, func(e Entry) bool { return e.Origin >= maxSectors/m.ChunkSectors })
	slices.SortFunc(e, func(a, b Entry) int { return cmp.Compare(a.Origin, b.Origin) })
	h := ranking{chunk: m.ChunkSectors, blocks: make([]uint64, len(e)), ranks: make([]uint32, len(e)), levels: make([]uint32, len(e))}
	// Level and place in one number, so that it sorts fast: by level, then by origin.
	keys := make([]uint64, len(e))
	for i := range e {
		h.blocks[i] = e[i].Origin
		keys[i] = uint64(^e[i].Level)<<32 | uint64(i)
	}
	slices.Sort(keys)
	for r, k := range keys {
		h.levels[r] = ^uint32(k >> 32)
		h.ranks[uint32(k)] = uint32(r)
	}
	return h
}

// encode lists the n hottest blocks.
func (h ranking) encode(n int) []byte {
	classes := h.divide(n)
	for i, block := range h.blocks {
		if r := int(h.ranks[i]); r < n {
			c := 0
			for r >= classes[c].end {
				c++
			}
			classes[c].add(block)
		}
	}
	b := binary.AppendUvarint([]byte(hotMagic), h.chunk)
	b = binary.AppendUvarint(b, uint64(len(classes)))
	for i := range classes {
		c := &classes[i]
		c.flush()
		b = binary.AppendUvarint(b, uint64(c.level))
		b = binary.AppendUvarint(b, c.runs)
		b = append(b, c.text...)
	}
	return b
}

// divide makes classes of about the same size of the n hottest blocks. Blocks of
// one level stay together.
func (h ranking) divide(n int) []hotRuns {
	var classes []hotRuns
	size := max(1, (n+hotClasses-1)/hotClasses)
	for start := 0; start < n; {
		end := min(start+size, n)
		for end < n && h.levels[end] == h.levels[end-1] {
			end++
		}
		classes = append(classes, hotRuns{end: end, level: h.levels[start+(end-start)/2]})
		start = end
	}
	return classes
}

// hotRuns writes one class.
type hotRuns struct {
	// end is the first rank that is not in the class.
	end   int
	level uint32
	text  []byte
	runs  uint64
	// start and length are those of the run that is not written yet, and free is the
	// block behind the gap that must follow the run before it.
	start, length, free uint64
}

func (c *hotRuns) add(block uint64) {
	if c.length > 0 && block == c.start+c.length {
		c.length++
		return
	}
	c.flush()
	c.start, c.length = block, 1
}

func (c *hotRuns) flush() {
	if c.length == 0 {
		return
	}
	gap := 2 * (c.start - c.free)
	if c.length > 1 {
		gap++
	}
	c.text = binary.AppendUvarint(c.text, gap)
	if c.length > 1 {
		c.text = binary.AppendUvarint(c.text, c.length-2)
	}
	c.free, c.length = c.start+c.length+1, 0
	c.runs++
}

// DecodeHotSet reads what EncodeHotSet has written, and nothing else: the same hot
// set has no two forms. It needs no more memory than a small multiple of the length
// of b, whatever b says. Errors wrap ErrFormat.
func DecodeHotSet(b []byte) (HotSet, error) {
	rest, ok := bytes.CutPrefix(b, []byte(hotMagic))
	if !ok {
		return HotSet{}, fmt.Errorf("%w: no hot set of version 1", ErrFormat)
	}
	d := decoder{rest: rest}
	h := HotSet{ChunkSectors: d.uint()}
	classes := d.uint()
	switch {
	case d.err != nil:
		return HotSet{}, d.err
	case !validChunk(h.ChunkSectors):
		return HotSet{}, fmt.Errorf("%w: hot set of blocks of %d sectors", ErrFormat, h.ChunkSectors)
	case classes > maxHotClasses:
		return HotSet{}, fmt.Errorf("%w: hot set of %d classes", ErrFormat, classes)
	}
	for i := range classes {
		c := d.class(h.ChunkSectors)
		if i > 0 && c.Level >= h.Classes[i-1].Level {
			d.fail("a class is not colder than the one before")
		}
		if d.err != nil {
			return HotSet{}, d.err
		}
		h.Classes = append(h.Classes, c)
	}
	if len(d.rest) > 0 {
		return HotSet{}, fmt.Errorf("%w: hot set with %d more bytes", ErrFormat, len(d.rest))
	}
	if err := h.disjoint(); err != nil {
		return HotSet{}, err
	}
	return h, nil
}

// disjoint checks that no sector is in two classes.
func (h HotSet) disjoint() error {
	var all []Range
	for _, c := range h.Classes {
		all = append(all, c.Ranges...)
	}
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
	for i := 1; i < len(all); i++ {
		if all[i].Start < all[i-1].Start+all[i-1].Length {
			return fmt.Errorf("%w: sector %d is in a hot set twice", ErrFormat, all[i].Start)
		}
	}
	return nil
}

// decoder reads numbers; the first error sticks.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: hot set: %s", ErrFormat, fmt.Sprintf(format, args...))
	}
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.rest)
	switch {
	case d.err != nil:
		return 0
	case n == 0:
		d.fail("it ends early")
		return 0
	case n < 0 || n > 1 && d.rest[n-1] == 0:
		d.fail("a number is too long")
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) class(chunk uint64) HotClass {
	level, runs := d.uint(), d.uint()
	switch {
	case level > 1<<32-1:
		d.fail("level %d", level)
	case runs == 0:
		d.fail("a class is empty")
	case runs > uint64(len(d.rest)): // each has a byte at least
		d.fail("it ends early")
	}
	if d.err != nil {
		return HotClass{}
	}
	c := HotClass{Level: uint32(level), Ranges: make([]Range, 0, runs)}
	limit, free := uint64(maxSectors)/chunk, uint64(0)
	for range runs {
		gap, length := d.uint(), uint64(1)
		if gap&1 != 0 {
			length = min(d.uint(), limit) + 2
		}
		gap /= 2
		if gap > limit || free+gap+length > limit {
			d.fail("a run ends beyond any device")
		}
		if d.err != nil {
			return HotClass{}
		}
		start := free + gap
		c.Ranges = append(c.Ranges, Range{Start: start * chunk, Length: length * chunk})
		free = start + length + 1
	}
	return c
}

// Map returns a map for a new cache of another or the same block size: the hottest
// blocks are in the lowest ones of the cache, because dm-clone copies from the lowest
// region up, and within a class in the order of the origin. Blocks that are not wholly
// within the origin are left out (the kernel does not cache a part of a block at its
// end: cache_map in drivers/md/dm-cache-target.c), as are those that the cache has no
// room for.
func (h HotSet) Map(chunkSectors, cacheBlocks, originSectors uint64) Map {
	m := Map{ChunkSectors: chunkSectors, CacheBlocks: cacheBlocks, Policy: string(devmapper.PolicySMQ), HintWidth: hintWidth}
	if chunkSectors == 0 {
		return m
	}
	// Two ranges may touch one block if the new blocks are larger.
	seen := map[uint64]struct{}{}
	for _, c := range h.Classes {
		for _, r := range c.Ranges {
			end := min(r.Start+r.Length, originSectors/chunkSectors*chunkSectors)
			for b := r.Start / chunkSectors; b*chunkSectors < end; b++ {
				if _, found := seen[b]; found {
					continue
				}
				if uint64(len(m.Entries)) >= cacheBlocks {
					return m
				}
				seen[b] = struct{}{}
				m.Entries = append(m.Entries, Entry{Cache: uint64(len(m.Entries)), Origin: b, Level: c.Level})
			}
		}
	}
	return m
}
