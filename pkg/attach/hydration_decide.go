package attach

import (
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// hydrationFacts are what decideHydration rests on.
type hydrationFacts struct {
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

// hydrationStep is one step of the hydration in states.md, The warm move.
type hydrationStep string

const (
	hydrationNothing hydrationStep = "Nothing"
	hydrationRemap   hydrationStep = "Remap"
	hydrationRevive  hydrationStep = "Revive"
	hydrationSweep   hydrationStep = "Sweep"
	hydrationLeave   hydrationStep = "Leave"
	hydrationSwap    hydrationStep = "Swap"
	hydrationRest    hydrationStep = "Rest"
	hydrationEnable  hydrationStep = "Hydrate"
)

// decideHydration is that table, in its order.
func decideHydration(f hydrationFacts) hydrationStep {
	e := f.Entry
	switch {
	case e == nil || e.Hydration == nil:
		return hydrationNothing
	case f.Clone && !f.OnOrigin && (f.PathFailed || f.Expired || f.SourceStopped):
		// In every state of the journal: whoever works on the volume may be waiting
		// for the lost peer.
		return hydrationRemap
	case f.Clone && f.OnOrigin && f.PathFailed:
		// An error of the origin itself; a path that stays down would hold the pod
		// up for ever.
		return hydrationRevive
	case e.State != state.Staged || !e.Cached():
		return hydrationNothing
	case f.Linear:
		return hydrationSweep
	case !f.Clone || f.Status.Fail || f.Status.Silent:
		return hydrationNothing
	case f.OnOrigin && e.Hydration.Peer != nil:
		return hydrationLeave
	case f.Status.Complete():
		return hydrationSwap
	case f.OverBudget && f.Status.HydrationEnabled():
		return hydrationRest
	case f.OverBudget, f.Settling:
		return hydrationNothing
	case !f.Status.HydrationEnabled():
		return hydrationEnable
	}
	return hydrationNothing
}
