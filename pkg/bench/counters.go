package bench

import (
	"context"
	"errors"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/figures"
)

// ErrNoMeter is that the account may not ask nodes what they count.
var ErrNoMeter = errors.New("nodes may not be asked")

// Sample is what a node says of a volume at a moment.
type Sample struct {
	// Time is when the node measured, by its clock.
	Time  time.Time
	Cache v1alpha1.CacheStatus
	// Totals are nil if the node plugin is of a version before them.
	Totals *figures.Totals
	// BoundsMicros are those of the histograms of Totals.
	BoundsMicros []int64

	// at is when it was answered, by the clock of who asked.
	at time.Time
}

// Meter asks nodes what they have counted.
type Meter interface {
	// Measure asks about a volume that is attached to a node. Errors: ErrNoMeter.
	Measure(ctx context.Context, node, volume string) (Sample, error)
}

// Counted is what a node has counted of a volume between two samples.
type Counted struct {
	// ReadHitPercent and WriteHitPercent are absent if there was nothing to count, or no cache.
	ReadHitPercent  *float64 `json:"readHitPercent,omitempty"`
	WriteHitPercent *float64 `json:"writeHitPercent,omitempty"`
	Promotions      uint64   `json:"promotions,omitempty"`
	Demotions       uint64   `json:"demotions,omitempty"`
	// Volume is what the pod used, SSD what hits cost, with promotions and what is written back mixed
	// in, Origin what misses cost. Each is absent if it did nothing.
	Volume *Device `json:"volume,omitempty"`
	SSD    *Device `json:"ssd,omitempty"`
	Origin *Device `json:"origin,omitempty"`
}

// Device is what a part of a volume did.
type Device struct {
	Operations uint64 `json:"operations"`
	Bytes      uint64 `json:"bytes"`
	// MeanMicros is exact; percentiles are the upper bound of their bucket, and absent above the last.
	MeanMicros float64  `json:"meanMicros"`
	P50Micros  *float64 `json:"p50Micros,omitempty"`
	P99Micros  *float64 `json:"p99Micros,omitempty"`

	nanos uint64
}

// between returns what was counted from one sample to a later one on the same node; nil if the node
// does not say.
func between(from, to Sample) *Counted {
	a, b := from.Totals, to.Totals
	if a == nil || b == nil {
		return nil
	}
	c := &Counted{
		ReadHitPercent:  hitPercent(grown(a.ReadHits, b.ReadHits), grown(a.ReadMisses, b.ReadMisses)),
		WriteHitPercent: hitPercent(grown(a.WriteHits, b.WriteHits), grown(a.WriteMisses, b.WriteMisses)),
		Promotions:      grown(a.Promotions, b.Promotions), Demotions: grown(a.Demotions, b.Demotions),
	}
	for name, at := range map[string]**Device{"volume": &c.Volume, "ssd": &c.SSD, "origin": &c.Origin} {
		*at = deviceBetween(a.Devices[name], b.Devices[name], to.BoundsMicros)
	}
	return c
}

// grown is a difference of totals. They only grow, unless the node has lost its state.
func grown(a, b uint64) uint64 {
	if b < a {
		return b
	}
	return b - a
}

func hitPercent(hits, misses uint64) *float64 {
	if hits+misses == 0 {
		return nil
	}
	p := 100 * float64(hits) / float64(hits+misses)
	return &p
}

func deviceBetween(a, b figures.Device, bounds []int64) *Device {
	d := &Device{
		Operations: grown(a.Reads, b.Reads) + grown(a.Writes, b.Writes), Bytes: grown(a.ReadBytes, b.ReadBytes) + grown(a.WriteBytes, b.WriteBytes),
		nanos: grown(a.Nanos, b.Nanos),
	}
	if d.Operations == 0 {
		return nil
	}
	d.MeanMicros = float64(d.nanos) / float64(d.Operations) / 1000
	counts := make([]uint64, len(b.Histogram))
	for i, n := range b.Histogram {
		if i < len(a.Histogram) {
			n = grown(a.Histogram[i], n)
		}
		counts[i] = n
	}
	d.P50Micros, d.P99Micros = bucket(counts, bounds, 0.5), bucket(counts, bounds, 0.99)
	return d
}

// bucket is the upper bound of the bucket that a share of the requests ends in.
func bucket(counts []uint64, bounds []int64, share float64) *float64 {
	total := uint64(0)
	for _, n := range counts {
		total += n
	}
	seen := uint64(0)
	for i, n := range counts {
		seen += n
		if total > 0 && i < len(bounds) && float64(seen) >= share*float64(total) {
			b := float64(bounds[i])
			return &b
		}
	}
	return nil
}
