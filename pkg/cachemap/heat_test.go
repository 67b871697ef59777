package cachemap_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/cachemap"
)

var heatTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func heatOf(areaSectors uint64, reads ...uint64) cachemap.Heat {
	return cachemap.Heat{}.Add("a", heatTime, areaSectors, reads)
}

// TestByHeat: the order is by heat, then by level, then by place.
func TestByHeat(t *testing.T) {
	entries := func(e ...cachemap.Entry) cachemap.Map {
		return cachemap.Map{ChunkSectors: 64, CacheBlocks: 99, Entries: e}
	}
	four := entries(cachemap.Entry{Cache: 0, Origin: 3, Level: 9}, cachemap.Entry{Cache: 1, Origin: 1}, cachemap.Entry{Cache: 2, Origin: 0, Level: 63}, cachemap.Entry{Cache: 5, Origin: 2})
	cases := map[string]struct {
		m    cachemap.Map
		heat cachemap.Heat
		want []uint64 // blocks of the origin
	}{
		"none":              {four, cachemap.Heat{}, []uint64{0, 3, 1, 2}},
		"by reads":          {four, heatOf(64, 1, 50, 20, 900), []uint64{3, 1, 2, 0}},
		"as many reads":     {four, heatOf(64, 7, 7, 90, 7), []uint64{2, 0, 3, 1}},
		"not read at all":   {four, heatOf(64, 0, 0, 1, 0), []uint64{2, 0, 3, 1}},
		"nothing was read":  {four, heatOf(64, 0, 0, 0, 0), []uint64{0, 3, 1, 2}},
		"areas of two":      {four, heatOf(128, 4, 9), []uint64{3, 2, 0, 1}},
		"one is cached":     {entries(cachemap.Entry{Cache: 0, Origin: 0}, cachemap.Entry{Cache: 1, Origin: 1}, cachemap.Entry{Cache: 2, Origin: 3}), heatOf(128, 100, 80), []uint64{3, 0, 1}},
		"beyond the areas":  {four, heatOf(64, 1, 2), []uint64{1, 0, 3, 2}},
		"of other chunks":   {four, heatOf(96, 1, 2, 3, 4), []uint64{0, 3, 1, 2}},
		"of smaller chunks": {four, heatOf(32, 1, 2, 3, 4), []uint64{0, 3, 1, 2}},
		"an empty map":      {entries(), heatOf(64, 1), nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tc.m.Entries)
			got, _ := tc.m.ByHeat(tc.heat).Hottest()
			if !slices.Equal(got, tc.want) {
				t.Errorf("order %v, want %v", got, tc.want)
			}
			if !slices.Equal(before, tc.m.Entries) {
				t.Errorf("the map itself was changed")
			}
		})
	}
}

// TestByHeatSixteenth: the first level of a stream, and the first class of a hot set, are the hottest
// blocks exactly, although levels say nothing.
func TestByHeatSixteenth(t *testing.T) {
	const blocks = 1600
	m := cachemap.Map{ChunkSectors: 64, CacheBlocks: blocks}
	reads := make([]uint64, blocks)
	for i := range uint64(blocks) {
		origin := i * 7 % blocks
		m.Entries = append(m.Entries, cachemap.Entry{Cache: i, Origin: origin, Level: 63})
		reads[origin] = 2
		if i%16 == 3 {
			reads[origin] = 5
		}
	}
	hot := m.ByHeat(heatOf(64, reads...))
	order, at := hot.Hottest()
	first := int(cachemap.HotChunks(blocks))
	for i := range order {
		if (reads[order[i]] == 5) != (i < first) {
			t.Fatalf("number %d was read %d times", i, reads[order[i]])
		}
	}
	if !slices.IsSorted(at[:first/4]) {
		t.Errorf("what is as hot does not lie side by side: %v", at[:first/4])
	}
	set, err := cachemap.DecodeHotSet(cachemap.EncodeHotSet(hot, cachemap.MaxHotSetBytes))
	if err != nil || set.Sectors() != blocks*64 {
		t.Fatalf("hot set of %d sectors, %v", set.Sectors(), err)
	}
	listed := map[uint64]bool{}
	for _, r := range set.Classes[0].Ranges {
		for b := r.Start / 64; b < (r.Start+r.Length)/64; b++ {
			listed[b] = true
		}
	}
	for b, n := range reads {
		if n == 5 && !listed[uint64(b)] {
			t.Fatalf("block %d is not in the first class", b)
		}
	}
}

// TestHeatAdd: what is old counts less, however often more was added; what does not belong to
// it is forgotten.
func TestHeatAdd(t *testing.T) {
	later := func(d time.Duration) time.Time { return heatTime.Add(d) }
	old := heatOf(64, 1000, 0, 16, 0)
	cases := map[string]struct {
		got, want cachemap.Heat
	}{
		"at once":            {old.Add("a", heatTime, 64, []uint64{0, 1, 0, 0}), heatOf(64, 1000, 1, 16, 0)},
		"half":               {old.Add("a", later(30*time.Minute), 64, []uint64{500, 1, 0, 0}), heatOf(64, 1000, 1, 8, 0)},
		"long ago":           {old.Add("a", later(24*time.Hour), 64, []uint64{0, 1, 0, 0}), heatOf(64, 0, 1, 0, 0)},
		"a clock set back":   {old.Add("a", later(-time.Hour), 64, []uint64{0, 1, 0, 0}), heatOf(64, 1000, 1, 16, 0)},
		"of another stage":   {old.Add("b", heatTime, 64, []uint64{0, 1, 0, 0}), heatOf(64, 0, 1, 0, 0)},
		"has grown":          {old.Add("a", heatTime, 64, []uint64{0, 0, 0, 0, 3}), heatOf(64, 1000, 0, 16, 0, 3)},
		"coarser":            {old.Add("a", heatTime, 128, []uint64{0, 0, 5}), heatOf(128, 1000, 16, 5)},
		"finer":              {old.Add("a", heatTime, 32, []uint64{0, 1}), heatOf(32, 0, 1)},
		"is shorter":         {old.Add("a", heatTime, 64, []uint64{0}), heatOf(64, 1000)},
		"more than there is": {old.Add("a", heatTime, 64, []uint64{1 << 63}), heatOf(64, 1<<62)},
	}
	for name, tc := range cases {
		if diff := cmp.Diff(tc.want.Areas, tc.got.Areas); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	often := old
	for i := range 100 {
		often = often.Add("a", later(time.Duration(i)*time.Second), 64, make([]uint64, 4))
	}
	if often.Areas[0] < old.Areas[0]-1 {
		t.Errorf("after 100 s in steps of one: %v, was %v", often.Areas, old.Areas)
	}
}

func TestHeatEncode(t *testing.T) {
	h := heatOf(2048, 1, 0, 1<<40, 7)
	b := h.Encode()
	got, err := cachemap.DecodeHeat(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i := range b {
		broken := slices.Clone(b)
		broken[i] ^= 4
		if _, err := cachemap.DecodeHeat(broken); !errors.Is(err, cachemap.ErrFormat) {
			t.Errorf("byte %d is wrong: %v", i, err)
		}
		if _, err := cachemap.DecodeHeat(b[:i]); !errors.Is(err, cachemap.ErrFormat) {
			t.Errorf("%d bytes: %v", i, err)
		}
	}
	if _, err := cachemap.DecodeHeat(make([]byte, cachemap.MaxHeatBytes+1)); !errors.Is(err, cachemap.ErrFormat) {
		t.Errorf("too long: %v", err)
	}
}

// FuzzDecodeHeat: what is read is what would be written.
func FuzzDecodeHeat(f *testing.F) {
	f.Add(heatOf(2048, 1, 0, 1<<40, 7).Encode())
	f.Add(cachemap.Heat{}.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := cachemap.DecodeHeat(b)
		if err == nil && !bytes.Equal(h.Encode(), b) {
			t.Errorf("%x is read as %+v", b, h)
		}
		m := cachemap.Map{ChunkSectors: 64, CacheBlocks: 9, Entries: []cachemap.Entry{{Origin: 1}, {Cache: 1, Origin: 1 << 50}}}
		_ = m.ByHeat(h)
		_ = h.Add(h.Of, heatTime, h.AreaSectors, make([]uint64, 3))
	})
}

func BenchmarkByHeat(b *testing.B) {
	m, reads := cachemap.Map{ChunkSectors: 64, CacheBlocks: 1 << 20}, make([]uint64, 12787)
	for i := range uint64(1 << 20) {
		m.Entries = append(m.Entries, cachemap.Entry{Cache: i, Origin: i * 12345 % (1 << 20), Level: uint32(i % 64)})
		reads[i%12787] = i
	}
	h := heatOf(128*64, reads...)
	for b.Loop() {
		m.ByHeat(h)
	}
}
