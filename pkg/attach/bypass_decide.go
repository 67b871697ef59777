package attach

import (
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// bypassFacts are what decideBypass rests on.
type bypassFacts struct {
	Entry *Entry
	// LiveCache is true when the top device's table is a cache, and Status its
	// state; LiveOrigin when it is linear over the origin.
	LiveCache, LiveOrigin bool
	Status                devmapper.CacheStatus
	// Clone is the state of the clone below the cache; nil if there is none.
	Clone *devmapper.CloneStatus
	// Unreadable says how a read of the cache's SSD failed, or is empty.
	Unreadable string
	// Staked is true if it was reported that unflushed writes are at stake.
	Staked bool
}

// bypassStep is one step of the table "The cache device fails" in states.md.
type bypassStep string

const (
	bypassNothing bypassStep = "Nothing"
	bypassReport  bypassStep = "Report"
	bypassStake   bypassStep = "Stake"
	bypassHealed  bypassStep = "Healed"
	bypassSwap    bypassStep = "Bypass"
)

// decideBypass is that table, in its order.
func decideBypass(f bypassFacts) bypassStep {
	e := f.Entry
	switch {
	case e == nil || e.State != StateStaged:
		return bypassNothing
	case f.LiveOrigin && e.Bypass != "":
		return bypassReport
	case !f.LiveCache:
		return bypassNothing
	case e.Bypass != "" && !e.Cached():
		return bypassSwap
	case f.broken() == "" && f.Staked:
		return bypassHealed
	case f.broken() == "":
		return bypassNothing
	case e.Mode == volume.ModeWritethrough || e.Mode == volume.ModeNone:
		return bypassSwap
	}
	return bypassStake
}

// broken says in which way the cache fails, "" if it does not.
func (f bypassFacts) broken() string {
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
