package cachemap_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestOver(t *testing.T) {
	list := func(places ...uint32) volume.ChunkList {
		l := volume.ChunkList{ChunkSectors: 64, Places: places}
		for i := range places {
			l.Blocks = append(l.Blocks, uint64(100-10*i))
		}
		return l
	}
	cases := map[string]struct {
		list          volume.ChunkList
		there         []uint64
		room, sectors uint64
		// want is in the order of the copy.
		want      []cachemap.Entry
		wantThere uint64
		wantErr   bool
	}{
		"nothing is there": {
			list: list(7, 2, 5), room: 8, sectors: 64 * 200,
			want: []cachemap.Entry{{Cache: 0, Origin: 100, Level: 63}, {Cache: 1, Origin: 90, Level: 42}, {Cache: 2, Origin: 80, Level: 21}},
		},
		"all is there": {
			list: list(7, 2, 5), there: []uint64{2, 5, 7}, room: 8, sectors: 64 * 200, wantThere: 3,
			want: []cachemap.Entry{{Cache: 2, Origin: 90, Level: 42}, {Cache: 5, Origin: 80, Level: 21}, {Cache: 7, Origin: 100, Level: 63}},
		},
		"the others take what is free, hottest first": {
			list: list(7, 0, 5, 1), there: []uint64{0, 5}, room: 8, sectors: 64 * 200, wantThere: 2,
			want: []cachemap.Entry{
				{Cache: 0, Origin: 90, Level: 63 - 63/4}, {Cache: 5, Origin: 80, Level: 63 - 63*2/4}, {Cache: 1, Origin: 100, Level: 63}, {Cache: 2, Origin: 70, Level: 63 - 63*3/4},
			},
		},
		"what was copied is not listed any more": {
			list: list(7), there: []uint64{0, 1}, room: 8, sectors: 64 * 200, want: []cachemap.Entry{{Cache: 0, Origin: 100, Level: 63}},
		},
		"no room for all": {
			list: list(0, 5, 6, 1), there: []uint64{1}, room: 3, sectors: 64 * 200, wantThere: 1,
			want: []cachemap.Entry{{Cache: 1, Origin: 70, Level: 63 - 63*3/4}, {Cache: 0, Origin: 100, Level: 63}, {Cache: 2, Origin: 90, Level: 63 - 63/4}},
		},
		"a place behind the room is not there": {
			list: list(9, 1), there: []uint64{9, 1}, room: 3, sectors: 64 * 200, wantThere: 1,
			want: []cachemap.Entry{{Cache: 1, Origin: 90, Level: 63 - 63/2}, {Cache: 0, Origin: 100, Level: 63}},
		},
		"nothing":            {list: list(), room: 8, sectors: 64},
		"two at a place":     {list: list(4, 4), there: []uint64{4}, room: 8, sectors: 64 * 200, wantErr: true},
		"behind the end":     {list: list(4, 5), there: []uint64{4}, room: 8, sectors: 64 * 100, wantErr: true},
		"behind the end too": {list: list(4, 5), there: []uint64{5}, room: 8, sectors: 64 * 100, wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			has := func(at uint64) bool { return slices.Contains(tc.there, at) }
			m, there, err := cachemap.Over(tc.list, has, tc.room, tc.sectors)
			if tc.wantErr {
				if !errors.Is(err, cachemap.ErrFormat) {
					t.Errorf("got %+v, %v, want ErrFormat", m, err)
				}
				return
			}
			want := cachemap.Map{ChunkSectors: 64, CacheBlocks: tc.room, Entries: tc.want}
			if diff := cmp.Diff(want, m.Ordered(), cmpopts.EquateEmpty()); diff != "" || err != nil || there != tc.wantThere {
				t.Errorf("%d there, want %d, %v; map differs (-want +got):\n%s", there, tc.wantThere, err, diff)
			}
			if !slices.IsSortedFunc(m.Entries, func(a, b cachemap.Entry) int { return int(a.Cache) - int(b.Cache) }) {
				t.Errorf("out of order: %+v", m.Entries)
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	m := cachemap.Map{ChunkSectors: 64, Entries: []cachemap.Entry{{Cache: 3, Origin: 9}, {Cache: 0, Origin: 4}, {Cache: 1, Origin: 7}}}
	cases := map[string]struct {
		blocks      []uint64
		from        uint64
		sectors     uint64
		wantNumbers []int
		wantSkip    volume.Bits
		wantErr     bool
	}{
		"behind what is there": {blocks: []uint64{4, 9, 7, 5}, from: 1, sectors: 64, wantNumbers: []int{0, 2}, wantSkip: volume.Bits{0b1010}},
		"nothing is to come":   {blocks: []uint64{4, 9, 7}, from: 3, sectors: 64, wantSkip: volume.Bits{0b111}},
		"more than all":        {blocks: []uint64{4}, from: 9, sectors: 64, wantSkip: volume.Bits{1}},
		"one is missing":       {blocks: []uint64{4, 9}, from: 1, sectors: 64, wantErr: true},
		"another order":        {blocks: []uint64{7, 4, 9}, from: 1, sectors: 64, wantErr: true},
		"other chunks":         {blocks: []uint64{4, 9, 7}, from: 1, sectors: 128, wantErr: true},
		"an empty list":        {from: 1, sectors: 64, wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			numbers, skip, err := m.Numbers(volume.ChunkList{ChunkSectors: tc.sectors, Blocks: tc.blocks}, tc.from)
			if tc.wantErr {
				if !errors.Is(err, cachemap.ErrFormat) {
					t.Errorf("got %v, %v, %v, want ErrFormat", numbers, skip, err)
				}
				return
			}
			if !slices.Equal(numbers, tc.wantNumbers) || !slices.Equal(skip, tc.wantSkip) || err != nil {
				t.Errorf("numbers %v without %b, %v, want %v without %b", numbers, skip, err, tc.wantNumbers, tc.wantSkip)
			}
		})
	}
}

// FuzzOver: whatever is there of a cache, both levels name disjoint blocks of it, a map that was
// written and read again is the same, and the list tells what is to be sent.
func FuzzOver(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, uint16(seed*37), uint8(seed*13))
	}
	f.Fuzz(func(t *testing.T, seed uint64, blocks uint16, copied uint8) {
		r := random(seed)
		source := anyMap(r, 64, 1+uint64(blocks%600), 1+r.Uint64N(5000))
		l := volume.ChunkList{ChunkSectors: 64}
		var at []uint64
		l.Blocks, at = source.Hottest()
		here := map[uint64]bool{}
		for _, place := range at {
			l.Places = append(l.Places, uint32(place))
			here[place] = r.UintN(256) < uint(copied)
		}
		m, there, err := cachemap.Over(l, func(place uint64) bool { return here[place] }, 1+r.Uint64N(700), 5000*64)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Entries) == 0 {
			return
		}
		checkRestores(t, m)
		ordered := m.Ordered()
		first, rest := ordered.Split(there, m.CacheBlocks)
		used, origin := map[uint64]bool{}, map[uint64]uint64{}
		for i, block := range l.Blocks {
			origin[block] = uint64(l.Places[i])
		}
		for i, e := range ordered.Entries {
			hot := uint64(i) < there
			if used[e.Cache] || e.Cache >= m.CacheBlocks || e.Level > 63 || hot && (e.Cache != origin[e.Origin] || !here[e.Cache]) {
				t.Fatalf("entry %d of %d that are there: %+v", i, there, e)
			}
			used[e.Cache] = true
		}
		merged, err := cachemap.Merge(ordered, first, rest)
		if err != nil {
			t.Fatal(err)
		}
		checkRestores(t, merged)
		if diff := cmp.Diff(ordered.Entries, merged.Entries, cmpopts.SortSlices(func(a, b cachemap.Entry) bool { return a.Cache < b.Cache })); diff != "" {
			t.Fatalf("both levels together are another map:\n%s", diff)
		}
		numbers, skip, err := ordered.Numbers(l, there)
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range numbers {
			if skip.Has(uint64(n)) || l.Blocks[n] != rest.Entries[i].Origin {
				t.Fatalf("number %d is of block %d, want %+v", n, l.Blocks[n], rest.Entries[i])
			}
		}
	})
}
