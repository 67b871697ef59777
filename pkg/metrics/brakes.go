package metrics

import (
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Brake is what the dirty limit of a volume has done (states.md, I7).
type Brake struct {
	Volume volume.ID
	// Bytes and Age are the bound; 0 is none.
	Bytes int64
	Age   time.Duration
	// Held and Drained are the times in which writes were let through, waiting for
	// pauses and writing back; Count is how often that began.
	Held, Drained time.Duration
	Count         uint64
}

// brakes returns the volumes with a bound.
func (c *Collector) brakes() map[volume.ID]Brake {
	out := map[volume.ID]Brake{}
	if c.Brakes == nil {
		return out
	}
	for _, b := range c.Brakes() {
		out[b.Volume] = b
	}
	return out
}

func (e emitter) brake(b Brake) {
	if b.Bytes > 0 {
		e.put(nameDirtyLimit, float64(b.Bytes))
	}
	if b.Age > 0 {
		e.put(nameDirtyAgeMax, b.Age.Seconds())
	}
	e.put(nameBraked, b.Held.Seconds(), "writethrough")
	e.put(nameBraked, b.Drained.Seconds(), "draining")
	e.put(nameBrakes, float64(b.Count))
}
