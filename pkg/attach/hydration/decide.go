package hydration

import (
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// facts are what decide rests on.
type facts struct {
	Entry *state.Entry
	// Clone is true while the data device is the clone, and Status its state, or may be one
	// that does not answer; Linear when it is linear.
	Clone, Linear bool
	Status        devmapper.CloneStatus
	// OnOrigin is true when the path leads to the origin remap table. PathFailed tells that
	// the peer's path is lost, Expired that its deadline has passed, SourceStopped that the peer
	// has said that it does not serve any more.
	OnOrigin, PathFailed, Expired, SourceStopped bool
	// OverBudget is true if more was copied than the bandwidth allows.
	OverBudget bool
	// Settling is true while the copy waits for the start of the pod.
	Settling bool
}

// stepKind is one step of the hydration in states.md, The warm move.
type stepKind string

const (
	stepNothing stepKind = "Nothing"
	stepRemap   stepKind = "Remap"
	stepRevive  stepKind = "Revive"
	stepSweep   stepKind = "Sweep"
	stepLeave   stepKind = "Leave"
	stepSwap    stepKind = "Swap"
	stepRest    stepKind = "Rest"
	stepEnable  stepKind = "Hydrate"
)

// decide is that table, in its order.
func decide(f facts) stepKind {
	e := f.Entry
	switch {
	case e == nil || e.Hydration == nil:
		return stepNothing
	case f.Clone && !f.OnOrigin && (f.PathFailed || f.Expired || f.SourceStopped):
		// In every state of the journal: whoever works on the volume may be waiting
		// for the lost peer.
		return stepRemap
	case f.Clone && f.OnOrigin && f.PathFailed:
		// An error of the origin itself; a path that stays down would hold the pod
		// up for ever.
		return stepRevive
	case e.State != state.Staged || !e.Cached():
		return stepNothing
	case f.Linear:
		return stepSweep
	case !f.Clone || f.Status.Fail || f.Status.Silent:
		return stepNothing
	case f.OnOrigin && e.Hydration.Peer != nil:
		return stepLeave
	case f.Status.Complete():
		return stepSwap
	case f.OverBudget && f.Status.HydrationEnabled():
		return stepRest
	case f.OverBudget, f.Settling:
		return stepNothing
	case !f.Status.HydrationEnabled():
		return stepEnable
	}
	return stepNothing
}
