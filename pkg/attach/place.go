package attach

import (
	"context"
	"errors"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// createPlaced makes the logical volumes of a cache where they belong, after it has
// evicted retained caches if there is no room, or those of the namespace if that has no share left. view
// is the pool as the volume sees it.
func (a *Attacher) createPlaced(ctx context.Context, id volume.ID, view pool.View, specs []lvm.CreateSpec) error {
	if err := a.keepShare(ctx, id, view.Copies, sizesOf(specs)); err != nil {
		return err
	}
	if p, only := ssd.OnlyPlace(view); only {
		err := a.ssd.Create(ctx, p.Apply(specs))
		if !errors.Is(err, lvm.ErrNoSpace) {
			return err
		}
		// How much is free, and where, is worth a question only now.
	}
	sizes, err := a.takeBack(ctx, view.VG, specs)
	if err != nil {
		return err
	}
	var p ssd.Place
	if err := a.makeRoom(ctx, id, view, sizes, func(free map[string]int64) (ok bool) {
		p, ok = ssd.ChoosePlace(view, free, sizes)
		return ok
	}); err != nil {
		return err
	}
	return a.ssd.Create(ctx, p.Apply(specs))
}

// takeBack removes those of the logical volumes that there was room for, and returns the sizes
// of all.
func (a *Attacher) takeBack(ctx context.Context, vg string, specs []lvm.CreateSpec) ([]int64, error) {
	names := make([]string, len(specs))
	for i, spec := range specs {
		names[i] = spec.Name
	}
	return sizesOf(specs), a.LVM.RemoveLVs(ctx, vg, names...)
}

// createBeside makes logical volumes on the very SSDs that another one is on, and with as many copies.
func (a *Attacher) createBeside(ctx context.Context, id volume.ID, lv lvm.LV, specs []lvm.CreateSpec) error {
	view := a.Pool.View().Holding(lv.Mirrored())
	p := ssd.Place{Devices: a.ssd.DevicesBelow(lv.DevNo(), view), Mirror: view.Mirror, Stripes: 1}
	if !view.Mirror {
		p.Stripes = len(p.Devices)
	}
	if err := a.keepShare(ctx, id, view.Copies, sizesOf(specs)); err != nil {
		return err
	}
	if err := a.ssd.Create(ctx, p.Apply(specs)); !errors.Is(err, lvm.ErrNoSpace) {
		return err
	}
	sizes, err := a.takeBack(ctx, view.VG, specs)
	if err != nil {
		return err
	}
	all := int64(0)
	for _, size := range sizes {
		all += size + view.ExtentBytes*max(view.Copies-1, 0)
	}
	if err := a.makeRoom(ctx, id, view, sizes, func(free map[string]int64) bool { return ssd.GrowsOn(view, free, p.Devices, all) }); err != nil {
		return err
	}
	return a.ssd.Create(ctx, p.Apply(specs))
}
