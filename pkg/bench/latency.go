package bench

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// Latency is how long requests took, in microseconds.
type Latency struct {
	MeanMicros float64 `json:"meanMicros"`
	P50Micros  float64 `json:"p50Micros"`
	P90Micros  float64 `json:"p90Micros"`
	P99Micros  float64 `json:"p99Micros"`
	P999Micros float64 `json:"p999Micros"`
	MaxMicros  float64 `json:"maxMicros"`
}

// Step is a point of a distribution: this share of the requests, of 1, took no longer.
type Step struct {
	Micros float64 `json:"micros"`
	Share  float64 `json:"share"`
}

// histogram is how often each length of time in nanoseconds was seen.
type histogram map[int64]uint64

// add counts the bins of a latency.
func (h histogram) add(l fioLatency) error {
	for text, n := range l.Bins {
		ns, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("bin of a latency: %w", err)
		}
		h[ns] += n
	}
	return nil
}

func (h histogram) total() (n uint64) {
	for _, c := range h {
		n += c
	}
	return n
}

// latency summarizes a histogram that is not empty.
func (h histogram) latency() Latency {
	keys, total := slices.Sorted(maps.Keys(h)), h.total()
	sum := 0.0
	for ns, n := range h {
		sum += float64(ns) * float64(n)
	}
	at := func(share float64) float64 {
		seen, want := uint64(0), uint64(math.Ceil(share*float64(total)))
		for _, ns := range keys {
			if seen += h[ns]; seen >= want {
				return micros(ns)
			}
		}
		return micros(keys[len(keys)-1])
	}
	return Latency{
		MeanMicros: sum / float64(total) / 1000, P50Micros: at(0.5), P90Micros: at(0.9), P99Micros: at(0.99), P999Micros: at(0.999), MaxMicros: micros(keys[len(keys)-1]),
	}
}

func micros(ns int64) float64 { return float64(ns) / 1000 }

// stepsPerDecade is how fine a distribution is.
const stepsPerDecade = 16

// steps is the distribution at bounds that grow by the same factor, from the first that some request
// kept to the first that all did.
func (h histogram) steps() []Step {
	keys, total := slices.Sorted(maps.Keys(h)), float64(h.total())
	if len(keys) == 0 {
		return nil
	}
	var out []Step
	seen, i := uint64(0), 0
	for e := math.Floor(stepsPerDecade * math.Log10(max(1, float64(keys[0])))); i < len(keys); e++ {
		bound := math.Pow(10, e/stepsPerDecade)
		for i < len(keys) && float64(keys[i]) <= bound {
			seen += h[keys[i]]
			i++
		}
		out = append(out, Step{Micros: math.Round(bound) / 1000, Share: math.Round(1e6*float64(seen)/total) / 1e6})
	}
	return out
}

// Text writes microseconds for people: 250us, 1.2ms, 2.1s.
func Text(micros float64) string {
	switch d := time.Duration(micros * float64(time.Microsecond)); {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case micros >= 10_000:
		return fmt.Sprintf("%.0fms", micros/1000)
	case micros >= 1000:
		return fmt.Sprintf("%.1fms", micros/1000)
	}
	return fmt.Sprintf("%.0fus", micros)
}
