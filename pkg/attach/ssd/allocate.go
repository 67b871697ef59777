package ssd

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Lock waits until nobody else chooses space in the pool: what one stage counts as
// free, another one must not take. It does not wait for an SSD that hangs longer than
// ctx says (I6).
func (g *Group) Lock(ctx context.Context) (unlock func(), err error) {
	select {
	case g.alloc <- struct{}{}:
		return func() { <-g.alloc }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("another volume is being given space in the pool: %w", ctx.Err())
	}
}

// Blank returns new logical volumes after their metadata were made blank: the
// kernel formats metadata only when the superblock is all zeroes; what a former volume
// left there would otherwise be taken for a map. The metadata of the cache are blank
// from end to end, because a lease shows all of them. meta is false for those that were
// made blank before.
func (g *Group) Blank(ctx context.Context, vg string, id volume.ID, meta bool) (Cache, error) {
	c, err := g.Inspect(ctx, vg, id)
	if err != nil {
		return Cache{}, err
	}
	if !c.Facts.Whole || !c.Active() {
		return c, fmt.Errorf("new logical volumes of volume %s are not active", id)
	}
	if meta {
		if err := g.Blocks.ZeroHead(ctx, c.Meta.DevPath(), c.Meta.SizeBytes); err != nil {
			return c, err
		}
	}
	if c.Hydration.Name != "" {
		return c, g.Blocks.ZeroHead(ctx, c.Hydration.DevPath(), ZeroHeadBytes)
	}
	return c, nil
}

// Create makes logical volumes, in their order, and none on a device that is to leave the pool.
// Errors: lvm.ErrNoSpace.
func (g *Group) Create(ctx context.Context, specs []lvm.CreateSpec) error {
	v := g.Pool.View()
	for _, spec := range specs {
		if len(v.Leaving) > 0 && len(spec.Devices) == 0 {
			if spec.Devices = v.Staying(); len(spec.Devices) == 0 {
				return fmt.Errorf("%w: all devices are to leave the pool", lvm.ErrNoSpace)
			}
		}
		if err := g.LVM.CreateLV(ctx, spec); err != nil {
			return err
		}
	}
	return nil
}

// RoundUp rounds up to a multiple of unit.
func RoundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// ZeroHeadBytes covers the superblock of a clone (one 4 KiB block) with a margin.
const ZeroHeadBytes = 64 << 10

// Remove removes the logical volumes. The metadata go first: a data
// volume without a map shows nobody anything.
func (g *Group) Remove(ctx context.Context, id volume.ID) error {
	view := g.Pool.View()
	if view.VG == "" {
		return nil
	}
	return g.LVM.RemoveLVs(ctx, view.VG, layout.MetaLV(id), layout.HydrationLV(id), layout.DataLV(id))
}

// Rest lets go what the kernel keeps in memory for the checksums of a cache that nobody uses. What is
// left costs memory alone.
func (g *Group) Rest(ctx context.Context, id volume.ID) {
	view := g.Pool.View()
	if view.VG == "" {
		return
	}
	if err := g.LVM.Rest(ctx, view.VG, layout.MetaLV(id), layout.DataLV(id)); err != nil {
		klog.FromContext(ctx).V(2).Info("Devices of checksums stay", "volume", id, "reason", err.Error())
	}
}

// RemoveHydration removes what a hydration has on the SSD besides the cache.
func (g *Group) RemoveHydration(ctx context.Context, id volume.ID) error {
	return g.LVM.RemoveLVs(ctx, g.Pool.View().VG, layout.HydrationLV(id))
}
