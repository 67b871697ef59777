package stream

import (
	"context"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// merge puts one ordinary cache in the place of the levels that serve. Their maps do not
// change: what serves is written through and promotes nothing.
func (r *Runner) merge(ctx context.Context, e *state.Entry, l stack.Levels) error {
	parts, err := r.Stack.Parts(ctx, e.ID)
	if err != nil {
		return err
	}
	if parts[layout.Top].HasInactive {
		// A load whose process was killed before the resume holds the metadata open.
		if err := r.Stack.DM.Clear(ctx, layout.Device(e.ID, layout.Top)); err != nil {
			return err
		}
	}
	c, err := r.SSD.Inspect(ctx, r.SSD.Pool.View().VG, e.ID)
	if err != nil {
		return err
	}
	if !c.Facts.Whole {
		return fmt.Errorf("%w: the cache of volume %s is not whole", volume.ErrUnavailable, e.ID)
	}
	m, err := r.mergedMap(ctx, e, l, parts)
	if err != nil {
		return err
	}
	if err := r.Host.RestoreMap(ctx, e.ID, m, c.Meta.DevPath()); err != nil {
		return err
	}
	faultStreamMerged.Hit()
	if err := r.promotedNothing(ctx, e, l); err != nil {
		return err
	}
	origin := stack.Origin{Sectors: l.Top.Sectors(), DevNo: l.OriginOf()}
	r.Stack.FinalCount(ctx, e.ID)
	if err := r.Stack.ReloadTop(ctx, e, r.Stack.CacheTable(e, c.Meta, parts[layout.Data].DevNo(), origin, false)); err != nil {
		return err
	}
	faultStreamSwapped.Hit()
	r.Stack.BeginCounting(ctx, e)
	return r.Host.Save(ctx, e, e.State)
}

// mergedMap is what the levels that serve have kept of the map that they began with.
func (r *Runner) mergedMap(ctx context.Context, e *state.Entry, l stack.Levels, parts map[layout.Part]devmapper.Info) (cachemap.Map, error) {
	whole, err := r.Host.ReadMap(e.ID)
	if err != nil {
		return cachemap.Map{}, err
	}
	if bugUntracked.On() {
		return cachemap.Merge(whole.Ordered(), whole.Ordered())
	}
	var levels []cachemap.Map
	for p, serves := range map[layout.Part]bool{layout.HotMeta: l.HotServes, layout.RestMeta: l.RestServes} {
		if !serves {
			continue
		}
		level, err := r.Host.ReadLevel(ctx, e.ID, parts[p].DevPath())
		if err != nil {
			return cachemap.Map{}, fmt.Errorf("map of a level of volume %s: %w", e.ID, err)
		}
		levels = append(levels, *level)
	}
	return cachemap.Merge(whole.Ordered(), levels...)
}

// promotedNothing is an error unless the levels that serve have taken nothing in: their maps
// would not be those that were read.
func (r *Runner) promotedNothing(ctx context.Context, e *state.Entry, l stack.Levels) error {
	for p, serves := range map[layout.Part]bool{layout.Hot: l.HotServes, layout.Top: l.RestServes} {
		if !serves {
			continue
		}
		st, _, err := r.Stack.DM.Status(ctx, layout.Device(e.ID, p))
		switch {
		case err != nil:
			return err
		case st.Fail:
			return fmt.Errorf("%w: a level of volume %s has failed", volume.ErrUnavailable, e.ID)
		case st.Dirty > 0:
			return fmt.Errorf("%w: a level of volume %s has %d dirty chunks", volume.ErrUnavailable, e.ID, st.Dirty)
		case st.Promotions > 0 || st.Demotions > 0:
			return fmt.Errorf("%w: the levels of volume %s have changed while they served: %d promotions, %d demotions",
				volume.ErrUnavailable, e.ID, st.Promotions, st.Demotions)
		}
	}
	return nil
}

// sweep removes what a stream that is over leaves, and lets the source node go. If the node
// stops before that, its cache is wiped as any that is written through.
func (r *Runner) sweep(ctx context.Context, e *state.Entry, o volume.MoveOutcome, message string) error {
	if err := r.Stop(ctx, e.ID); err != nil {
		return err
	}
	if err := r.Stack.Remove(ctx, e.ID, layout.Levels...); err != nil {
		return err
	}
	faultStreamSwept.Hit()
	if err := r.SSD.RemoveHydration(ctx, e.ID); err != nil {
		return err
	}
	faultStreamRemoved.Hit()
	r.Host.Drop(ctx, e, o, message)
	faultStreamReported.Hit()
	return r.Host.Save(ctx, e, e.State)
}
