package bench

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/quantity"
)

// Limit is what keeps a row from being faster.
type Limit string

// The limits that are told apart.
const (
	LimitSSD     Limit = "SSD"
	LimitLink    Limit = "link"
	LimitServer  Limit = "storage server"
	LimitCPU     Limit = "CPU"
	LimitDepth   Limit = "queue depth"
	LimitUnknown Limit = "not known"
)

// What counts as a limit. Each is a share of 1, or a factor.
const (
	// busyShare is when processors are the limit.
	busyShare = 95.0
	// fullShare of the most that was ever carried is a full link.
	fullShare = 0.9
	// alike is how near two patterns have to come for that most to be the link's.
	alike = 0.85
	// most of the time of all requests is what one part has to have taken for being the limit.
	mostTime = 0.6
	// queued is how much longer a request takes with others under way where they wait for each other,
	// and unqueued where they do not.
	queued, unqueued = 1.5, 1.25
)

// Evidence is what a limit is judged by. What is nil, or 0, is not known.
type Evidence struct {
	// Depth is how many requests were under way.
	Depth int
	// Alone was measured with one request at a time, Deep with Depth of them.
	Alone, Deep Load
	// AloneCounted and DeepCounted are what the node counted meanwhile.
	AloneCounted, DeepCounted *Counted
	// Cached tells that the volume has a cache; without one, the volume is the origin.
	Cached bool
	// Link is what the way to the origin carries, nil if it was not measured.
	Link *Link
}

// Link is what was measured of the way to the origin, in bytes per second.
type Link struct {
	SequentialBytesPerSecond float64 `json:"sequentialBytesPerSecond"`
	RandomBytesPerSecond     float64 `json:"randomBytesPerSecond"`
}

// flat reports whether both patterns came to the same: then what carries them is the limit, and not
// what looks for them.
func (l Link) flat() bool {
	low, high := min(l.SequentialBytesPerSecond, l.RandomBytesPerSecond), max(l.SequentialBytesPerSecond, l.RandomBytesPerSecond)
	return low > 0 && low >= alike*high
}

func (l Link) most() float64 { return max(l.SequentialBytesPerSecond, l.RandomBytesPerSecond) }

// Verdict is a limit, and what says so.
type Verdict struct {
	Limit Limit  `json:"limit"`
	Why   string `json:"why"`
}

func verdict(l Limit, format string, args ...any) Verdict {
	return Verdict{Limit: l, Why: fmt.Sprintf(format, args...)}
}

// Judge says which limit a row has hit. It looks first at what bounds everything else: processors,
// then the link. Then at the part that took most of the time, and whether requests waited there for
// each other.
func Judge(e Evidence) Verdict {
	if n := e.Deep.NodeCPUPercent; n != nil && *n >= busyShare {
		return verdict(LimitCPU, "the node's processors were %.0f%% busy", *n)
	}
	if e.Deep.JobCPUPercent >= busyShare {
		return verdict(LimitCPU, "a job of fio took %.0f%% of a processor", e.Deep.JobCPUPercent)
	}
	alone, deep, ok := e.origins()
	if v, full := e.link(deep, ok); full {
		return v
	}
	if !e.Cached {
		return e.waits("origin", LimitServer, e.Alone.Latency.MeanMicros, e.Deep.Latency.MeanMicros)
	}
	if e.DeepCounted == nil || e.DeepCounted.SSD == nil && deep == nil {
		return verdict(LimitUnknown, "the node did not say how long the SSD and the origin took")
	}
	ssdTime, originTime := nanosOf(e.DeepCounted.SSD), nanosOf(deep)
	all := float64(ssdTime + originTime)
	var ssdAlone *Device
	if e.AloneCounted != nil {
		ssdAlone = e.AloneCounted.SSD
	}
	switch {
	case float64(ssdTime) >= mostTime*all:
		return e.part("SSD", LimitSSD, ssdAlone, e.DeepCounted.SSD)
	case float64(originTime) >= mostTime*all:
		return e.part("origin", LimitServer, alone, deep)
	}
	return verdict(LimitUnknown, "the SSD took %.0f%% of the time of all requests, and the origin the rest", 100*float64(ssdTime)/all)
}

// origins are the counts of what is behind the cache; of a volume without one, its own.
func (e Evidence) origins() (alone, deep *Device, ok bool) {
	pick := func(c *Counted) *Device {
		switch {
		case c == nil:
			return nil
		case e.Cached:
			return c.Origin
		}
		return c.Volume
	}
	return pick(e.AloneCounted), pick(e.DeepCounted), e.DeepCounted != nil
}

// link reports whether the way to the origin was full.
func (e Evidence) link(origin *Device, counted bool) (Verdict, bool) {
	if e.Link == nil || !e.Link.flat() {
		return Verdict{}, false
	}
	rate := 0.0
	switch {
	case origin != nil && e.Deep.Seconds > 0:
		rate = float64(origin.Bytes) / e.Deep.Seconds
	case !e.Cached && !counted:
		rate = e.Deep.BytesPerSecond
	}
	if rate < fullShare*e.Link.most() {
		return Verdict{}, false
	}
	return verdict(LimitLink, "%s/s went to and from the origin; sequential and random reads of 1 MiB reach %s/s and %s/s",
		quantity.Text(int64(rate)), quantity.Text(int64(e.Link.SequentialBytesPerSecond)), quantity.Text(int64(e.Link.RandomBytesPerSecond))), true
}

// part judges the part that took most of the time.
func (e Evidence) part(name string, limit Limit, alone, deep *Device) Verdict {
	if e.Depth == 1 && deep != nil {
		return e.waits(name, limit, 0, deep.MeanMicros)
	}
	if alone == nil || deep == nil {
		return verdict(LimitUnknown, "most of the time is the %s's, but it is not known how long it takes for one request alone", name)
	}
	return e.waits(name, limit, alone.MeanMicros, deep.MeanMicros)
}

// waits tells a part at its limit from one that could take more at once.
func (e Evidence) waits(name string, limit Limit, alone, deep float64) Verdict {
	if e.Depth == 1 {
		return verdict(LimitDepth, "requests come one at a time, each after the one before; the %s takes %s", name, Text(deep))
	}
	if alone <= 0 || deep <= 0 || e.Depth < 1 {
		return verdict(LimitUnknown, "there is no measurement of the %s with one request at a time to compare with", name)
	}
	factor := deep / alone
	switch {
	case factor >= queued && limit == LimitServer && e.Link == nil:
		return verdict(LimitUnknown, "a request to the origin takes %s with %d under way and %s alone; whether the link or the storage server makes them wait was not measured (compare with mode none)",
			Text(deep), e.Depth, Text(alone))
	case factor >= queued:
		return verdict(limit, "a request to the %s takes %s with %d under way and %s alone: they wait for each other", name, Text(deep), e.Depth, Text(alone))
	case factor <= unqueued:
		return verdict(LimitDepth, "a request to the %s takes %s with %d under way and %s alone: more at once would do more", name, Text(deep), e.Depth, Text(alone))
	}
	return verdict(LimitUnknown, "a request to the %s takes %s with %d under way and %s alone: neither as long nor clearly longer", name, Text(deep), e.Depth, Text(alone))
}

func nanosOf(d *Device) uint64 {
	if d == nil {
		return 0
	}
	return d.nanos
}
