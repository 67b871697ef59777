package observe

import (
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Volume is what the node's journal says of a volume.
type Volume struct {
	ID volume.ID
	// PV, Namespace and Claim name the volume for people; each may be empty.
	PV, Namespace, Claim string
	// Attached is false while only a clean cache of the volume is kept here. Its
	// totals are kept too.
	Attached bool
	// Mode is the cache mode that the journal shows, as users write it, and Cached whether the
	// volume's data pass through a cache.
	Mode   volume.CacheMode
	Cached bool
	// Activation is another value for each table of the cache, and Base what its
	// counters showed when it became live: what they show more is what was
	// counted. While Activation is empty nothing is counted, because nothing is
	// known of where the counters begin.
	Activation string
	Base       devmapper.Counters
}

// Device is a part of a volume that is measured by itself.
type Device string

// The devices of a volume: what the pod uses, what hits cost and what misses
// cost.
const (
	DeviceVolume Device = "volume"
	DeviceSSD    Device = "ssd"
	DeviceOrigin Device = "origin"
)

// Devices are all of them.
func Devices() []Device { return []Device{DeviceVolume, DeviceSSD, DeviceOrigin} }

// deviceName is the device-mapper name of a device.
func deviceName(id volume.ID, d Device) string {
	switch d {
	case DeviceSSD:
		return layout.Device(id, layout.Data)
	case DeviceOrigin:
		return layout.Device(id, layout.Origin)
	case DeviceVolume:
	}
	return layout.Device(id, layout.Top)
}

// Counts are the totals of a cache; see devmapper.Counters.
type Counts struct {
	ReadHits    uint64 `json:"rh"`
	ReadMisses  uint64 `json:"rm"`
	WriteHits   uint64 `json:"wh"`
	WriteMisses uint64 `json:"wm"`
	Promotions  uint64 `json:"p"`
	Demotions   uint64 `json:"d"`
}

// IO are the totals of a device; see devmapper.Stats.
type IO struct {
	Read      devmapper.IOStats   `json:"r"`
	Write     devmapper.IOStats   `json:"w"`
	Histogram devmapper.Histogram `json:"h"`
}

// Health is what the kernel says of a cache (cache.rst, Status).
type Health string

// The states of a cache, the worst first where several hold.
const (
	Failed     Health = "Failed"
	ReadOnly   Health = "ReadOnly"
	NeedsCheck Health = "NeedsCheck"
	Healthy    Health = "Healthy"
)

// Cache is the state of an active cache.
type Cache struct {
	Health Health
	// Mode is the mode that is loaded; empty with Failed, as is all below.
	Mode                             volume.CacheMode
	SizeBytes, UsedBytes             uint64
	DirtyBytes                       uint64
	ChunkBytes                       uint64
	MetadataBytes, MetadataUsedBytes uint64
	// DirtySince is when the cache was last seen without a dirty block: nothing
	// dirty is older. It is zero while nothing is dirty.
	DirtySince time.Time
}

// Ratio is the part of accesses that hit, from 0 to 1. Known is false if there
// was no access.
type Ratio struct {
	Value float64
	Known bool
}

// HitRatios are those of a cache.
type HitRatios struct {
	// Read and Write are of the last five minutes.
	Read, Write Ratio
	// ReadTotal and WriteTotal are of all that was counted.
	ReadTotal, WriteTotal Ratio
}

// Latency are percentiles of the last minute, each the upper bound of its
// bucket, or the last bound for what took longer. Known is false if there was no
// operation.
type Latency struct {
	P50, P99 time.Duration
	Known    bool
}

// Sample is one volume in a Snapshot.
type Sample struct {
	Volume
	// Cache is nil if no cache of the volume is active.
	Cache *Cache
	// Counts are meaningful for a volume that was ever cached here.
	Counts Counts
	Hits   HitRatios
	// IO has the devices that were ever measured; Latency those that did
	// something in the last minute.
	IO      map[Device]IO
	Latency map[Device]Latency
	// ReadIOPS and WriteIOPS are the rates of the volume in the last minute,
	// RatesKnown whether it was seen twice in it, a second apart.
	ReadIOPS, WriteIOPS float64
	RatesKnown          bool
	// Reuse is what is known of how the volume reads again what it has read; nil if it is not looked
	// at.
	Reuse *reuse.Summary
}

// Healthy reports whether nothing is wrong with the volume's cache: a volume
// that should have none is healthy, one whose cache should be active and is not
// seen is not.
func (s Sample) Healthy() bool {
	if s.Cache == nil {
		return !s.Cached || !s.Attached
	}
	return s.Cache.Health == Healthy
}

// Snapshot is the result of a pass.
type Snapshot struct {
	// Time is when the pass ended, zero if there was none.
	Time     time.Time
	Duration time.Duration
	// Err joins what went wrong; what could be read is there all the same.
	Err error
	// Volumes are in the order of their IDs.
	Volumes []Sample
}
