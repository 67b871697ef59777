package attach

import (
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// fillFacts are what decideFill rests on.
type fillFacts struct {
	Entry *state.Entry
	// Clone is true while the data device is the clone, and Status its state, or may be one
	// that does not answer; Linear when it is linear.
	Clone, Linear bool
	Status        devmapper.CloneStatus
	// OnOrigin is true when the path leads to the gather view. PathFailed tells that
	// the peer's path is lost, Expired that its deadline has passed, GivenUp that the peer
	// has said that it does not serve any more.
	OnOrigin, PathFailed, Expired, GivenUp bool
	// Ahead is true if more was copied than the bandwidth allows.
	Ahead bool
	// Settling is true while the copy waits for the start of the pod.
	Settling bool
}

// fillStep is one step of the fill in states.md, The warm move.
type fillStep string

const (
	fillNothing fillStep = "Nothing"
	fillGather  fillStep = "Gather"
	fillRevive  fillStep = "Revive"
	fillSweep   fillStep = "Sweep"
	fillLeave   fillStep = "Leave"
	fillSwap    fillStep = "Swap"
	fillRest    fillStep = "Rest"
	fillHydrate fillStep = "Hydrate"
)

// decideFill is that table, in its order.
func decideFill(f fillFacts) fillStep {
	e := f.Entry
	switch {
	case e == nil || e.Fill == nil:
		return fillNothing
	case f.Clone && !f.OnOrigin && (f.PathFailed || f.Expired || f.GivenUp):
		// In every state of the journal: whoever works on the volume may be waiting
		// for the lost peer.
		return fillGather
	case f.Clone && f.OnOrigin && f.PathFailed:
		// An error of the origin itself; a path that stays down would hold the pod
		// up for ever.
		return fillRevive
	case e.State != state.Staged || !e.Cached():
		return fillNothing
	case f.Linear:
		return fillSweep
	case !f.Clone || f.Status.Fail || f.Status.Silent:
		return fillNothing
	case f.OnOrigin && e.Fill.Peer != nil:
		return fillLeave
	case f.Status.Complete():
		return fillSwap
	case f.Ahead && f.Status.HydrationEnabled():
		return fillRest
	case f.Ahead, f.Settling:
		return fillNothing
	case !f.Status.HydrationEnabled():
		return fillHydrate
	}
	return fillNothing
}
