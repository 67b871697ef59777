package cachefault

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// facts are what decide rests on.
type facts struct {
	Entry *state.Entry
	// LiveCache is true when the top device's table is a cache, and Status its
	// state; LiveOrigin when it is linear over the origin.
	LiveCache, LiveOrigin bool
	Status                devmapper.CacheStatus
	// Clone is the state of the clone below the cache; nil if there is none.
	Clone *devmapper.CloneStatus
	// Unreadable says how a read of the cache's SSD failed, or is empty.
	Unreadable string
	// Mismatches is how many reads of the SSD have found something else than was written, of a cache
	// with checksums.
	Mismatches uint64
	// AtRiskTold is true if it was reported that unflushed writes are at risk.
	AtRiskTold bool
}

// step is one step of the table "The cache device fails" in states.md.
type step string

const (
	stepNothing step = "Nothing"
	stepReport  step = "Report"
	stepAtRisk  step = "AtRisk"
	stepHealed  step = "Healed"
	stepDetach  step = "Detach"
)

// decide is that table, in its order.
func decide(f facts) step {
	e := f.Entry
	switch {
	case e == nil || e.State != state.Staged:
		return stepNothing
	case f.LiveOrigin && e.FailoverCause != "":
		return stepReport
	case !f.LiveCache:
		return stepNothing
	case e.FailoverCause != "" && !e.Cached():
		return stepDetach
	case f.broken() == "" && f.AtRiskTold:
		return stepHealed
	case f.broken() == "":
		return stepNothing
	case f.Status.Dirty > 0 && !e.Streams(): // a level of a stream is a copy
		return stepAtRisk // whatever the journal says
	case e.Mode == volume.ModeWritethrough || e.Mode == volume.ModeNone:
		return stepDetach
	}
	return stepAtRisk
}

// broken says in which way the cache fails, "" if it does not.
func (f facts) broken() string {
	if why := Broken(f.Status); why != "" {
		return why
	}
	switch c := f.Clone; {
	case c == nil || c.Unparsed != "":
	case c.Fail:
		return "the kernel reports that the copy into the cache has failed"
	case c.ReadOnly:
		return "the kernel has made the metadata of the copy into the cache read-only after an error"
	}
	if f.Mismatches > 0 {
		return fmt.Sprintf("the SSD returns something else than was written to it: the checksums of %d reads did not match", f.Mismatches)
	}
	return f.Unreadable
}

// Broken says in which of its three ways the kernel reports that a cache fails, "" if it
// does not. A status that this version cannot read says nothing.
func Broken(s devmapper.CacheStatus) string {
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
