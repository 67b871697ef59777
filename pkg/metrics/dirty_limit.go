package metrics

import (
	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/volume"
)

// dirtyLimits returns the volumes with a dirty limit.
func (c *Collector) dirtyLimits() map[volume.ID]dirtylimit.Use {
	out := map[volume.ID]dirtylimit.Use{}
	if c.DirtyLimits == nil {
		return out
	}
	for _, u := range c.DirtyLimits() {
		out[u.ID] = u
	}
	return out
}

func (e emitter) dirtyLimit(u dirtylimit.Use) {
	if u.Bytes > 0 {
		e.put(nameDirtyLimit, float64(u.Bytes))
	}
	if u.Age > 0 {
		e.put(nameDirtyAgeMax, u.Age.Seconds())
	}
	e.put(nameLimitActive, u.Writethrough.Seconds(), string(dirtylimit.Writethrough))
	e.put(nameLimitActive, u.Draining.Seconds(), string(dirtylimit.Draining))
	e.put(nameActivations, float64(u.Activations))
}
