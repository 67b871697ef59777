package stream

import (
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
)

// facts are what decide rests on.
type facts struct {
	Entry *state.Entry
	// Levels are the live tables.
	Levels stack.Levels
	// HotCopied and Copied tell that the chunks of the first level, and all, are on the SSD.
	HotCopied, Copied bool
	// GivenUp is true after steps that failed again and again.
	GivenUp bool
	// Failed is true if the copy ended before it was complete, and Copying while it goes on.
	Failed, Copying bool
}

// step is one step of the table "The stream" in states.md.
type step string

const (
	stepNothing   step = "Nothing"
	stepSweep     step = "Sweep"
	stepEnd       step = "End"
	stepMerge     step = "Merge"
	stepServeRest step = "ServeRest"
	stepServeHot  step = "ServeHot"
	stepCopy      step = "Copy"
)

// decide is that table, in its order.
func decide(f facts) step {
	switch {
	case !f.Entry.Streams() || f.Entry.State != state.Staged || !f.Entry.Cached():
		return stepNothing
	case f.Levels.Merged:
		return stepSweep
	case !f.Levels.Split:
		return stepNothing
	case f.GivenUp, f.Levels.HotFailed:
		return stepEnd
	case f.Levels.RestServes:
		return stepMerge
	case f.Failed:
		return stepEnd
	case f.HotCopied && !f.Levels.HotServes:
		return stepServeHot
	case f.Copied:
		return stepServeRest
	case f.Copying:
		return stepNothing
	}
	return stepCopy
}
