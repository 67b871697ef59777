package driver

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Locker is the per-volume lock that is shared with whatever else works on
// volumes in this process; keylock.Set is one.
type Locker interface {
	TryLock(key string) (unlock func(), ok bool)
}

// lock takes the lock of a volume or fails with ErrBusy: kubelet and sidecars
// come again, and queued repetitions would only pile up.
func lock(l Locker, id volume.ID) (unlock func(), err error) {
	unlock, ok := l.TryLock(string(id))
	if !ok {
		return nil, fmt.Errorf("%w: volume %s", volume.ErrBusy, id)
	}
	return unlock, nil
}
