package observe

import (
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// sample folds what the kernel says of a volume into its totals.
func (s *Sampler) sample(v Volume, status *devmapper.CacheStatus, stats map[string]devmapper.Stats, now time.Time) Sample {
	vs, ws := s.of(v.ID)
	top, measured := stats[deviceName(v.ID, DeviceVolume)]
	done := uint64(unknown)
	if measured && status != nil {
		done = operations(vs.Devices[DeviceVolume], top, status.ChunkSectors)
	}
	if s.count(vs, v, status, now, done, top.InFlight) {
		s.unsaved = true
	}
	out := Sample{Volume: v, Counts: vs.Cache.Total, IO: map[Device]IO{}, Latency: map[Device]Latency{}}
	if status != nil {
		out.Cache = cacheOf(*status, vs.Clean)
		if v.Mode == volume.ModeWritebackUnsafe && out.Cache.Mode == volume.ModeWriteback {
			out.Cache.Mode = v.Mode // the kernel has no word for it
		}
	}
	out.Hits = hitRatios(&ws.counts, now, vs.Cache.Total)
	ws.counts.add(now, vs.Cache.Total)
	for _, d := range Devices() {
		if raw, measured := stats[deviceName(v.ID, d)]; measured && s.measure(vs, d, raw) {
			s.unsaved = true
		}
		st, ever := vs.Devices[d]
		if !ever {
			continue
		}
		out.IO[d] = st.Total
		w := ws.device(d)
		if old, age, ok := w.first(now); ok {
			if l := latency(st.Total.Histogram, old.Histogram); l.Known {
				out.Latency[d] = l
			}
			if d == DeviceVolume && age >= leastRateTime {
				out.ReadIOPS = float64(st.Total.Read.Operations-old.Read.Operations) / age.Seconds()
				out.WriteIOPS = float64(st.Total.Write.Operations-old.Write.Operations) / age.Seconds()
				out.RatesKnown = true
			}
		}
		w.add(now, st.Total)
	}
	return out
}

func (s *Sampler) of(id volume.ID) (*volumeState, *windows) {
	vs := s.state.Volumes[id]
	if vs == nil {
		vs = &volumeState{}
		s.state.Volumes[id] = vs
		s.unsaved = true
	}
	if vs.Devices == nil {
		vs.Devices = map[Device]*deviceState{}
	}
	ws := s.windows[id]
	if ws == nil {
		ws = &windows{counts: window[Counts]{length: ratioWindow}, io: map[Device]*window[IO]{}}
		s.windows[id] = ws
	}
	return vs, ws
}

func (ws *windows) device(d Device) *window[IO] {
	if ws.io[d] == nil {
		ws.io[d] = &window[IO]{length: rateWindow}
	}
	return ws.io[d]
}

// count folds the status of a cache in and reports whether something changed
// that must not be lost.
func (s *Sampler) count(vs *volumeState, v Volume, status *devmapper.CacheStatus, now time.Time, done, underWay uint64) (changed bool) {
	if !v.Attached {
		vs.Clean, vs.Dirty = now, false // what is kept without being attached is clean
	}
	if status == nil || status.Fail {
		return false
	}
	next, accesses := accumulateCache(vs.Cache, v, status.Counters(), now, mostAccesses(done, underWay, vs.Carried))
	vs.Carried = carriedAccesses(done, vs.Carried, accesses)
	changed = next.Activation != vs.Cache.Activation || next.Last != vs.Cache.Last || next.Total != vs.Cache.Total
	vs.Cache = next
	// A table that is just being swapped in has not read its map yet, and says that
	// nothing is cached, nor dirty.
	dirty := status.Dirty > 0 || status.CacheUsed == 0 && vs.Dirty
	if !dirty || vs.Clean.IsZero() {
		vs.Clean = now
	}
	changed = changed || dirty != vs.Dirty
	vs.Dirty = dirty
	return changed
}

// measure folds the statistics of a device in and reports whether they changed.
func (s *Sampler) measure(vs *volumeState, d Device, raw devmapper.Stats) bool {
	st := vs.Devices[d]
	if st == nil {
		st = &deviceState{}
		vs.Devices[d] = st
	}
	raw.InFlight = 0 // of this moment alone
	if st.Last == raw {
		return false
	}
	*st = accumulateIO(*st, raw)
	return true
}

// cacheOf puts a status into bytes.
func cacheOf(st devmapper.CacheStatus, clean time.Time) *Cache {
	if st.Fail {
		return &Cache{Health: Failed}
	}
	chunk := st.ChunkSectors * devmapper.SectorSize
	block := st.MetadataBlockSectors * devmapper.SectorSize
	c := &Cache{
		Health: Healthy, Mode: volume.CacheMode(st.Mode()),
		SizeBytes: st.CacheTotal * chunk, UsedBytes: st.CacheUsed * chunk, DirtyBytes: st.DirtyBytes(), ChunkBytes: chunk,
		MetadataBytes: st.MetadataTotal * block, MetadataUsedBytes: st.MetadataUsed * block,
	}
	switch {
	case st.ReadOnly:
		c.Health = ReadOnly
	case st.NeedsCheck:
		c.Health = NeedsCheck
	}
	if st.Dirty > 0 {
		c.DirtySince = clean
	}
	return c
}
