package observe

import (
	"math"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

const (
	// mostPerSecond is more accesses than any device has.
	mostPerSecond = 20_000_000
	// mostDelta is the largest difference of 32-bit counters that is taken for
	// progress: above it, a counter has gone back rather than round.
	mostDelta = 1 << 31
)

// cacheState is what is remembered of a cache's counters.
type cacheState struct {
	Activation string             `json:"a,omitempty"`
	Last       devmapper.Counters `json:"l"`
	At         time.Time          `json:"t,omitzero"`
	Total      Counts             `json:"c"`
}

// accumulateCache adds what the counters have grown by, and returns how many
// accesses that are.
//
// Within an activation that is the difference modulo 2^32. In a new one, it is
// the difference from its base, whatever the counters were before. A growth that
// cannot be, because a counter went back or because the volume's device did not
// do as many operations (most), means that a table was swapped and the journal
// does not tell yet, or tells it before it shows. Nothing is added then, and it
// is counted from where the counters are.
func accumulateCache(prev cacheState, v Volume, raw devmapper.Counters, now time.Time, most uint64) (next cacheState, accesses uint64) {
	if v.Activation == "" {
		return prev, 0
	}
	next = cacheState{Activation: v.Activation, Last: raw, At: now, Total: prev.Total}
	from, limit := prev.Last, plausible(now.Sub(prev.At))
	if prev.Activation != v.Activation {
		from, limit = v.Base, mostDelta
	}
	grown := devmapper.Counters{
		ReadHits: raw.ReadHits - from.ReadHits, ReadMisses: raw.ReadMisses - from.ReadMisses,
		WriteHits: raw.WriteHits - from.WriteHits, WriteMisses: raw.WriteMisses - from.WriteMisses,
		Promotions: raw.Promotions - from.Promotions, Demotions: raw.Demotions - from.Demotions,
	}
	largest := max(grown.ReadHits, grown.ReadMisses, grown.WriteHits, grown.WriteMisses, grown.Promotions, grown.Demotions)
	accesses = uint64(grown.ReadHits) + uint64(grown.ReadMisses) + uint64(grown.WriteHits) + uint64(grown.WriteMisses)
	if uint64(largest) > limit || accesses > most {
		return next, 0
	}
	next.Total.add(grown)
	return next, accesses
}

func (c *Counts) add(grown devmapper.Counters) {
	c.ReadHits += uint64(grown.ReadHits)
	c.ReadMisses += uint64(grown.ReadMisses)
	c.WriteHits += uint64(grown.WriteHits)
	c.WriteMisses += uint64(grown.WriteMisses)
	c.Promotions += uint64(grown.Promotions)
	c.Demotions += uint64(grown.Demotions)
}

// unknown is the number of operations of a device of which nothing is known.
const unknown = math.MaxUint64

// operations is how many accesses to chunks the operations can have been that a
// device ended since it was seen last: one, and one more for each chunk that is
// crossed, should a kernel count before it cuts. It is unknown if that cannot be
// told.
func operations(prev *deviceState, raw devmapper.Stats, chunkSectors uint64) uint64 {
	if prev == nil || prev.Last.Region != raw.Region || behind(raw, prev.Last) {
		return unknown
	}
	sectors := raw.Read.Sectors + raw.Write.Sectors - prev.Last.Read.Sectors - prev.Last.Write.Sectors
	return raw.Histogram.Operations() - prev.Last.Histogram.Operations() + sectors/max(chunkSectors, 1)
}

// mostAccesses bounds the accesses since the last pass by the operations of the
// volume's device. The cache counts an access when it begins and is read first,
// the device counts it when it ends: what is under way must be added, and what
// the device had counted already at the pass before (carried).
func mostAccesses(done, underWay, carried uint64) uint64 {
	if done == unknown {
		return unknown
	}
	return done + underWay + carried
}

// carriedAccesses is what of done belongs to accesses that the next pass will see
// first: not more than was done since the pass before.
func carriedAccesses(done, carried, accesses uint64) uint64 {
	if done == unknown {
		return 0
	}
	return min(done, done+carried-min(accesses, done+carried))
}

// plausible is how many accesses can have happened in a time. A clock that was
// set back says nothing.
func plausible(d time.Duration) uint64 {
	if d <= 0 || d >= mostDelta/mostPerSecond*time.Second {
		return mostDelta
	}
	return uint64((d.Seconds() + 1) * mostPerSecond)
}

// deviceState is what is remembered of a device's statistics.
type deviceState struct {
	Last  devmapper.Stats
	Total IO
}

// accumulateIO adds what a device's counts have grown by. They have 64 bits and
// begin at zero in each region.
func accumulateIO(prev deviceState, raw devmapper.Stats) deviceState {
	from := prev.Last
	if from.Region != raw.Region || behind(raw, from) {
		from = devmapper.Stats{}
	}
	next := deviceState{Last: raw, Total: prev.Total}
	addIO(&next.Total.Read, raw.Read, from.Read)
	addIO(&next.Total.Write, raw.Write, from.Write)
	for i := range raw.Histogram {
		next.Total.Histogram[i] += raw.Histogram[i] - from.Histogram[i]
	}
	return next
}

func addIO(total *devmapper.IOStats, raw, from devmapper.IOStats) {
	total.Operations += raw.Operations - from.Operations
	total.Sectors += raw.Sectors - from.Sectors
	total.Nanoseconds += raw.Nanoseconds - from.Nanoseconds
}

// behind reports whether a count is smaller than before, which happens if
// somebody clears the region (@stats_clear).
func behind(raw, last devmapper.Stats) bool {
	less := func(a, b devmapper.IOStats) bool {
		return a.Operations < b.Operations || a.Sectors < b.Sectors || a.Nanoseconds < b.Nanoseconds
	}
	for i := range raw.Histogram {
		if raw.Histogram[i] < last.Histogram[i] {
			return true
		}
	}
	return less(raw.Read, last.Read) || less(raw.Write, last.Write)
}
