package cachemap_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/cachemap"
)

// TestFill: the other blocks of the origin come behind those that are named, in ascending order, as
// far as there is room.
func TestFill(t *testing.T) {
	const chunk = 256
	named := func(origin ...uint64) []cachemap.Entry {
		var e []cachemap.Entry
		for i, b := range origin {
			e = append(e, cachemap.Entry{Cache: uint64(i), Origin: b, Level: 9})
		}
		return e
	}
	for name, tc := range map[string]struct {
		named       []cachemap.Entry
		room, total uint64
		want        []uint64
	}{
		"nothing is named":             {room: 8, total: 3 * chunk, want: []uint64{0, 1, 2}},
		"a part of a block at the end": {room: 8, total: 3*chunk - 1, want: []uint64{0, 1}},
		"no room for all":              {room: 2, total: 3 * chunk, want: []uint64{0, 1}},
		"behind what is named":         {named: named(2, 0), room: 8, total: 4 * chunk, want: []uint64{2, 0, 1, 3}},
		"far blocks are named":         {named: named(1000, 1), room: 4, total: 2000 * chunk, want: []uint64{1000, 1, 0, 2}},
		"what is named is all":         {named: named(5, 1), room: 2, total: 8 * chunk, want: []uint64{5, 1}},
		"the origin is too small":      {room: 4, total: chunk - 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := cachemap.Map{ChunkSectors: chunk, CacheBlocks: tc.room, Entries: tc.named}
			got := m.Fill(tc.total)
			var blocks []uint64
			for i, e := range got.Entries {
				blocks = append(blocks, e.Origin)
				if e.Cache != uint64(i) || (e.Level == 9) != (i < len(tc.named)) {
					t.Errorf("entry %d is %+v", i, e)
				}
			}
			if diff := cmp.Diff(tc.want, blocks); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
			if len(m.Entries) != len(tc.named) {
				t.Error("the map itself has changed")
			}
		})
	}
	if got := (cachemap.Map{}).Fill(8); len(got.Entries) > 0 {
		t.Errorf("without a chunk size: %+v", got)
	}
}
