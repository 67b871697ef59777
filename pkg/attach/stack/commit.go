package stack

import (
	"context"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// commitTimeout is what a lease waits for the map; the destination waits ten seconds for
// the lease.
const commitTimeout = time.Second

// CommitMap makes the kernel write the map of a cache in use, which it does only
// when somebody flushes (schedule_commit in drivers/md/dm-cache-target.c). An origin that
// does not answer holds up nobody but the flush.
func (s *Stack) CommitMap(ctx context.Context, id volume.ID) error {
	info, found, err := s.Top(ctx, id)
	if err != nil || !found {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- s.SyncDevice(info.DevPath()) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(commitTimeout):
		return fmt.Errorf("%w: flush of volume %s does not end", volume.ErrUnavailable, id)
	}
}
