package lease

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
)

// counts is how often blocks were read.
type counts struct {
	heat  cachemap.Heat
	added int
}

func (c *counts) Add(context.Context, *state.Entry) { c.added++ }

func (c *counts) Of(context.Context, *state.Entry) cachemap.Heat { return c.heat }

// readMost are heat by which block 11 of the origin is the hottest, and then 70.
func readMost() *counts {
	reads := make([]uint64, 71)
	reads[11], reads[70], reads[52], reads[30] = 90, 20, 3, 3
	return &counts{heat: cachemap.Heat{}.Add("a", time.Now(), chunkBytes/512, reads)}
}

// TestHottestFirst: blocks are sent by how often they were read, and by level where that is the
// same; of a cache in use after what was read since was added.
func TestHottestFirst(t *testing.T) {
	for name, s := range map[string]*source{"retained": newSource(t), "in use": newLiveSource(t)} {
		t.Run(name, func(t *testing.T) {
			c, wantAdded := readMost(), 0
			r := streamRequest()
			if s.entry.State == state.Staged {
				r, wantAdded = liveRequest(), 1
			}
			s.Heat = c
			_, err := s.Export(t.Context(), r)
			s.must(err)
			opened, err := s.OpenStream(t.Context(), "v", r.Move, r.To)
			s.must(err)
			if want := []uint64{11, 70, 52, 30}; !slices.Equal(opened.Blocks(), want) {
				t.Errorf("blocks %v, want %v", opened.Blocks(), want)
			}
			if c.added != wantAdded {
				t.Errorf("added %d times, want %d", c.added, wantAdded)
			}
			s.must(opened.Close())
		})
	}
}
