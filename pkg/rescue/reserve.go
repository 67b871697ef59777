package rescue

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/reservation"
)

// admit makes the unit of a static volume take this machine's writes: it is reserved for
// the lost node, under the key of the ownership that the SSD names. With any other key
// the unit tells of a later owner (I3). What admit returns ends it again.
func admit(ctx context.Context, units attach.Reserver, c Cache, origin string) (leave func(), err error) {
	leave = func() {}
	if units == nil {
		return leave, nil
	}
	key := reservation.KeyOf(c.Fence.UID, c.Fence.Generation)
	paths := []reservation.Path{{Name: origin, Unit: units.Unit(origin)}}
	f, _, err := reservation.Look(ctx, paths, key)
	switch {
	case errors.Is(err, reservation.ErrUnsupported):
		return leave, nil
	case err != nil:
		return leave, err
	case !f.Found:
		return leave, nil
	case f.Held.Key != key:
		return leave, fmt.Errorf("%w: %s is reserved for key %s, the cache is of key %s: it could write over newer data", ErrRefused, origin, f.Held.Key, key)
	}
	if err := reservation.Take(ctx, paths, key); err != nil {
		return leave, err
	}
	return func() {
		if err := reservation.Give(context.WithoutCancel(ctx), paths, key); err != nil {
			klog.FromContext(ctx).Error(err, "Reservation was not ended, the next owner will", "volume", c.ID)
		}
	}, nil
}
