package attach

import (
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// failoverFacts are what decideFailover rests on.
type failoverFacts struct {
	Entry *Entry
	// LiveCache is true when the top device's table is a cache, and Status its
	// state; LiveOrigin when it is linear over the origin.
	LiveCache, LiveOrigin bool
	Status                devmapper.CacheStatus
	// Clone is the state of the clone below the cache; nil if there is none.
	Clone *devmapper.CloneStatus
	// Unreadable says how a read of the cache's SSD failed, or is empty.
	Unreadable string
	// AtRiskTold is true if it was reported that unflushed writes are at risk.
	AtRiskTold bool
}

// failoverStep is one step of the table "The cache device fails" in states.md.
type failoverStep string

const (
	failoverNothing failoverStep = "Nothing"
	failoverReport  failoverStep = "Report"
	failoverAtRisk  failoverStep = "AtRisk"
	failoverHealed  failoverStep = "Healed"
	failoverSwap    failoverStep = "FailOver"
)

// decideFailover is that table, in its order.
func decideFailover(f failoverFacts) failoverStep {
	e := f.Entry
	switch {
	case e == nil || e.State != StateStaged:
		return failoverNothing
	case f.LiveOrigin && e.FailoverCause != "":
		return failoverReport
	case !f.LiveCache:
		return failoverNothing
	case e.FailoverCause != "" && !e.Cached():
		return failoverSwap
	case f.broken() == "" && f.AtRiskTold:
		return failoverHealed
	case f.broken() == "":
		return failoverNothing
	case e.Mode == volume.ModeWritethrough || e.Mode == volume.ModeNone:
		return failoverSwap
	}
	return failoverAtRisk
}

// broken says in which way the cache fails, "" if it does not.
func (f failoverFacts) broken() string {
	if why := brokenCache(f.Status); why != "" {
		return why
	}
	switch c := f.Clone; {
	case c == nil || c.Unparsed != "":
	case c.Fail:
		return "the kernel reports that the copy into the cache has failed"
	case c.ReadOnly:
		return "the kernel has made the metadata of the copy into the cache read-only after an error"
	}
	return f.Unreadable
}

// brokenCache says in which of its three ways the kernel reports that a cache
// fails. A status that this version cannot read says nothing.
func brokenCache(s devmapper.CacheStatus) string {
	switch {
	case s.Unparsed != "":
	case s.Fail:
		return "the kernel reports that the cache has failed"
	case s.NeedsCheck:
		return "the kernel reports that the metadata of the cache need a check after an error"
	case s.ReadOnly:
		return "the kernel has made the metadata of the cache read-only after an error"
	}
	return ""
}
