package ssd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// copiesStep is what is done with a logical volume before its content is believed after an unclean
// stop (states.md, The copies of a mirror after an unclean stop).
type copiesStep string

const (
	copiesAgree   copiesStep = "Agree"
	copiesCompare copiesStep = "Compare"
	copiesWait    copiesStep = "Wait"
)

// decideCopies says what the copies of a logical volume need. compared is true if a comparison has
// begun since it was activated.
func decideCopies(lv lvm.LV, compared bool) copiesStep {
	switch {
	case !lv.Mirrored(), lv.OneCopy():
		return copiesAgree
	case lv.SyncAction != lvm.SyncIdle:
		return copiesWait
	case compared:
		return copiesAgree
	}
	return copiesCompare
}

// activationOf names a logical volume as long as it is active.
func activationOf(lv lvm.LV) string { return lv.UUID + " " + lv.DevNo() }

// copiesPatience is how long one call waits for the kernel. A small cache is compared in that time;
// the next call goes on waiting for a large one.
const copiesPatience = 10 * time.Second

// alike returns when both copies of all that a mirrored cache consists of are the same, or there is
// one copy. Errors: volume.ErrUnavailable while they are compared.
func (g *Group) alike(ctx context.Context, id volume.ID) error {
	ctx, cancel := context.WithTimeoutCause(ctx, copiesPatience, errComparing)
	defer cancel()
	for {
		c, err := g.Inspect(ctx, g.Pool.View().VG, id)
		if err != nil {
			return err
		}
		lv, waits, err := g.compare(ctx, c)
		if err != nil || !waits {
			return err
		}
		select {
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), errComparing) {
				return ctx.Err()
			}
			return fmt.Errorf("%w: %w of volume %s (%s), %.0f %%", volume.ErrUnavailable, errComparing, id, lv.Name, max(lv.SyncPercent, 0))
		case <-time.After(g.PollInterval):
		}
	}
}

// errComparing: the cache cannot be used yet.
var errComparing = errors.New("after an unclean stop, the kernel compares the two copies of the cache")

// compare takes the next step with the copies of a cache, one logical volume after the other, the
// small ones first. waits is true if that is not the last one.
func (g *Group) compare(ctx context.Context, c Cache) (lv lvm.LV, waits bool, err error) {
	for _, lv := range []lvm.LV{c.Meta, c.Hydration, c.Data} {
		_, begun := g.comparisons.Load(activationOf(lv))
		step := decideCopies(lv, begun)
		switch {
		case lv.OneCopy():
			// The other one is not like it when it is back.
			g.comparisons.Delete(activationOf(lv))
		case step == copiesWait && lv.SyncAction == lvm.SyncRepair:
			g.comparisons.Store(activationOf(lv), nil)
		case step == copiesCompare:
			if err := g.LVM.RepairCopies(ctx, lv.VG, lv.Name); err != nil && !errors.Is(err, lvm.ErrBusy) {
				return lv, false, fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
			} else if err == nil {
				g.comparisons.Store(activationOf(lv), nil)
			}
		}
		if step != copiesAgree {
			return lv, true, nil
		}
	}
	return lvm.LV{}, false, nil
}

// believe has both copies of a mirrored cache be the same, and reads again what they say of the last
// stop: that may have come from the one that is overwritten.
func (g *Group) believe(ctx context.Context, id volume.ID, c Cache) (Cache, error) {
	if !c.Data.Mirrored() && !c.Meta.Mirrored() {
		return c, nil
	}
	if err := g.alike(ctx, id); err != nil {
		return c, err
	}
	sb, err := g.Stack.ReadSuperblock(c.Meta.DevPath())
	if err != nil {
		return c, fmt.Errorf("%w: %s: %w", volume.ErrUnavailable, layout.MetaLV(id), err)
	}
	c.Facts.SuperblockClean = sb.CleanShutdown && !sb.NeedsCheck
	return c, nil
}
