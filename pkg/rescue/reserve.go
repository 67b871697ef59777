package rescue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/reservation"
)

// admit makes the LUN of a static volume take this machine's writes: it is reserved for
// the lost node, under the key of the ownership that the SSD names. With any other key
// the LUN tells of a later owner (I3). It stays reserved, since an earlier owner may go on
// writing as soon as it is free; the next owner takes it over.
func admit(ctx context.Context, luns attach.Reserver, c Cache, origin string) error {
	if luns == nil {
		return nil
	}
	key := reservation.KeyOf(c.Fence.UID, c.Fence.Generation)
	paths := []reservation.Path{{Name: origin, LUN: luns.LUN(origin)}}
	f, _, err := reservation.Inspect(ctx, paths, key)
	switch {
	case errors.Is(err, reservation.ErrUnsupported):
		return nil
	case err != nil:
		return err
	case !f.Found:
		return nil
	case f.Held.Key != key:
		return fmt.Errorf("%w: %s is reserved for key %s, the cache is of key %s: it could write over newer data", ErrRefused, origin, f.Held.Key, key)
	}
	_, err = reservation.Take(ctx, paths, key)
	return err
}
