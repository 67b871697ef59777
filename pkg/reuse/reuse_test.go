package reuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var begin = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// load is a way of reading areas.
type way func(r *rand.Rand, look int) (area int)

// watched is a volume of areas of one chunk, or of some, after so many looks of five minutes.
func watched(areas, looks, reads, chunks int, next way) *Volume {
	r := rand.New(rand.NewPCG(1, 2))
	v := &Volume{}
	for look := range looks {
		c := Counts{AreaSectors: 256 * uint64(chunks), ChunkSectors: 256, Reads: make([]uint64, areas), Writes: 10, WriteSectors: 80}
		for range reads {
			c.Reads[next(r, look)]++
			c.ReadSectors += 8
		}
		c.Sizes[SizeBin(8)] = uint64(reads / 10)
		v.Look(begin.Add(time.Duration(look)*5*time.Minute), c)
	}
	return v
}

const testAreas = 2000

func uniform(r *rand.Rand, _ int) int { return r.IntN(testAreas) }

// zipf has the k-th of all areas read in proportion to the logarithm of (k+1)/k, almost 1/k.
func zipf(r *rand.Rand, _ int) int {
	return int(math.Exp(r.Float64()*math.Log(testAreas))) % testAreas
}

// scan reads a part of the volume at each look, and never again.
func scan() way {
	at := -1
	return func(*rand.Rand, int) int { at++; return at / 40 % testAreas }
}

// byChance is what a cache of such a part of the volume answers of zipf, whose blocks go by chance.
func byChance(part float64) float64 {
	var hit float64
	for low, high := 0., 1e12; high-low > 1e-6*high; {
		rate, size := (low+high)/2, 0.
		hit = 0
		for k := 1; k < testAreas; k++ {
			p := math.Log(float64(k+1)/float64(k)) / math.Log(testAreas)
			size += p * rate / (1 + p*rate)
			hit += p * p * rate / (1 + p*rate)
		}
		if size < part*testAreas {
			low = rate
		} else {
			high = rate
		}
	}
	return hit
}

func near(t *testing.T, what string, got, want, points float64) {
	t.Helper()
	if math.Abs(got-want) > points/100 {
		t.Errorf("%s: %.3f, want %.3f", what, got, want)
	}
}

// TestCurve: predictions are those of the loads that are known to the test.
func TestCurve(t *testing.T) {
	for name, c := range map[string]struct {
		reads int
		next  way
		want  map[float64]float64
		knee  bool
	}{
		// Few reads of each area are the hard case: chance has some read more often.
		"uniform, few reads":  {1000, uniform, map[float64]float64{0.01: 0.01, 0.1: 0.1, 0.5: 0.5, 1: 1}, false},
		"uniform, many reads": {20000, uniform, map[float64]float64{0.1: 0.1, 0.25: 0.25, 1: 1}, false},
		"zipf":                {20000, zipf, map[float64]float64{0.01: byChance(0.01), 0.1: byChance(0.1), 0.5: byChance(0.5), 1: 1}, true},
		"one area":            {500, func(*rand.Rand, int) int { return 7 }, map[float64]float64{0.001: 1, 1: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := watched(testAreas, 60, c.reads, 1, c.next)
			for part, want := range c.want {
				near(t, "hits", v.Curve(Hour).At(part), want, 4)
			}
			if part, found := v.Curve(Hour).Knee(); found != c.knee {
				t.Errorf("knee at %v, %v", part, found)
			}
		})
	}
}

// TestCurveScan: what is read once predicts nothing, however many reads of an area that are; read a
// second time, it predicts little of a part of the volume.
func TestCurveScan(t *testing.T) {
	once := watched(testAreas, 20, 40*testAreas/20, 1, scan())
	near(t, "a scan", once.Curve(Day).At(1), 0, 1)
	thrice := watched(testAreas, 60, 40*testAreas/20, 1, scan())
	near(t, "scans", thrice.Curve(Week).At(1), 2./3, 5)
	near(t, "scans in half", thrice.Curve(Week).At(0.5), 0.24, 5) // less than by chance: that some are read more often is chance itself
	if _, found := thrice.Curve(Week).Knee(); found {
		t.Error("scans have a knee")
	}
}

// TestCurveCoarse: of areas of many chunks it is said that most of what was read may be read again,
// and not that it is.
func TestCurveCoarse(t *testing.T) {
	v := watched(testAreas, 60, 1000, 256, uniform)
	s := v.Summary()
	if len(s.Windows) != 1 || s.AreaBytes != 32<<20 || s.ChunkBytes != 128<<10 {
		t.Fatalf("summary %+v", s)
	}
	w := s.Windows[0]
	if w.Hits[5] > 0.25 || w.Again < 0.9 {
		t.Errorf("hits %v, again in the same area %v", w.Hits, w.Again)
	}
	fine := watched(testAreas, 60, 1000, 1, uniform).Summary().Windows[0]
	near(t, "again in the same chunk", fine.Again, fine.Hits[5], 0.1)
}

// TestWindows: each says something once half of it was looked at, and forgets at its own pace.
func TestWindows(t *testing.T) {
	v := &Volume{}
	at := begin
	look := func(area int, every time.Duration, times int) {
		for range times {
			c := Counts{AreaSectors: 256, ChunkSectors: 256, Reads: make([]uint64, 10), Writes: 300, WriteSectors: 3000, ReadSectors: 800, Flushes: uint64(every.Seconds()), FlushesKnown: area == 3}
			c.Reads[area] = 100
			v.Look(at, c)
			at = at.Add(every)
		}
	}
	look(3, time.Minute, 20)
	if s := v.Summary(); len(s.Windows) != 0 || !s.Since.Equal(begin) {
		t.Errorf("after 20 minutes: %+v", s)
	}
	look(3, 5*time.Minute, 10)
	s := v.Summary()
	if len(s.Windows) != 1 || s.Windows[0].Window != Hour {
		t.Fatalf("after an hour: %+v", s)
	}
	w := s.Windows[0]
	near(t, "writes", w.WritePart(), 0.75, 0.1)
	// One a second, but for the first looks at a longer pause, which have those of minutes.
	if !w.FlushesKnown || w.FlushesPerHour < 3000 || w.FlushesPerHour > 4200 {
		t.Errorf("%v flushes an hour", w.FlushesPerHour)
	}
	if math.Abs(w.ReadBytes-4096) > 1 || math.Abs(w.WriteBytes-5120) > 1 || w.KneeBytes != 128<<10 || w.KneeHits < 0.99 {
		t.Errorf("window %+v", w)
	}
	look(4, 10*time.Minute, 6*24*8)
	if s := v.Summary(); len(s.Windows) != 3 || s.Windows[2].Window != Week {
		t.Errorf("after eight days: %+v", s)
	}
	// Nothing for a day: the hour has forgotten, the week has not.
	v.Look(at.Add(24*time.Hour), Counts{AreaSectors: 256, ChunkSectors: 256, Reads: make([]uint64, 10)})
	for _, w := range v.Summary().Windows {
		if w.Window == Hour {
			t.Errorf("of yesterday: %+v", w)
		}
	}
	v.Look(at.Add(85*24*time.Hour), Counts{AreaSectors: 256, ChunkSectors: 256, Reads: make([]uint64, 10)})
	if v.seen[3] != 0 || v.seen[4] == 0 {
		t.Errorf("seen after three months: %v", v.seen)
	}
}

// TestGrown: a volume that is longer, or has coarser areas, is known as far as it was.
func TestGrown(t *testing.T) {
	v := watched(100, 30, 5000, 1, func(r *rand.Rand, _ int) int { return r.IntN(10) })
	reads := v.loads[Hour].reads
	v.Look(v.At, Counts{AreaSectors: 512, ChunkSectors: 256, Reads: make([]uint64, 80)})
	if len(v.areas[Hour]) != 80 || !v.Since.Equal(begin) || v.loads[Hour].reads != reads {
		t.Fatalf("%d areas since %v", len(v.areas[Hour]), v.Since)
	}
	near(t, "hits of 5 of 80 areas", v.Curve(Hour).At(5./80), 1, 2)
	v.Look(v.At.Add(time.Minute), Counts{AreaSectors: 768, ChunkSectors: 768, Reads: make([]uint64, 60)})
	if !v.Since.After(begin) || v.Curve(Hour).At(1) != 0 {
		t.Error("other areas are taken for the same")
	}
}

func TestEncode(t *testing.T) {
	v := watched(testAreas, 30, 20000, 1, zipf)
	text := v.Encode()
	if len(text) > MaxBytes || len(text) != headBytes+3*loadBytes+testAreas*areaBytes+4 {
		t.Errorf("%d bytes", len(text))
	}
	got, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []float64{0.01, 0.1, 0.5, 1} {
		near(t, "hits", got.Curve(Hour).At(part), v.Curve(Hour).At(part), 1)
	}
	if !got.Since.Equal(v.Since) || !got.At.Equal(v.At) || got.AreaSectors != 256 || got.ChunkSectors != 256 || got.loads != v.loads || got.loads[Hour].sizes[0] == 0 || !bytes.Equal(got.Encode(), text) {
		t.Errorf("since %v, loads %v", got.Since, got.loads)
	}
	for name, broken := range map[string][]byte{"empty": nil, "short": text[:len(text)-1], "changed": slices.Concat(text[:100], []byte{1}, text[101:]), "long": make([]byte, MaxBytes+1)} {
		if _, err := Decode(broken); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDecodeBefore: a file of the version that knew no sizes has all the rest.
func TestDecodeBefore(t *testing.T) {
	v := watched(10, 12, 2000, 1, func(r *rand.Rand, _ int) int { return r.IntN(10) })
	text := v.Encode()
	old := append([]byte(before), text[len(magic):headBytes]...)
	for w := range v.loads {
		old = append(old, text[headBytes+w*loadBytes:][:plainFields*8]...)
	}
	old = append(old, text[headBytes+len(v.loads)*loadBytes:len(text)-crc32.Size]...)
	got, err := Decode(binary.BigEndian.AppendUint32(old, crc32.ChecksumIEEE(old)))
	if err != nil {
		t.Fatal(err)
	}
	for w := range v.loads {
		v.loads[w].sizes = [SizeBins]float64{}
	}
	if !bytes.Equal(got.Encode(), v.Encode()) {
		t.Errorf("%+v, want %+v", got.loads, v.loads)
	}
}

// TestSizes: reads are sorted by the least size that they are no longer than, and told once there are enough.
func TestSizes(t *testing.T) {
	for sectors, want := range map[uint64]int{1: 0, 8: 0, 9: 1, 16: 1, 256: 5, 257: 6, 2048: 8, 2049: 9, 1 << 31: 9} {
		if got := SizeBin(sectors); got != want {
			t.Errorf("%d sectors: %d, want %d", sectors, got, want)
		}
	}
	v := &Volume{}
	look := func(i int, sizes map[uint64]uint64) {
		c := Counts{AreaSectors: 256, ChunkSectors: 256, Reads: []uint64{1000}, ReadSectors: 8000}
		for sectors, n := range sizes {
			c.Sizes[SizeBin(sectors)] += n
		}
		v.Look(begin.Add(time.Duration(i)*5*time.Minute), c)
	}
	for i := range 8 {
		look(i, nil)
	}
	look(8, map[uint64]uint64{8: 99})
	if w := v.Summary().Windows[0]; w.AtMostKnown {
		t.Errorf("of 99 reads: %v", w.AtMost)
	}
	look(9, map[uint64]uint64{8: 51, 256: 50, 4096: 50})
	w := v.Summary().Windows[0]
	for i, want := range [len(Sizes)]float64{0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.8, 0.8, 0.8} {
		near(t, "reads of at most this", w.AtMost[i], want, 1.5)
	}
	if !w.AtMostKnown {
		t.Error("sizes are not known")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(watched(3, 3, 10, 1, func(r *rand.Rand, _ int) int { return r.IntN(3) }).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Decode(b)
		if err != nil {
			return
		}
		for _, w := range v.Summary().Windows {
			for i, h := range w.Hits {
				if h < 0 || h > 1 || i > 0 && h < w.Hits[i-1] {
					t.Errorf("hits %v", w.Hits)
				}
			}
		}
	})
}

func BenchmarkLook(b *testing.B) {
	c := Counts{AreaSectors: 512, ChunkSectors: 256, Reads: make([]uint64, 4403)}
	for i := range c.Reads {
		c.Reads[i] = uint64(i % 7)
	}
	v := &Volume{}
	at := begin
	for b.Loop() {
		at = at.Add(5 * time.Minute)
		v.Look(at, c)
		v.Summary()
	}
}
