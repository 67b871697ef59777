package stream

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/volume"
)

// thereAt are the places of what was prewarmed, by the numbers of the list: some of them hot, some
// not, in no order.
var thereAt = map[int]uint32{0: 31, 3: 5, 4: 2, 9: 17, chunks - 1: 0}

// prewarmed is a node whose first level was there from the beginning, and its source node.
func prewarmed(t *testing.T) (*node, *source) {
	t.Helper()
	n, s := pulled(t)
	l := volume.ChunkList{ChunkSectors: chunkSectors, Blocks: s.blocks}
	has := map[uint64]bool{}
	for i := range l.Blocks {
		at, there := thereAt[i]
		if !there {
			at = uint32(100 + i) // somewhere else in a larger cache
		}
		l.Places = append(l.Places, at)
		has[uint64(at)] = there
	}
	var there uint64
	var err error
	n.m, there, err = cachemap.Over(l, func(at uint64) bool { return has[at] }, ssdBytes/chunkBytes, originBytes/512)
	n.must(err)
	s.list = &l
	st := n.entry.Hydration.Stream
	st.Hot, st.Chunks, st.Prewarmed = there, uint64(len(n.m.Entries)), true
	for i, at := range thereAt {
		_, err := n.ssd.WriteAt(content(l.Blocks[i]), int64(at)*chunkBytes)
		n.must(err)
	}
	return n, s
}

// wantAll compares every chunk of the map with the origin.
func (n *node) wantAll() {
	n.t.Helper()
	for _, e := range n.m.Entries {
		got := make([]byte, chunkBytes)
		if _, err := n.ssd.ReadAt(got, int64(e.Cache)*chunkBytes); err != nil || !bytes.Equal(got, content(e.Origin)) {
			n.t.Errorf("at %d is %.20q, want block %d (%v)", e.Cache, got, e.Origin, err)
		}
	}
}

// TestPrewarmed: the first level serves before anything is copied; only what was not there comes,
// from the source node or, where that fails, from the origin; and nothing is written over what was
// there.
func TestPrewarmed(t *testing.T) {
	away, gone := fmt.Errorf("%w: no answer", volume.ErrUnavailable), fmt.Errorf("%w: the lease has ended", volume.ErrNotFound)
	cases := map[string]struct {
		fails  error
		at     int
		change func(n *node, s *source)
		want   volume.ServedFrom
		// wantAsked is how often the source node is asked for chunks, wantListed for the list.
		wantAsked, wantListed int
	}{
		"from the source node":        {want: volume.FromPeer, wantAsked: 1, wantListed: 1},
		"it fails in the middle":      {fails: away, at: 8, want: volume.FromOrigin, wantAsked: pulls, wantListed: 1},
		"it ends the lease":           {fails: gone, at: 8, want: volume.FromOrigin, wantAsked: 1, wantListed: 1},
		"it lists something else":     {change: func(_ *node, s *source) { s.list.Blocks = slices.Clone(s.list.Blocks[2:]) }, want: volume.FromOrigin, wantListed: 1},
		"it lists them otherwise":     {change: func(_ *node, s *source) { slices.Reverse(s.list.Blocks) }, want: volume.FromOrigin, wantListed: 1},
		"it lists more than before":   {change: func(_ *node, s *source) { s.blocks = append(s.blocks, 98); s.list.Blocks = s.blocks }, want: volume.FromPeer, wantAsked: 1, wantListed: 1},
		"it sends what it likes":      {change: func(_ *node, s *source) { s.block = func(i int) uint64 { return s.blocks[i] + 1 } }, want: volume.FromOrigin, wantAsked: pulls, wantListed: 1},
		"there is none":               {change: func(n *node, _ *source) { n.entry.Hydration.Stream.Source = nil }, want: volume.FromOrigin},
		"everything was there before": {change: func(n *node, _ *source) { n.allThere() }, want: volume.FromPeer},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n, s := prewarmed(t)
			s.chunk = func(i int) error {
				if _, there := thereAt[i]; there {
					t.Errorf("chunk %d is sent, and was there", i)
				}
				if tc.fails != nil && i >= tc.at {
					return tc.fails
				}
				return nil
			}
			if tc.change != nil {
				tc.change(n, s)
			}
			served := false
			n.file.write = func(off int64) error {
				served = served || n.levels().HotServes
				if !served {
					t.Error("something is copied before what is there serves")
				}
				for _, at := range thereAt {
					if off == int64(at)*chunkBytes {
						t.Errorf("place %d is written to", at)
					}
				}
				return nil
			}
			n.served()
			if why := n.why(); why != "" {
				t.Fatalf("the stream has ended: %s", why)
			}
			n.wantAll()
			if len(s.asked) != tc.wantAsked || s.listed != tc.wantListed {
				t.Errorf("asked %d times for chunks and %d for the list, want %d and %d", len(s.asked), s.listed, tc.wantAsked, tc.wantListed)
			}
			total := int64(len(n.m.Entries)) * chunkBytes
			if got := n.States()[0]; got.From != tc.want || got.HydratedBytes != total || got.TotalBytes != total {
				t.Errorf("state %+v, want all from %s", got, tc.want)
			}
		})
	}
}

// allThere has the map name nothing that was not there.
func (n *node) allThere() {
	m := n.m
	m.Entries = nil
	for _, e := range n.m.Ordered().Entries[:n.entry.Hydration.Stream.Hot] {
		e.Level += 64 // as it was marked
		m.Entries = append(m.Entries, e)
	}
	n.m = m
	n.entry.Hydration.Stream.Chunks = n.entry.Hydration.Stream.Hot
}
