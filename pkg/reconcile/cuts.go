package reconcile

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// sweepPause is the pause between two looks at what was cut and never accepted.
const sweepPause = 10 * time.Minute

// cutSweeper deletes what was cut for nobody, while it leads.
type cutSweeper struct{ Config }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*cutSweeper) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (s *cutSweeper) Start(ctx context.Context) error {
	pause := s.SweepPause
	if pause == 0 {
		pause = sweepPause
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if err := s.Volumes.SweepCuts(ctx, s.Locks.TryLock); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "What was cut and never accepted could not be looked for")
		}
	}
}
