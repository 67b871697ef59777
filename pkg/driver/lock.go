package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// lockPatience is how long a request waits for work in the background on its volume.
// A refusal costs the pod at least kubelet's first pause, half a second, and each one
// after it twice as much.
const lockPatience = 10 * time.Second

// Locker is the per-volume lock that is shared with whatever else works on
// volumes in this process; keylock.Set is one.
type Locker interface {
	// Lock waits for work in the background until ctx ends, and never for another
	// request.
	Lock(ctx context.Context, key string) (unlock func(), ok bool)
}

// lockRetry is the pause between two tries of lockInTurn.
const lockRetry = 50 * time.Millisecond

// lockInTurn is lock that waits for other requests too: the nodes that read one volume are published
// at the same time, and each would otherwise cost its sidecar a pause that doubles.
func lockInTurn(ctx context.Context, l Locker, id volume.ID) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		if unlock, err = lock(ctx, l, id); err == nil {
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockRetry):
		}
	}
}

// lock takes the lock of a volume or fails with ErrBusy: kubelet and sidecars
// come again, and queued repetitions would only pile up.
func lock(ctx context.Context, l Locker, id volume.ID) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	unlock, ok := l.Lock(ctx, string(id))
	if !ok {
		return nil, fmt.Errorf("%w: volume %s", volume.ErrBusy, id)
	}
	return unlock, nil
}
