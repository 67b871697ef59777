package stream

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestBandwidth: streams share what the node may copy, and each keeps to its own limit.
func TestBandwidth(t *testing.T) {
	for name, tc := range map[string]struct {
		node, own int64
		active    int
		want      int64
	}{
		"no limit":              {active: 1, want: 0},
		"its own":               {own: 64 << 20, active: 5, want: 64 << 20},
		"the node's":            {node: 100 << 20, active: 1, want: 100 << 20},
		"a share of the node's": {node: 100 << 20, own: 64 << 20, active: 20, want: 5 << 20},
		"its own is less":       {node: 100 << 20, own: 1 << 20, active: 20, want: 1 << 20},
		"none is known yet":     {node: 100 << 20, active: 0, want: 100 << 20},
		"never no limit":        {node: 3, active: 20, want: 1},
		"of its own neither":    {node: 3, own: 8, active: 20, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Config{NodeBandwidth: func() int64 { return tc.node }, Now: time.Now})
			for i := range tc.active {
				r.account(volume.ID(fmt.Sprint(i)))
			}
			c := &copying{r: r, entry: state.Entry{Hydration: &state.Hydration{Bandwidth: tc.own}}}
			if got := c.bandwidth(); got != tc.want {
				t.Errorf("%d bytes a second, want %d", got, tc.want)
			}
		})
	}
}

// TestBandwidthOfMany: a stream that began alone leaves others their share as soon as they begin,
// wherever its chunks come from.
func TestBandwidthOfMany(t *testing.T) {
	const node = 4 << 20
	for _, from := range []volume.ServedFrom{volume.FromPeer, volume.FromOrigin} {
		t.Run(string(from), func(t *testing.T) {
			n, s := pulled(t)
			n.NodeBandwidth = func() int64 { return node }
			begins := func(i int) error {
				if i == 3 {
					n.account("w")
				}
				return nil
			}
			s.chunk = begins
			if from == volume.FromOrigin {
				n.entry.Hydration.Stream.Source = nil
				n.file.read = func(off int64) error {
					if uint64(off/chunkBytes) == n.m.Entries[3].Origin {
						return begins(3)
					}
					return nil
				}
			}
			began := time.Now()
			n.served()
			n.wantCopied(chunks)
			// Chunks 0 to 2 come at the node's speed, the first at once, the others at half of it.
			least := time.Duration(2*chunkBytes+(chunks-3)*2*chunkBytes) * time.Second / node
			if took := time.Since(began); took < least*9/10 {
				t.Errorf("took %s, want at least %s", took, least)
			}
			if got := n.copying(n.account("v")).limit.Limit(); got != node/2 {
				t.Errorf("limit of %v bytes a second, want %d", got, node/2)
			}
		})
	}
}

// TestStopPaced: a copy that waits for its turn ends at once.
func TestStopPaced(t *testing.T) {
	n, _ := pulled(t)
	n.NodeBandwidth = func() int64 { return 1 }
	n.turns("the first chunk comes", func() bool {
		all := n.States()
		return len(all) == 1 && all[0].HydratedBytes > 0
	})
	c := n.copying(n.account("v"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n.must(n.Stop(ctx, "v"))
	n.wantCopied(1)
	if got := c.limit.Limit(); got != rate.Limit(1) {
		t.Errorf("limit of %v", got)
	}
}
