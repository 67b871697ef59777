package reconcile

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// expansionPause is the pause between two looks at volumes that grow; nothing is asked where none
// does.
const expansionPause = 10 * time.Second

// expansions finishes those of origins, while it leads.
type expansions struct{ Config }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*expansions) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (e *expansions) Start(ctx context.Context) error {
	pause := e.ExpansionPause
	if pause == 0 {
		pause = expansionPause
	}
	for {
		if err := e.Volumes.FinishExpansions(ctx, e.Locks.TryLock); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Claims below volumes that have grown could not be brought up to date")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}
