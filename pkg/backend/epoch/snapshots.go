package epoch

import (
	"context"
	"fmt"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ backend.Snapshots = (*Keeper)(nil)

// snapshots is the server, if it makes snapshots.
func (k *Keeper) snapshots() (backend.Snapshots, error) {
	s, ok := k.Backend.(backend.Snapshots)
	if !ok {
		return nil, fmt.Errorf("%w: the storage server makes no snapshots", volume.ErrInvalid)
	}
	return s, nil
}

// Cut implements backend.Snapshots.
func (k *Keeper) Cut(ctx context.Context, id volume.SnapshotID, of volume.ID, req backend.CutRequest) (c backend.Cut, err error) {
	s, err := k.snapshots()
	if err != nil {
		return backend.Cut{}, err
	}
	err = k.order(ctx, func(ctx context.Context) (err error) {
		c, err = s.Cut(ctx, id, of, req)
		return err
	})
	return c, err
}

// CanCut implements backend.Snapshots.
func (k *Keeper) CanCut(ctx context.Context, of volume.ID, class string) error {
	s, err := k.snapshots()
	if err != nil {
		return err
	}
	return s.CanCut(ctx, of, class)
}

// CanBegin implements backend.Snapshots.
func (k *Keeper) CanBegin(ctx context.Context, id, of volume.ID, req backend.Request) error {
	s, err := k.snapshots()
	if err != nil {
		return err
	}
	return s.CanBegin(ctx, id, of, req)
}

// Find implements backend.Snapshots.
func (k *Keeper) Find(ctx context.Context, id volume.SnapshotID) (backend.Cut, error) {
	s, err := k.snapshots()
	if err != nil {
		return backend.Cut{}, err
	}
	return s.Find(ctx, id)
}

// Accept implements backend.Snapshots.
func (k *Keeper) Accept(ctx context.Context, id volume.SnapshotID, hold string) error {
	s, err := k.snapshots()
	if err != nil {
		return err
	}
	return k.order(ctx, func(ctx context.Context) error { return s.Accept(ctx, id, hold) })
}

// DropCut implements backend.Snapshots.
func (k *Keeper) DropCut(ctx context.Context, id volume.SnapshotID, hold string) error {
	s, err := k.snapshots()
	if err != nil {
		return err
	}
	return k.order(ctx, func(ctx context.Context) error { return s.DropCut(ctx, id, hold) })
}

// DeleteCut implements backend.Snapshots.
func (k *Keeper) DeleteCut(ctx context.Context, id volume.SnapshotID) error {
	s, err := k.snapshots()
	if err != nil {
		return err
	}
	return k.order(ctx, func(ctx context.Context) error { return s.DeleteCut(ctx, id) })
}

// Cuts implements backend.Snapshots.
func (k *Keeper) Cuts(ctx context.Context) ([]backend.Cut, error) {
	s, err := k.snapshots()
	if err != nil {
		return nil, err
	}
	return s.Cuts(ctx)
}
