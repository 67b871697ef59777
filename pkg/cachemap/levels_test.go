package cachemap_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearflash/nearflash/pkg/cachemap"
)

func TestStreamed(t *testing.T) {
	entries := func(pairs ...[2]uint64) (out []cachemap.Entry) {
		for i, p := range pairs {
			out = append(out, cachemap.Entry{Cache: uint64(i), Origin: p[0], Level: uint32(p[1])})
		}
		return out
	}
	cases := map[string]struct {
		blocks        []uint64
		room, sectors uint64
		want          []cachemap.Entry
		wantErr       bool
	}{
		"in the order of the list": {blocks: []uint64{9, 0, 5}, room: 8, sectors: 640, want: entries([2]uint64{9, 63}, [2]uint64{0, 42}, [2]uint64{5, 21})},
		"one":                      {blocks: []uint64{9}, room: 8, sectors: 640, want: entries([2]uint64{9, 63})},
		"none":                     {room: 8, sectors: 640},
		"more than there is room":  {blocks: []uint64{9, 0, 5}, room: 2, sectors: 640, want: entries([2]uint64{9, 63}, [2]uint64{0, 32})},
		"what has no room is not looked at": {
			blocks: []uint64{9, 0, 500}, room: 2, sectors: 640, want: entries([2]uint64{9, 63}, [2]uint64{0, 32}),
		},
		"the last block, shorter":    {blocks: []uint64{9}, room: 8, sectors: 639, wantErr: true},
		"behind the end":             {blocks: []uint64{0, 9}, room: 8, sectors: 576, wantErr: true},
		"far behind":                 {blocks: []uint64{1<<64 - 1}, room: 8, sectors: 576, wantErr: true},
		"an origin without anything": {blocks: []uint64{0}, room: 8, wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := cachemap.Streamed(tc.blocks, 64, tc.room, tc.sectors)
			if tc.wantErr {
				if !errors.Is(err, cachemap.ErrFormat) {
					t.Errorf("got %+v, %v, want ErrFormat", got, err)
				}
				return
			}
			if diff := cmp.Diff(cachemap.Map{ChunkSectors: 64, CacheBlocks: tc.room, Entries: tc.want}, got); diff != "" || err != nil {
				t.Errorf("map differs (-want +got), %v:\n%s", err, diff)
			}
		})
	}
}

// The levels of a large map go down in its order, from the hottest to the coldest that there is.
func TestStreamedLevels(t *testing.T) {
	blocks := make([]uint64, 1000)
	for i := range blocks {
		blocks[i] = uint64(i)
	}
	m, err := cachemap.Streamed(blocks, 64, 1000, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	e := m.Entries
	if !slices.IsSortedFunc(e, func(a, b cachemap.Entry) int { return int(b.Level) - int(a.Level) }) {
		t.Error("a chunk is hotter than one before it")
	}
	if first, last := e[0].Level, e[len(e)-1].Level; first != 63 || last > 1 {
		t.Errorf("levels %d to %d, want 63 to 0 or 1", first, last)
	}
}

func TestHottest(t *testing.T) {
	m := cachemap.Map{Entries: []cachemap.Entry{
		{Cache: 1, Origin: 50, Level: 3}, {Cache: 2, Origin: 40, Level: 63}, {Cache: 4, Origin: 30, Level: 3}, {Cache: 7, Origin: 20, Level: 63}, {Cache: 8, Origin: 10},
	}}
	before := slices.Clone(m.Entries)
	origin, cache := m.Hottest()
	if want := []uint64{40, 20, 50, 30, 10}; !slices.Equal(origin, want) {
		t.Errorf("blocks %v of the origin, want %v", origin, want)
	}
	if want := []uint64{2, 7, 1, 4, 8}; !slices.Equal(cache, want) {
		t.Errorf("blocks %v of the cache, want %v", cache, want)
	}
	if !slices.Equal(m.Entries, before) {
		t.Errorf("the map itself has changed: %+v", m.Entries)
	}
	if origin, cache := (cachemap.Map{}).Hottest(); len(origin)+len(cache) > 0 {
		t.Errorf("an empty map has %v, %v", origin, cache)
	}
}

func TestHotChunks(t *testing.T) {
	for chunks, want := range map[uint64]uint64{0: 0, 1: 1, 2: 1, 15: 1, 16: 1, 17: 2, 32: 2, 33: 3, 1 << 20: 1 << 16} {
		if got := cachemap.HotChunks(chunks); got != want {
			t.Errorf("%d of %d chunks, want %d", got, chunks, want)
		}
	}
}

func TestSplit(t *testing.T) {
	e := []cachemap.Entry{{Cache: 0, Origin: 9, Level: 63}, {Cache: 1, Origin: 4, Level: 40}, {Cache: 2, Origin: 7, Level: 20}}
	cases := map[string]struct {
		hot       uint64
		wantFirst []cachemap.Entry
		wantRest  []cachemap.Entry
	}{
		"one":       {1, e[:1], e[1:]},
		"two":       {2, e[:2], e[2:]},
		"all":       {3, e, nil},
		"none":      {0, nil, e},
		"more than": {7, e, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m := cachemap.Map{ChunkSectors: 64, CacheBlocks: 12, Policy: "smq", HintWidth: 4, Entries: e}
			first, rest := m.Split(tc.hot, tc.hot)
			wantFirst, wantRest := m, m
			wantFirst.CacheBlocks, wantFirst.Entries, wantRest.Entries = tc.hot, tc.wantFirst, tc.wantRest
			if diff := cmp.Diff(wantFirst, first, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("first level (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(wantRest, rest, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("second level (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	a, b, c := cachemap.Entry{Cache: 0, Origin: 9, Level: 63}, cachemap.Entry{Cache: 1, Origin: 4, Level: 40}, cachemap.Entry{Cache: 2, Origin: 7, Level: 20}
	whole := cachemap.Map{ChunkSectors: 64, CacheBlocks: 12, Policy: "smq", HintWidth: 4, Entries: []cachemap.Entry{a, b, c}}
	level := func(e ...cachemap.Entry) cachemap.Map {
		return cachemap.Map{ChunkSectors: 64, CacheBlocks: 3, Policy: "cleaner", Entries: e}
	}
	cold := func(e cachemap.Entry) cachemap.Entry {
		e.Level = 0 // a level under the cleaner policy has no hints
		return e
	}
	cases := map[string]struct {
		levels  []cachemap.Map
		want    []cachemap.Entry
		wantErr string
	}{
		"both, whole":               {levels: []cachemap.Map{level(cold(a)), level(cold(b), cold(c))}, want: []cachemap.Entry{a, b, c}},
		"the first alone":           {levels: []cachemap.Map{level(cold(a))}, want: []cachemap.Entry{a}},
		"the second alone":          {levels: []cachemap.Map{level(cold(c))}, want: []cachemap.Entry{c}},
		"no level":                  {},
		"everything was written":    {levels: []cachemap.Map{level(), level()}},
		"one of each was written":   {levels: []cachemap.Map{level(), level(cold(c))}, want: []cachemap.Entry{c}},
		"in another order":          {levels: []cachemap.Map{level(cold(c)), level(cold(a))}, want: []cachemap.Entry{a, c}},
		"one in both":               {levels: []cachemap.Map{level(cold(a), cold(b)), level(cold(a), cold(c))}, want: []cachemap.Entry{b, c}},
		"one block in both":         {levels: []cachemap.Map{level(cold(a), cold(b)), level(cachemap.Entry{Cache: 7, Origin: 9})}, want: []cachemap.Entry{b}},
		"another chunk in place":    {levels: []cachemap.Map{level(cachemap.Entry{Cache: 0, Origin: 8}), level(cold(b))}, want: []cachemap.Entry{b}},
		"a chunk in another place":  {levels: []cachemap.Map{level(cachemap.Entry{Cache: 3, Origin: 9}), level(cold(b))}, want: []cachemap.Entry{b}},
		"a chunk that never came":   {levels: []cachemap.Map{level(cold(a), cachemap.Entry{Cache: 5, Origin: 11})}, want: []cachemap.Entry{a}},
		"chunks of another size":    {levels: []cachemap.Map{level(a), {ChunkSectors: 128}}, wantErr: "128 sectors"},
		"a level with dirty chunks": {levels: []cachemap.Map{{ChunkSectors: 64, Dirty: 3}}, wantErr: "3 dirty"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := cachemap.Merge(whole, tc.levels...)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) || len(got.Entries) > 0 {
					t.Errorf("got %+v, %v, want an error with %q", got, err, tc.wantErr)
				}
				return
			}
			want := whole
			want.Entries = tc.want
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("map differs (-want +got), %v:\n%s", err, diff)
			}
		})
	}
}

// FuzzLevels: whatever the levels have lost, and whatever they name besides, one map has of the
// whole one what a level kept, unless another names its block too, each chunk once, and in an order that can be restored.
func FuzzLevels(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, uint16(seed*37), uint8(seed*13))
	}
	f.Fuzz(func(t *testing.T, seed uint64, blocks uint16, lost uint8) {
		r := random(seed)
		source := anyMap(r, 64, 1+uint64(blocks%600), 1+r.Uint64N(5000))
		listed, _ := source.Hottest()
		whole, err := cachemap.Streamed(listed, 64, 1+r.Uint64N(700), 5000*64)
		if err != nil {
			t.Fatal(err)
		}
		hot := cachemap.HotChunks(uint64(len(whole.Entries)))
		first, rest := whole.Split(hot, hot)
		for _, m := range []cachemap.Map{whole, first, rest} {
			if len(m.Entries) > 0 {
				checkRestores(t, m)
			}
		}
		same, err := cachemap.Merge(whole, first, rest)
		if diff := cmp.Diff(whole, same, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Fatalf("both levels together are another map (-want +got), %v:\n%s", err, diff)
		}
		kept, named := map[[2]uint64]bool{}, map[uint64]int{}
		for _, l := range []*cachemap.Map{&first, &rest} {
			l.Entries = slices.DeleteFunc(slices.Clone(l.Entries), func(cachemap.Entry) bool { return r.UintN(256) < uint(lost) })
			if r.IntN(2) == 0 {
				l.Entries = append(l.Entries, anyMap(r, 64, 20, 5000).Entries...)
			}
			for i := range l.Entries {
				l.Entries[i].Level = 0
				kept[[2]uint64{l.Entries[i].Cache, l.Entries[i].Origin}] = true
				named[l.Entries[i].Origin]++
			}
		}
		merged, err := cachemap.Merge(whole, first, rest)
		if err != nil {
			t.Fatal(err)
		}
		next := 0
		for _, e := range whole.Entries {
			in := next < len(merged.Entries) && merged.Entries[next] == e
			if in {
				next++
			}
			if want := kept[[2]uint64{e.Cache, e.Origin}] && named[e.Origin] == 1; in != want {
				t.Fatalf("%+v is in the map: %t, a level kept it and none names its block: %t", e, in, want)
			}
		}
		if next != len(merged.Entries) {
			t.Fatalf("%+v is not of the map that the levels began with, or out of its order", merged.Entries[next])
		}
		checkRestores(t, merged)
	})
}

// checkRestores writes a map as the tools read it, and reads it back.
func checkRestores(t *testing.T, m cachemap.Map) {
	t.Helper()
	var text bytes.Buffer
	if err := m.WriteXML(&text); err != nil {
		t.Fatal(err)
	}
	want := m
	want.Policy, want.HintWidth = "smq", 4
	got, err := cachemap.Read(&text)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
		t.Fatalf("the map that was read back differs (-want +got), %v:\n%s", err, diff)
	}
}
