package epoch

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// order gives an order to the server under the epoch of this cluster, as its record is
// at this moment: a cluster whose etcd was set back is refused by its next order.
// Errors: *RefusedError, and those of act.
func (k *Keeper) order(ctx context.Context, act func(context.Context) error) error {
	var met *backend.EpochError
	for range maxSteps {
		server, err := k.begin(ctx)
		if err != nil {
			return err
		}
		given, known, err := k.choose(ctx, server, met)
		if err != nil {
			return err
		}
		if !known {
			// Swap finds out whose the server is, and says so, unless it is ours by now.
			if err := k.Swap(ctx); err != nil {
				return err
			}
			met = nil
			continue
		}
		if err := act(backend.WithEpoch(ctx, given)); !errors.As(err, &met) {
			return err
		}
	}
	return errRace()
}

// decidedBefore tells an order that was decided before the last takeover.
func decidedBefore(ctx context.Context, rec Record) bool {
	last, decided := backend.TakeoverOf(ctx)
	return decided && last != rec.lastTakeover()
}

// choose returns the epoch for an order: that of the record, or, after a refusal, the
// server's if the record knows it.
func (k *Keeper) choose(ctx context.Context, server string, met *backend.EpochError) (given string, known bool, err error) {
	if server == "" {
		return "", met == nil, nil
	}
	if err := k.names.claim(k.name, server); err != nil { // another one may have learnt it since
		return "", false, err
	}
	obj, err := k.load(ctx)
	if err != nil {
		return "", false, err
	}
	rec, err := Decode(obj, server)
	switch {
	case err != nil:
		return "", false, fmt.Errorf("%w: %w", volume.ErrBackend, err)
	case decidedBefore(ctx, rec):
		return "", false, fmt.Errorf("%w: the storage server was taken over since this was decided", volume.ErrBusy)
	case met == nil:
		return rec.Current, true, nil
	}
	return met.Server, rec.knows(met.Server), nil
}

// Create implements backend.Backend.
func (k *Keeper) Create(ctx context.Context, id volume.ID, req backend.Request) error {
	return k.order(ctx, func(ctx context.Context) error { return k.Backend.Create(ctx, id, req) })
}

// Delete implements backend.Backend.
func (k *Keeper) Delete(ctx context.Context, id volume.ID) error {
	return k.order(ctx, func(ctx context.Context) error { return k.Backend.Delete(ctx, id) })
}

// Expand implements backend.Backend.
func (k *Keeper) Expand(ctx context.Context, id volume.ID, size int64) (now int64, err error) {
	err = k.order(ctx, func(ctx context.Context) (err error) {
		now, err = k.Backend.Expand(ctx, id, size)
		return err
	})
	return now, err
}

// Export implements backend.Backend.
func (k *Keeper) Export(ctx context.Context, id volume.ID, g backend.Grant) (at volume.Source, err error) {
	err = k.order(ctx, func(ctx context.Context) (err error) {
		at, err = k.Backend.Export(ctx, id, g)
		return err
	})
	return at, err
}

// Unexport implements backend.Backend.
func (k *Keeper) Unexport(ctx context.Context, id volume.ID, e backend.Export) error {
	return k.order(ctx, func(ctx context.Context) error { return k.Backend.Unexport(ctx, id, e) })
}
