package cachestream

import (
	"bytes"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/volume"
)

// without is a bit for each number.
func without(numbers ...uint64) volume.Bits {
	b := volume.NewBits(slices.Max(numbers) + 1)
	for _, i := range numbers {
		b.Set(i)
	}
	return b
}

// TestSkip: what is not wanted is not read, and everything else comes in its order.
func TestSkip(t *testing.T) {
	cases := map[string]struct {
		wanted volume.Wanted
		want   []int
	}{
		"nothing is left out":  {volume.Wanted{}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		"some":                 {volume.Wanted{Skip: without(0, 3, 4, 7)}, []int{1, 2, 5, 6, 8, 9}},
		"the last ones":        {volume.Wanted{Skip: without(7, 8, 9)}, []int{0, 1, 2, 3, 4, 5, 6}},
		"from the middle on":   {volume.Wanted{From: 4, Skip: without(0, 4, 5, 8)}, []int{6, 7, 9}},
		"all":                  {volume.Wanted{Skip: volume.Bits{0xff, 0x03}}, nil},
		"behind the last one":  {volume.Wanted{From: 10, Skip: without(1)}, nil},
		"at their places":      {volume.Wanted{Skip: without(1), Places: []uint32{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}}, []int{0, 2, 3, 4, 5, 6, 7, 8, 9}},
		"fewer bits than that": {volume.Wanted{Skip: volume.Bits{0x81}}, []int{1, 2, 3, 4, 5, 6, 8, 9}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCache(chunk, 10)
			n := startNode(t, c, nil)
			got := &received{}
			if err := client(t, "node-b").Chunks(t.Context(), n.Source(), id, move, tc.wanted, 0, chunk, got.verify(t, c)); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.places, tc.want) {
				t.Errorf("received %v, want %v", got.places, tc.want)
			}
		})
	}
	c := newCache(chunk, 10)
	n := startNode(t, c, nil)
	for name, tc := range map[string]struct {
		wanted volume.Wanted
		want   error
	}{
		"more bits than chunks":      {volume.Wanted{Skip: make(volume.Bits, 3)}, volume.ErrInvalid},
		"more than there can be":     {volume.Wanted{Skip: make(volume.Bits, maxSkip+1)}, volume.ErrInvalid},
		"another place":              {volume.Wanted{Places: []uint32{9, 8, 6, 7, 5, 4, 3, 2, 1, 0}}, volume.ErrUnavailable},
		"a list that was shorter":    {volume.Wanted{Places: []uint32{9, 8, 7}}, volume.ErrUnavailable},
		"a list without any chunk":   {volume.Wanted{Places: []uint32{}}, volume.ErrUnavailable},
		"a list that was longer":     {volume.Wanted{From: 11}, volume.ErrInvalid},
		"all left out, a longer one": {volume.Wanted{Skip: without(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)}, volume.ErrInvalid},
	} {
		got := &received{}
		wantErr(t, client(t, "node-b").Chunks(t.Context(), n.Source(), id, move, tc.wanted, 0, chunk, got.verify(t, c)), tc.want)
		if len(got.places) > 3 {
			t.Errorf("%s: received %v", name, got.places)
		}
	}
}

// TestLyingSkip: who sends what is not wanted, or of another place, is not believed.
func TestLyingSkip(t *testing.T) {
	begin := begins(chunk/sectorSize, 3)
	placed := func(number, at uint32) answer {
		return whole(number, func(c *streampb.Chunks) { c.CachePlaces[0] = at })
	}
	cases := map[string]struct {
		replies []answer
		want    error
		got     []int
	}{
		"what is wanted":        {[]answer{begin, placed(0, 5), placed(2, 7)}, nil, []int{0, 2}},
		"what is left out":      {[]answer{begin, placed(0, 5), placed(1, 6), placed(2, 7)}, ErrBroken, []int{0}},
		"not all":               {[]answer{begin, placed(0, 5)}, ErrBroken, []int{0}},
		"another place":         {[]answer{begin, placed(0, 5), placed(2, 6)}, volume.ErrUnavailable, []int{0}},
		"as large as can be":    {[]answer{begin, placed(0, 1<<32-1)}, volume.ErrUnavailable, nil},
		"another place, behind": {[]answer{begin, together(placed(0, 5), placed(2, 6))}, volume.ErrUnavailable, []int{0}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			src := (&liar{chunks: replying(tc.replies)}).start(t)
			var got []int
			w := volume.Wanted{Skip: without(1), Places: []uint32{5, 6, 7}}
			err := client(t, "node-b").Chunks(t.Context(), src, id, move, w, 0, chunk, func(i int, block uint64, data []byte) error {
				if !bytes.Equal(data, content(block, chunk)) {
					t.Errorf("chunk %d", i)
				}
				got = append(got, i)
				return nil
			})
			if tc.want == nil && err != nil {
				t.Error(err)
			}
			if tc.want != nil {
				wantErr(t, err, tc.want)
			}
			if !slices.Equal(got, tc.got) {
				t.Errorf("received %v, want %v", got, tc.got)
			}
		})
	}
}

// FuzzWanted: both sides count the same chunks, whatever is not wanted.
func FuzzWanted(f *testing.F) {
	f.Add([]byte{0x0f, 0xf0}, 3, 20)
	f.Add([]byte{0xff}, 8, 8)
	f.Add([]byte{}, 0, 1)
	f.Fuzz(func(t *testing.T, skip []byte, from, chunks int) {
		if len(skip) > maxSkip || from < 0 || chunks < 0 || chunks > 1<<12 || from > chunks {
			return
		}
		var want []int
		for i := from; i < chunks; i++ {
			if !volume.Bits(skip).Has(uint64(i)) {
				want = append(want, i)
			}
		}
		var got []int
		for i := wantedFrom(skip, from); i < chunks; i = wantedFrom(skip, i+1) {
			got = append(got, i)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}
