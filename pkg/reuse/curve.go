package reuse

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Fractions are the sizes of a cache, in percent of the volume, of which the API tells.
var Fractions = [...]int{1, 5, 10, 25, 50, 100}

const (
	// leastOperations are those of which a window has to know, and leastPart for which part of it
	// the volume has to have been looked at, before it says anything.
	leastOperations = 1000
	leastPart       = 0.5
	// leastBend is how far the curve has to be above a straight line, as a part of its height,
	// before there is a knee.
	leastBend = 0.1
	// sectorBytes is what the kernel calls a sector.
	sectorBytes = 512
)

// Curve is what a cache of any size would answer.
type Curve struct {
	// hits are the parts of all reads that the most read areas answer: of none, one, two, all.
	hits []float64
}

// At is the part of the reads that hit in a cache of such a part of the volume, both from 0 to 1.
func (c Curve) At(part float64) float64 {
	areas := len(c.hits) - 1
	if areas < 1 {
		return 0
	}
	at := min(max(part, 0), 1) * float64(areas)
	whole := min(int(at), areas-1)
	return c.hits[whole] + (at-float64(whole))*(c.hits[whole+1]-c.hits[whole])
}

// Knee is the part of the volume up to which more cache gives most: where the curve is farthest
// above a straight line to its end. found is false if it hardly bends.
func (c Curve) Knee() (part float64, found bool) {
	areas := len(c.hits) - 1
	if areas < 1 || c.hits[areas] <= 0 {
		return 0, false
	}
	most := leastBend
	for i, h := range c.hits {
		if at := float64(i) / float64(areas); h/c.hits[areas]-at > most {
			part, most, found = at, h/c.hits[areas]-at, true
		}
	}
	return part, found
}

// Curve returns that of a window.
func (v *Volume) Curve(w Window) Curve {
	areas, reads := slices.Clone(v.areas[w]), v.loads[w].reads
	if reads == 0 {
		return Curve{}
	}
	c := Curve{hits: make([]float64, len(areas)+1)}
	for half := range 2 {
		// The most read of one half are what a cache holds, the other half is what it answers.
		slices.SortFunc(areas, func(a, b sums) int { return cmp.Compare(b[half], a[half]) })
		sum := 0.
		for i, a := range areas {
			sum += float64(a[1-half])
			c.hits[i+1] = min(c.hits[i+1]+sum/reads, 1)
		}
	}
	return c
}

// Summary is what is told of a volume.
type Summary struct {
	// Since is the first look, At the last one.
	Since, At time.Time
	// AreaBytes is the length of the areas in which reads are counted, ChunkBytes that of a chunk.
	AreaBytes, ChunkBytes int64
	// Windows are those of which enough is known, the shortest first.
	Windows []WindowSummary
}

// WindowSummary is what is told of a window. Reads count as their age says (Window).
type WindowSummary struct {
	Window Window
	// Reads and Writes are operations; ReadBytes and WriteBytes the mean size of one.
	Reads, Writes         float64
	ReadBytes, WriteBytes float64
	// FlushesPerHour are those that the storage server was asked for, FlushesKnown whether anybody
	// counts them.
	FlushesPerHour float64
	FlushesKnown   bool
	// Hits are the predicted parts of reads that hit, at Fractions.
	Hits [len(Fractions)]float64
	// Again is the part of reads in areas that were read before: if areas are longer than chunks,
	// no cache answers more. It is Hits at 100 % if they are not.
	Again float64
	// KneeBytes is the size of a cache at the knee, and KneeHits what it would answer; 0 without one.
	KneeBytes int64
	KneeHits  float64
}

// WritePart is the part of operations that are writes, from 0 to 1.
func (s WindowSummary) WritePart() float64 {
	if s.Reads+s.Writes == 0 {
		return 0
	}
	return s.Writes / (s.Reads + s.Writes)
}

// Summary returns what is known. A window says nothing before the volume was looked at for half of
// it, and before a thousand operations were seen.
func (v *Volume) Summary() Summary {
	out := Summary{
		Since: v.Since, At: v.At, AreaBytes: int64(v.AreaSectors) * sectorBytes, ChunkBytes: int64(v.ChunkSectors) * sectorBytes,
	}
	for _, w := range Windows() {
		if v.At.Sub(v.Since).Seconds() < leastPart*w.Length().Seconds() {
			break
		}
		l := v.loads[w]
		if l.reads+l.writes < leastOperations {
			continue
		}
		c, s := v.Curve(w), WindowSummary{Window: w, Reads: l.reads, Writes: l.writes}
		if l.reads > 0 {
			s.ReadBytes, s.Again = l.readSectors*sectorBytes/l.reads, min(l.again/l.reads, 1)
		}
		if l.flushTime > 0 {
			s.FlushesKnown, s.FlushesPerHour = true, l.flushes/l.flushTime*time.Hour.Seconds()
		}
		if l.writes > 0 {
			s.WriteBytes = l.writeSectors * sectorBytes / l.writes
		}
		for i, f := range Fractions {
			s.Hits[i] = c.At(float64(f) / 100)
		}
		if part, found := c.Knee(); found {
			s.KneeBytes = int64(math.Ceil(part*float64(len(v.seen)))) * out.AreaBytes
			s.KneeHits = c.At(part)
		}
		out.Windows = append(out.Windows, s)
	}
	return out
}
