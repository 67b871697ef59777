package metrics

import (
	"context"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Hydration is a cache whose data are still being copied (states.md, The warm move).
type Hydration struct {
	Volume                    volume.ID
	TotalBytes, HydratedBytes int64
	// From is where it reads at the moment.
	From volume.ServedFrom
}

// Moves counts how warm moves to a node ended. The zero value has counted none.
type Moves struct {
	mu sync.Mutex
	n  map[moveEnd]uint64
}

// moveEnd is what moves are counted by.
type moveEnd struct {
	from    volume.ServedFrom
	outcome volume.MoveOutcome
}

// Ended counts a move that has ended; from is where it was to begin.
func (m *Moves) Ended(from volume.ServedFrom, o volume.MoveOutcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n == nil {
		m.n = map[moveEnd]uint64{}
	}
	m.n[moveEnd{from, o}]++
}

// count returns how many have ended so; a nil m has counted none.
func (m *Moves) count(from volume.ServedFrom, o volume.MoveOutcome) uint64 {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n[moveEnd{from, o}]
}

// collectMoves sends what is known of warm moves to and from the node.
func (c *Collector) collectMoves(ctx context.Context, ch chan<- prometheus.Metric) {
	e := emitter{c.descs, ch, []string{c.Node}}
	// All of them from the beginning: an increase from nothing would not be seen.
	for _, from := range []volume.ServedFrom{volume.FromPeer, volume.FromOrigin} {
		for _, o := range []volume.MoveOutcome{volume.MoveCompleted, volume.MoveEnded, volume.MoveFailed} {
			e.put(nameMoves, float64(c.Moves.count(from, o)), label(from), label(o))
		}
	}
	if c.Leases == nil {
		return
	}
	// A journal that cannot be read makes the pass fail, which has a metric.
	if leases, err := c.Leases(ctx); err == nil {
		e.put(nameLeases, float64(len(leases)))
	}
}

// label is the form that a word of the API has in labels.
func label[T ~string](word T) string { return strings.ToLower(string(word)) }

// hydrations returns the hydrations under way by volume.
func (c *Collector) hydrations() map[volume.ID]Hydration {
	out := map[volume.ID]Hydration{}
	if c.Hydrations == nil {
		return out
	}
	for _, f := range c.Hydrations() {
		out[f.Volume] = f
	}
	return out
}

func (e emitter) hydration(f Hydration) {
	e.put(nameHydrationSize, float64(f.TotalBytes))
	e.put(nameHydrationHydrated, float64(f.HydratedBytes))
	e.put(nameHydrationInfo, 1, label(f.From))
}
