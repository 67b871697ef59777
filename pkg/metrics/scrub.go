package metrics

import (
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/volume"
)

// scrubs returns the volumes that were scrubbed.
func (c *Collector) scrubs() map[volume.ID]scrub.Use {
	out := map[volume.ID]scrub.Use{}
	if c.Scrubs == nil {
		return out
	}
	for _, u := range c.Scrubs() {
		out[u.ID] = u
	}
	return out
}

func (e emitter) scrub(u scrub.Use) {
	e.put(nameScrubBytes, float64(u.CheckedBytes))
	e.put(nameScrubFound, float64(u.Corrupted))
	e.put(nameScrubUnjudged, float64(u.Unjudged))
	e.put(nameScrubPauses, float64(u.Suspensions))
	e.put(nameScrubPaused, u.Suspended.Seconds())
	e.put(nameScrubLongest, u.Longest.Seconds())
}

func scrubTable() []Metric {
	m := func(name string, t Type, help string) Metric {
		return Metric{Name: name, Type: t, Help: help + " Absent before a scrub.", Labels: volumeLabels}
	}
	return []Metric{
		m(nameScrubBytes, Counter, "Data of the cache that were compared with the origin since the plugin started."),
		m(nameScrubFound, Counter, "Chunks of the cache of which the SSD returned something else than was written to it. Unless the cache was ever in a writeback mode, they were replaced by what the origin has."),
		m(nameScrubUnjudged, Counter, "Pieces of chunks, of 64 KiB or less, that differed and could not be judged, because the volume was written to all the time."),
		m(nameScrubPauses, Counter, "How often the volume was suspended for a moment, to judge what differed."),
		m(nameScrubPaused, Counter, "Time for which it was, and its pod waited."),
		m(nameScrubLongest, Gauge, "The longest of these times since the plugin started."),
	}
}
