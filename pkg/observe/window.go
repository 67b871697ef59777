package observe

import (
	"math"
	"slices"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

const (
	// ratioWindow and rateWindow are how far the recent figures look back.
	ratioWindow = 5 * time.Minute
	rateWindow  = time.Minute
	// windowStep is the least time between two points that are kept, so that
	// frequent scrapes cost no memory.
	windowStep = 5 * time.Second
	// leastRateTime is the least time that a rate is of: passes follow one another within
	// milliseconds where tables are swapped.
	leastRateTime = time.Second
)

// window is a series of totals over the time before now.
type window[T any] struct {
	length time.Duration
	points []point[T]
}

type point[T any] struct {
	at    time.Time
	value T
}

// add remembers a total and forgets what is older than the window, but for the
// one point that the whole window is measured from.
func (w *window[T]) add(at time.Time, value T) {
	if n := len(w.points); n > 0 && at.Sub(w.points[n-1].at) < windowStep {
		if !at.Before(w.points[n-1].at) {
			return
		}
		w.points = nil // the clock was set back
	}
	keep := 0
	for keep+1 < len(w.points) && at.Sub(w.points[keep+1].at) >= w.length {
		keep++
	}
	w.points = append(slices.Delete(w.points, 0, keep), point[T]{at: at, value: value})
}

// first is the total at the window's beginning, and how long ago that is.
func (w *window[T]) first(now time.Time) (value T, age time.Duration, ok bool) {
	for _, p := range w.points {
		if age := now.Sub(p.at); age > 0 && age <= w.length+windowSlack {
			return p.value, age, true
		}
	}
	return value, 0, false
}

// windowSlack lets a window begin at the last point before it.
const windowSlack = 20 * time.Second

func ratio(hits, misses uint64) Ratio {
	if hits+misses == 0 {
		return Ratio{}
	}
	return Ratio{Value: float64(hits) / float64(hits+misses), Known: true}
}

// hitRatios compares the totals now with those at the window's beginning.
func hitRatios(w *window[Counts], now time.Time, c Counts) HitRatios {
	out := HitRatios{ReadTotal: ratio(c.ReadHits, c.ReadMisses), WriteTotal: ratio(c.WriteHits, c.WriteMisses)}
	if old, _, ok := w.first(now); ok {
		out.Read = ratio(c.ReadHits-old.ReadHits, c.ReadMisses-old.ReadMisses)
		out.Write = ratio(c.WriteHits-old.WriteHits, c.WriteMisses-old.WriteMisses)
	}
	return out
}

// latency are the percentiles of what a histogram has grown by.
func latency(now, old devmapper.Histogram) Latency {
	var grown devmapper.Histogram
	for i := range now {
		grown[i] = now[i] - old[i]
	}
	n := grown.Operations()
	if n == 0 {
		return Latency{}
	}
	return Latency{P50: quantile(grown, n, 0.50), P99: quantile(grown, n, 0.99), Known: true}
}

// quantile is the upper bound of the bucket that holds the q-th of n operations.
func quantile(h devmapper.Histogram, n uint64, q float64) time.Duration {
	bounds := devmapper.StatsBounds()
	rank, seen := uint64(math.Ceil(q*float64(n))), uint64(0)
	for i, c := range h {
		if seen += c; seen >= rank && i < len(bounds) {
			return bounds[i]
		}
	}
	return bounds[len(bounds)-1]
}
