package reconcile

import (
	"cmp"
	"context"
	"time"

	"k8s.io/klog/v2"
)

const (
	// sweepPause is the pause between two looks at what was cut and never accepted.
	sweepPause = 10 * time.Minute
	// expansionPause is the pause between two looks at volumes that grow; nothing is asked where none
	// does.
	expansionPause = 10 * time.Second
)

// sweep is what is done again and again while this process leads.
type sweep struct {
	// pause is the time before each; 0 means usual.
	pause, usual time.Duration
	do           func(context.Context) error
	// failed is said with an error.
	failed string
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (sweep) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (s sweep) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(cmp.Or(s.pause, s.usual)):
		}
		if err := s.do(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, s.failed)
		}
	}
}
