package reuse

import (
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
	// leastSized are the reads of which the sizes have to be known before anything is said of them.
	leastSized = 100
	// leastBend is how far the curve has to be above a straight line, as a part of its height,
	// before there is a knee.
	leastBend = 0.1
	// heldSteps are the sizes of a cache for which is computed what it holds.
	heldSteps = 80
	// sectorBytes is what the kernel calls a sector.
	sectorBytes = 512
)

// Curve is what a cache of any size would answer.
type Curve struct {
	// hits are the parts of all reads that hit, at the sizes of grid.
	hits []float64
}

// At is the part of the reads that hit in a cache of such a part of the volume, both from 0 to 1.
func (c Curve) At(part float64) float64 {
	if len(c.hits) == 0 {
		return 0
	}
	return between(grid, c.hits, part)
}

// grid are the sizes at which a curve is known, as parts of the volume: each thousandth up to a tenth,
// then each hundredth.
var grid = func() (parts []float64) {
	for i := range 100 {
		parts = append(parts, float64(i)/1000)
	}
	for i := 10; i <= 100; i++ {
		parts = append(parts, float64(i)/100)
	}
	return parts
}()

// between is the value at x of a line through points, whose xs ascend.
func between(xs, ys []float64, x float64) float64 {
	i, exact := slices.BinarySearch(xs, x)
	switch {
	case exact:
		return ys[i]
	case i == 0:
		return ys[0]
	case i == len(xs):
		return ys[i-1]
	}
	return ys[i-1] + (x-xs[i-1])/(xs[i]-xs[i-1])*(ys[i]-ys[i-1])
}

// Knee is the part of the volume up to which more cache gives most: where the curve is farthest
// above a straight line to its end. found is false if it hardly bends.
func (c Curve) Knee() (part float64, found bool) {
	if len(c.hits) == 0 || c.hits[len(c.hits)-1] <= 0 {
		return 0, false
	}
	most := leastBend
	for i, h := range c.hits {
		if above := h/c.hits[len(c.hits)-1] - grid[i]; above > most {
			part, most, found = grid[i], above, true
		}
	}
	return part, found
}

// Curve returns that of a window.
//
// A cache whose blocks go in the order in which they came, or by chance, has a block for the part
// x/(1+x) of the time, if it is read x times as often as blocks go (Fagin and Price's approximation):
// the x of all blocks add up to the size. smq is such a cache while blocks come and go within its
// periods of a minute, and somewhat better above that (docs/explanation/measuring.md).
func (v *Volume) Curve(w Window) Curve {
	areas, reads := v.areas[w], v.loads[w].reads
	if reads == 0 || len(areas) == 0 {
		return Curve{}
	}
	c := Curve{hits: make([]float64, len(grid))}
	for half := range 2 {
		// By one half it is known what a cache holds, the other half is what it answers.
		sizes, hits := held(areas, half)
		for i, part := range grid {
			c.hits[i] = min(c.hits[i]+between(sizes, hits, part)/reads, 1)
		}
	}
	return c
}

// held returns ascending sizes, as parts of all areas, and how many reads of the other half caches of
// them answer.
func held(areas []sums, half int) (sizes, hits []float64) {
	sizes, hits = []float64{0}, []float64{0}
	most, all := 0., 0.
	for _, a := range areas {
		most, all = max(most, float64(a[half])), all+float64(a[1-half])
	}
	for step := 0; most > 0 && step < heldSteps; step++ {
		// The most read area is held for a thousandth of the time at first.
		rate := math.Exp2(float64(step)/2-10) / most
		size, answered := 0., 0.
		for _, a := range areas {
			if x := float64(a[half]) * rate; x > 0 {
				size += x / (1 + x)
				answered += float64(a[1-half]) * x / (1 + x)
			}
		}
		if size /= float64(len(areas)); size > sizes[len(sizes)-1] && size < 1 {
			sizes, hits = append(sizes, size), append(hits, answered)
		}
	}
	// All of the volume has all that was read.
	return append(sizes, 1), append(hits, all)
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
	// AtMost are the parts of reads that are at most as long as Sizes, AtMostKnown whether enough were
	// looked at.
	AtMost      [len(Sizes)]float64
	AtMostKnown bool
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
		s.AtMost, s.AtMostKnown = atMost(l.sizes)
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

// atMost adds up the reads that are at most as long as Sizes.
func atMost(sizes [SizeBins]float64) (parts [len(Sizes)]float64, known bool) {
	all := 0.
	for _, n := range sizes {
		all += n
	}
	if all < leastSized {
		return parts, false
	}
	sum := 0.
	for i := range parts {
		sum += sizes[i]
		parts[i] = min(sum/all, 1)
	}
	return parts, true
}
