package cachemap_test

import (
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearflash/nearflash/pkg/cachemap"
)

func decode(t *testing.T, b []byte) cachemap.HotSet {
	t.Helper()
	h, err := cachemap.DecodeHotSet(b)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// classOf is the class of each block of the origin in a hot set.
func classOf(h cachemap.HotSet) map[uint64]int {
	out := map[uint64]int{}
	for i, c := range h.Classes {
		for _, r := range c.Ranges {
			for b := r.Start / h.ChunkSectors; b < (r.Start+r.Length)/h.ChunkSectors; b++ {
				out[b] = i
			}
		}
	}
	return out
}

// checkHotSet compares a hot set with the map that it was made of: every block is
// there, or colder than each that is, and a hotter class has hotter blocks.
func checkHotSet(t *testing.T, m cachemap.Map, h cachemap.HotSet, whole bool) {
	t.Helper()
	classes := classOf(h)
	if whole && len(classes) != len(m.Entries) {
		t.Fatalf("%d of %d blocks are listed", len(classes), len(m.Entries))
	}
	lowest := slices.Repeat([]uint32{math.MaxUint32}, len(h.Classes))
	highest := make([]uint32, len(h.Classes))
	found := 0
	var left uint32
	for _, e := range m.Entries {
		c, listed := classes[e.Origin]
		if !listed {
			left = max(left, e.Level)
			continue
		}
		found++
		lowest[c], highest[c] = min(lowest[c], e.Level), max(highest[c], e.Level)
	}
	if found != len(classes) {
		t.Fatalf("%d blocks are listed, %d of them are mapped", len(classes), found)
	}
	for i := range h.Classes {
		if h.Classes[i].Level < lowest[i] || h.Classes[i].Level > highest[i] {
			t.Errorf("class %d has level %d, its blocks %d to %d", i, h.Classes[i].Level, lowest[i], highest[i])
		}
		if i > 0 && highest[i] >= lowest[i-1] {
			t.Errorf("class %d has a block of level %d, the one before one of %d", i, highest[i], lowest[i-1])
		}
		if i == len(h.Classes)-1 && !whole && left > lowest[i] {
			t.Errorf("a block of level %d is left out, one of %d is listed", left, lowest[i])
		}
	}
}

func TestHotSetKeepsTheMap(t *testing.T) {
	for seed := range uint64(300) {
		r := random(seed)
		m := anyMap(r, 64*(1+r.Uint64N(8)), 1+r.Uint64N(500), 1+r.Uint64N(5000))
		whole := cachemap.EncodeHotSet(m, 1<<20)
		checkHotSet(t, m, decode(t, whole), true)
		limit := r.IntN(len(whole) + 10)
		short := cachemap.EncodeHotSet(m, limit)
		if len(short) > limit {
			t.Fatalf("%d bytes, at most %d were allowed", len(short), limit)
		}
		if short != nil {
			checkHotSet(t, m, decode(t, short), limit >= len(whole))
		}
	}
}

// The bound is kept for a cache of the largest size, with room well used.
func TestHotSetBound(t *testing.T) {
	for name, originBlocks := range map[string]uint64{"dense": 1_000_000, "sparse": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			m := anyMap(random(3), 256, 100_000, originBlocks)
			b := cachemap.EncodeHotSet(m, cachemap.MaxHotSetBytes)
			if len(b) > cachemap.MaxHotSetBytes || len(b) < cachemap.MaxHotSetBytes*95/100 {
				t.Errorf("%d bytes of %d", len(b), cachemap.MaxHotSetBytes)
			}
			h := decode(t, b)
			t.Logf("%d of %d blocks in %d bytes", h.Sectors()/256, len(m.Entries), len(b))
			checkHotSet(t, m, h, false)
		})
	}
}

func TestEncodeHotSetEdges(t *testing.T) {
	empty := cachemap.EncodeHotSet(cachemap.Map{ChunkSectors: 64, CacheBlocks: 9}, 100)
	if h := decode(t, empty); len(h.Classes) != 0 || h.ChunkSectors != 64 {
		t.Errorf("got %+v", h)
	}
	m := cachemap.Map{ChunkSectors: 64, CacheBlocks: 9, Entries: []cachemap.Entry{{Origin: 1 << 40}, {Cache: 1, Origin: 1<<48 - 1}, {Cache: 2, Origin: 1 << 48}}}
	if got := cachemap.EncodeHotSet(m, len(empty)); !slices.Equal(got, empty) {
		t.Errorf("room for no block: %q", got)
	}
	if got := cachemap.EncodeHotSet(m, len(empty)-1); got != nil {
		t.Errorf("room for nothing: %q", got)
	}
	// The third block is beyond every device.
	if got := slices.Sorted(maps.Keys(classOf(decode(t, cachemap.EncodeHotSet(m, 100))))); !slices.Equal(got, []uint64{1 << 40, 1<<48 - 1}) {
		t.Errorf("got blocks %v", got)
	}
	m.ChunkSectors = 7
	if got := cachemap.EncodeHotSet(m, 100); got != nil {
		t.Errorf("odd chunk: %q", got)
	}
}

// text is an encoded hot set of the given numbers.
func text(numbers ...uint64) []byte {
	b := []byte("NFH\x01")
	for _, n := range numbers {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func TestDecodeHotSet(t *testing.T) {
	// Level 9: block 5, then blocks 7 to 9. Level 2: blocks 0 to 1.
	got := decode(t, text(64, 2, 9, 2, 5*2, 0*2+1, 1, 2, 1, 0*2+1, 0))
	want := cachemap.HotSet{ChunkSectors: 64, Classes: []cachemap.HotClass{
		{Level: 9, Ranges: []cachemap.Range{{Start: 5 * 64, Length: 64}, {Start: 7 * 64, Length: 3 * 64}}},
		{Level: 2, Ranges: []cachemap.Range{{Start: 0, Length: 2 * 64}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hot set differs (-want +got):\n%s", diff)
	}
	if got.Sectors() != 6*64 {
		t.Errorf("Sectors() = %d", got.Sectors())
	}
	const huge = 1<<64 - 1
	cases := map[string][]byte{
		"nothing":            nil,
		"another version":    []byte("NFH\x02\x40\x00"),
		"odd chunk":          text(65, 0),
		"chunk of 0":         text(0, 0),
		"too many classes":   text(64, huge),
		"cut off":            text(64, 1, 9),
		"many runs":          text(64, 1, 9, huge),
		"an empty class":     text(64, 1, 9, 0),
		"a level too high":   text(64, 1, 1<<32, 1, 0),
		"order of levels":    text(64, 2, 9, 1, 0, 9, 1, 4),
		"a block too high":   text(64, 1, 9, 1, 2*(1<<48)),
		"a gap too long":     text(64, 1, 9, 1, huge-1),
		"a run too long":     text(64, 1, 9, 1, 1, 1<<48-1),
		"a run much longer":  text(64, 1, 9, 1, 1, huge),
		"a block twice":      text(64, 2, 9, 1, 2*5, 8, 1, 2*4+1, 0),
		"more bytes":         text(64, 0, 0),
		"a number too long":  append(text(), 0xc0, 0x00, 0x00),
		"a number of 80 bit": append(text(), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			if h, err := cachemap.DecodeHotSet(b); !errors.Is(err, cachemap.ErrFormat) {
				t.Errorf("got %+v, %v, want ErrFormat", h, err)
			}
		})
	}
}

func TestHotSetMap(t *testing.T) {
	h := cachemap.HotSet{ChunkSectors: 128, Classes: []cachemap.HotClass{
		{Level: 40, Ranges: []cachemap.Range{{Start: 256, Length: 256}, {Start: 1024, Length: 128}}},
		{Level: 7, Ranges: []cachemap.Range{{Start: 0, Length: 128}, {Start: 512, Length: 128}}},
	}}
	cases := map[string]struct {
		chunk, blocks, origin uint64
		// want are origin blocks and levels by cache block.
		want [][2]uint64
	}{
		"same size":          {128, 10, 4096, [][2]uint64{{2, 40}, {3, 40}, {8, 40}, {0, 7}, {4, 7}}},
		"smaller":            {64, 20, 4096, [][2]uint64{{4, 40}, {5, 40}, {6, 40}, {7, 40}, {16, 40}, {17, 40}, {0, 7}, {1, 7}, {8, 7}, {9, 7}}},
		"larger":             {256, 10, 4096, [][2]uint64{{1, 40}, {4, 40}, {0, 7}, {2, 7}}},
		"larger, they meet":  {1024, 10, 4096, [][2]uint64{{0, 40}, {1, 40}}},
		"no multiple":        {192, 10, 4096, [][2]uint64{{1, 40}, {2, 40}, {5, 40}, {0, 7}, {3, 7}}},
		"a small cache":      {128, 2, 4096, [][2]uint64{{2, 40}, {3, 40}}},
		"a small origin":     {128, 10, 300, [][2]uint64{{0, 7}}},
		"no cache":           {128, 0, 4096, nil},
		"no size":            {0, 10, 4096, nil},
		"no origin":          {128, 10, 0, nil},
		"a partial block":    {256, 10, 1300, [][2]uint64{{1, 40}, {4, 40}, {0, 7}, {2, 7}}},
		"a partial block, 2": {256, 10, 1279, [][2]uint64{{1, 40}, {0, 7}, {2, 7}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := cachemap.Map{ChunkSectors: tc.chunk, CacheBlocks: tc.blocks, Policy: "smq", HintWidth: 4}
			for i, w := range tc.want {
				want.Entries = append(want.Entries, cachemap.Entry{Cache: uint64(i), Origin: w[0], Level: uint32(w[1])})
			}
			if diff := cmp.Diff(want, h.Map(tc.chunk, tc.blocks, tc.origin), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("map differs (-want +got):\n%s", diff)
			}
		})
	}
}

// checkNewMap: a map that a hot set was turned into can be restored, and shows the
// hot set's blocks only.
func checkNewMap(t *testing.T, h cachemap.HotSet, chunk, cacheBlocks, originSectors uint64) {
	t.Helper()
	m := h.Map(chunk, cacheBlocks, originSectors)
	seen := map[uint64]bool{}
	classes := classOf(h)
	for i, e := range m.Entries {
		switch {
		case e.Cache != uint64(i) || e.Cache >= cacheBlocks || (e.Origin+1)*chunk > originSectors || seen[e.Origin]:
			t.Fatalf("entry %d: %+v", i, e)
		case i > 0 && e.Level > m.Entries[i-1].Level:
			t.Fatalf("entry %d has level %d, the one before %d", i, e.Level, m.Entries[i-1].Level)
		case i > 0 && e.Level == m.Entries[i-1].Level && e.Origin < m.Entries[i-1].Origin:
			t.Fatalf("entry %d: block %d follows %d", i, e.Origin, m.Entries[i-1].Origin)
		}
		seen[e.Origin] = true
		hot := false
		for s := e.Origin * chunk; s < (e.Origin+1)*chunk && !hot; s += 64 {
			_, hot = classes[s/h.ChunkSectors]
		}
		if !hot {
			t.Fatalf("entry %d: %+v is not in the hot set", i, e)
		}
	}
	if uint64(len(m.Entries)) == cacheBlocks {
		return
	}
	for b := range classes {
		for s := b * h.ChunkSectors; s < min((b+1)*h.ChunkSectors, originSectors/chunk*chunk); s += 64 {
			if !seen[s/chunk] {
				t.Fatalf("sector %d is hot and not in the map, which has room", s)
			}
		}
	}
}

func TestHotSetMapOfAnySize(t *testing.T) {
	for seed := range uint64(200) {
		r := random(seed)
		m := anyMap(r, 64*(1+r.Uint64N(8)), 1+r.Uint64N(300), 1+r.Uint64N(1000))
		h := decode(t, cachemap.EncodeHotSet(m, 1<<20))
		checkNewMap(t, h, 64*(1+r.Uint64N(8)), r.Uint64N(600), r.Uint64N(1000*m.ChunkSectors))
		same := h.Map(m.ChunkSectors, uint64(len(m.Entries)), 1<<40)
		if again := cachemap.EncodeHotSet(same, 1<<20); !cmp.Equal(classOf(decode(t, again)), classOf(h)) {
			t.Fatalf("seed %d: a hot set of the map of a hot set is another one", seed)
		}
	}
}

func FuzzDecodeHotSet(f *testing.F) {
	f.Add(cachemap.EncodeHotSet(anyMap(random(1), 256, 50, 300), 1<<20))
	f.Add(text(64, 2, 9, 2, 5*2, 1, 1, 2, 1, 1, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := cachemap.DecodeHotSet(b)
		if err != nil {
			if !errors.Is(err, cachemap.ErrFormat) {
				t.Errorf("error %v does not wrap ErrFormat", err)
			}
			return
		}
		runs := 0
		for _, c := range h.Classes {
			runs += len(c.Ranges)
		}
		if runs > len(b) {
			t.Errorf("%d runs of %d bytes", runs, len(b))
		}
		if n := h.Sectors() / h.ChunkSectors; n < 1<<12 {
			checkNewMap(t, h, 64*(1+n%5), n/2+1, 1<<54)
		}
		// However much it claims, what a cache has room for bounds the work.
		if m := h.Map(64, 100, 1<<54); len(m.Entries) > 100 {
			t.Errorf("%d entries", len(m.Entries))
		}
	})
}

func FuzzEncodeHotSet(f *testing.F) {
	f.Add(uint64(1), 200, uint64(500))
	f.Fuzz(func(t *testing.T, seed uint64, limit int, originBlocks uint64) {
		m := anyMap(random(seed), 64*(1+seed%8), 1+seed%300, 1+originBlocks%(1<<44))
		b := cachemap.EncodeHotSet(m, limit)
		if len(b) > max(limit, 0) {
			t.Fatalf("%d bytes, at most %d were allowed", len(b), limit)
		}
		if b != nil {
			h := decode(t, b)
			checkHotSet(t, m, h, len(classOf(h)) == len(m.Entries))
		}
	})
}

func BenchmarkEncodeHotSet(b *testing.B) {
	m := anyMap(random(1), 256, 1_000_000, 8_000_000)
	for b.Loop() {
		if cachemap.EncodeHotSet(m, cachemap.MaxHotSetBytes) == nil {
			b.Fatal("nothing was encoded")
		}
	}
}
