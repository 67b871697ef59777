package layout

import (
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// CacheStatus is the status of a volume's cache among those of all devices, which are by
// name. While a stream fills it, it is that of both levels together.
func CacheStatus(all map[string]devmapper.CacheStatus, id volume.ID) (st devmapper.CacheStatus, found bool) {
	st, found = all[Device(id, Top)]
	if hot, levels := all[Device(id, Hot)]; found && levels {
		st = joined(st, hot)
	}
	return st, found
}

// joined is what both levels of a stream are to the pod. What misses the top goes to the
// hot level; a level in passthrough mode counts hits, and serves none.
func joined(top, hot devmapper.CacheStatus) devmapper.CacheStatus {
	out := top
	out.ReadHits, out.WriteHits, out.ReadMisses, out.WriteMisses = 0, 0, hot.ReadMisses, hot.WriteMisses
	if top.Mode() != devmapper.Passthrough {
		out.ReadHits, out.WriteHits = top.ReadHits, top.WriteHits
	}
	if hot.Mode() != devmapper.Passthrough {
		out.ReadHits, out.WriteHits = out.ReadHits+hot.ReadHits, out.WriteHits+hot.WriteHits
	} else {
		out.ReadMisses, out.WriteMisses = out.ReadMisses+hot.ReadHits, out.WriteMisses+hot.WriteHits
	}
	out.CacheUsed, out.Dirty = top.CacheUsed+hot.CacheUsed, top.Dirty+hot.Dirty
	out.Fail, out.Silent = top.Fail || hot.Fail, top.Silent || hot.Silent
	out.NeedsCheck, out.ReadOnly = top.NeedsCheck || hot.NeedsCheck, top.ReadOnly || hot.ReadOnly
	return out
}
