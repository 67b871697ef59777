package reuse

import (
	"math"
	"math/bits"
	"time"
)

// Window is a time over which a volume is looked at. It has no end at which it begins anew: reads
// of one length of it ago count 1/e, about a third, of those of now.
type Window int

// The windows.
const (
	Hour Window = iota
	Day
	Week
	windows
)

// Windows are all of them, the shortest first.
func Windows() []Window { return []Window{Hour, Day, Week} }

// String is the window's name in the API.
func (w Window) String() string { return [windows]string{"hour", "day", "week"}[w] }

// Length is how long it is.
func (w Window) Length() time.Duration {
	return [windows]time.Duration{time.Hour, 24 * time.Hour, 7 * 24 * time.Hour}[w]
}

const (
	// MaxAreas bounds the areas of a volume; devmapper.HeatAreaSectors makes at most 18,724.
	MaxAreas = 1 << 15
	// SizeBins is into how many sizes reads are sorted (SizeBin).
	SizeBins = len(Sizes) + 1
	// leastSeen is when an area counts as never read: of a single read, after about three weeks.
	leastSeen = 1. / 16
)

// Sizes are those up to which reads are counted, in bytes.
var Sizes = [...]int64{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20}

// SizeBin is the index in Sizes of the least that is as long as so many sectors, and their number for what is
// longer.
func SizeBin(sectors uint64) int {
	for i, size := range Sizes {
		if sectors <= uint64(size)/sectorBytes {
			return i
		}
	}
	return len(Sizes)
}

// Counts are what the kernel has counted between two looks.
type Counts struct {
	// AreaSectors is the length of an area, and ChunkSectors that of a chunk of the cache, or the
	// one that it would have.
	AreaSectors, ChunkSectors uint64
	// Reads are the read operations of each area.
	Reads []uint64
	// ReadSectors, Writes and WriteSectors are of the whole volume.
	ReadSectors, Writes, WriteSectors uint64
	// Flushes are those that the storage server was asked for, FlushesKnown whether anybody counts
	// them.
	Flushes      uint64
	FlushesKnown bool
	// Sizes are reads of a sample by SizeBin, as long as they were before the device mapper divided them.
	Sizes [SizeBins]uint64
}

// sums are what a window has of one area: its reads again, in two halves, one of which has all of a
// look. What is read often by chance in one half is not so in the other, so that by the order of one
// half and the counts of the other chance predicts nothing.
type sums [2]float32

// load is what a window has of the whole volume.
type load struct {
	// again are the reads of areas that were read before, whichever of their chunks it was.
	reads, readSectors, writes, writeSectors, again float64
	// flushes are of the time, in seconds, in which they were counted.
	flushes, flushTime float64
	// sizes are the sample's reads.
	sizes [SizeBins]float64
}

// fields are what of a load is kept in files, those of sizes last.
func (l *load) fields() []*float64 {
	out := []*float64{&l.reads, &l.readSectors, &l.writes, &l.writeSectors, &l.again, &l.flushes, &l.flushTime}
	for i := range l.sizes {
		out = append(out, &l.sizes[i])
	}
	return out
}

// Volume is what is known of a volume. The zero value knows nothing. It takes 28 bytes of memory an
// area.
type Volume struct {
	// Since is the first look, At the last one.
	Since, At time.Time
	// AreaSectors and ChunkSectors are those of Counts.
	AreaSectors, ChunkSectors uint64

	// seen are the reads of each area, those before the first look too, which forget as a week does.
	seen  []float32
	areas [windows][]sums
	loads [windows]load
	// looks counts those of this process.
	looks uint64
}

// Baseline tells what was read before anybody looked, or while nobody did: it makes later reads of
// it reads again, and counts itself as neither.
func (v *Volume) Baseline(now time.Time, c Counts) {
	v.begin(now, c)
	v.age(now)
	for i, n := range c.Reads {
		v.seen[i] += float32(n)
	}
}

// Look adds what was counted since the look before, which is Baseline for the first one.
func (v *Volume) Look(now time.Time, c Counts) {
	if !v.begin(now, c) {
		v.Baseline(now, c)
		return
	}
	passed := max(now.Sub(v.At), 0)
	v.age(now)
	// In turns, but not by a rhythm, which what is read in turns itself might have too, such as a scan
	// that is repeated (the sequence of Thue and Morse).
	v.looks++
	half := bits.OnesCount64(v.looks) & 1
	chunks := float64(max(v.AreaSectors/max(v.ChunkSectors, 1), 1))
	var reads, before float64
	for i, n := range c.Reads {
		if n == 0 {
			continue
		}
		reads += float64(n)
		// Which chunks of the area were read before is not known: as many as so many reads find if
		// each takes one by chance. Of an area of one chunk, that is the one.
		again := 0.
		if v.seen[i] > 0 {
			again = float64(n) * (1 - math.Pow(1-1/chunks, float64(v.seen[i])))
			before += float64(n)
		}
		v.seen[i] += float32(n)
		for w := range v.areas {
			v.areas[w][i][half] += float32(again)
		}
	}
	for w := range v.loads {
		l := &v.loads[w]
		l.reads += reads
		l.again += before
		l.readSectors += float64(c.ReadSectors)
		l.writes += float64(c.Writes)
		l.writeSectors += float64(c.WriteSectors)
		if c.FlushesKnown {
			l.flushes += float64(c.Flushes)
			l.flushTime += passed.Seconds()
		}
		for i, n := range c.Sizes {
			l.sizes[i] += float64(n)
		}
	}
}

// begin makes room for the areas of c, and reports whether anything is known of them. A volume that
// has grown may have coarser areas, and more of them.
func (v *Volume) begin(now time.Time, c Counts) (known bool) {
	v.ChunkSectors = c.ChunkSectors
	if v.AreaSectors == c.AreaSectors && len(v.seen) == len(c.Reads) && !v.Since.IsZero() {
		return true
	}
	old := *v
	v.AreaSectors, v.seen = c.AreaSectors, make([]float32, len(c.Reads))
	for w := range v.areas {
		v.areas[w] = make([]sums, len(c.Reads))
	}
	if old.Since.IsZero() || old.AreaSectors == 0 || c.AreaSectors%old.AreaSectors != 0 {
		v.Since, v.At, v.loads = now, now, [windows]load{}
		return false
	}
	times := int(c.AreaSectors / old.AreaSectors)
	for i := range old.seen {
		at := i / times
		if at >= len(v.seen) {
			break
		}
		v.seen[at] += old.seen[i]
		for w := range v.areas {
			v.areas[w][at][0] += old.areas[w][i][0]
			v.areas[w][at][1] += old.areas[w][i][1]
		}
	}
	return true
}

// age lets what is there count less.
func (v *Volume) age(now time.Time) {
	passed := max(now.Sub(v.At), 0)
	v.At = now
	if passed == 0 {
		return
	}
	for w := range v.areas {
		kept := math.Exp(-passed.Seconds() / Window(w).Length().Seconds())
		for i := range v.areas[w] {
			s := &v.areas[w][i]
			s[0], s[1] = s[0]*float32(kept), s[1]*float32(kept)
		}
		for _, f := range v.loads[w].fields() {
			*f *= kept
		}
	}
	kept := float32(math.Exp(-passed.Seconds() / Week.Length().Seconds()))
	for i := range v.seen {
		if v.seen[i] *= kept; v.seen[i] < leastSeen {
			v.seen[i] = 0
		}
	}
}
