package ssd

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Activation is what the SSD knows.
func (c Facts) Activation() volume.Activation {
	return volume.Activation{ID: c.ActivationID, Generation: c.Fence.Generation, Count: c.ActivationCount}
}

// Degraded tells that a mirror has lost one of its SSDs. LVM would write a tag to the other
// one alone, and from then on take the lost one for missing until an administrator says
// otherwise, also when it is back.
func (g *Group) Degraded() bool { return g.Pool.View().Degraded != "" }

// TagCounted brings the count to the SSD.
func (g *Group) TagCounted(ctx context.Context, e *state.Entry) error {
	if e.ActivationID == "" || !e.Cached() {
		return nil
	}
	cctx, cancel := context.WithTimeout(ctx, g.CacheTimeout)
	defer cancel()
	return g.changeCount(cctx, e, layout.ActivationTags(e.Activation()))
}

// changeCount puts tags with a new count in the place of those with the last one, on stable
// storage: LVM does not flush what it writes, and a count that is lost after the record has it
// makes what is on the SSD of the past. LVM keeps its metadata on the SSDs that the cache is
// on. A commit of the cache would flush them too, but not while its device is suspended, and
// its status does not say that it failed.
func (g *Group) changeCount(ctx context.Context, e *state.Entry, tags []string) error {
	vg := g.Pool.View().VG
	if err := g.LVM.ChangeTags(ctx, vg, tags, []string{layout.CountTag(e.ActivationCount - 1)}, layout.DataLV(e.ID), layout.MetaLV(e.ID)); err != nil {
		return err
	}
	c, err := g.Inspect(ctx, vg, e.ID)
	if err != nil {
		return err
	}
	meta := c.Meta
	if !meta.Active {
		return fmt.Errorf("%w: %s is not active", volume.ErrUnavailable, layout.MetaLV(e.ID))
	}
	switch done, err := g.flushes.Run(ctx, e.ID, func() error { return g.Stack.SyncDevice(meta.DevPath()) }); {
	case !done:
		return fmt.Errorf("%w: flush %s: the SSD has not answered yet", volume.ErrBusy, meta.DevPath())
	case err != nil:
		return fmt.Errorf("flush %s: %w", meta.DevPath(), err)
	}
	return nil
}

// TagMode writes the mode into the tags of the cache's logical volumes.
func (g *Group) TagMode(ctx context.Context, e *state.Entry, mode volume.CacheMode) error {
	add, remove := layout.ModeTags(mode)
	// A count that could not be noted while nothing was dirty.
	add, remove = append(add, layout.ActivationTags(e.Activation())...), append(remove, layout.CountTag(e.ActivationCount-1))
	return g.LVM.ChangeTags(ctx, g.Pool.View().VG, add, remove, layout.DataLV(e.ID), layout.MetaLV(e.ID))
}

// TagOrigin puts the size of the origin in the place of another one.
func (g *Group) TagOrigin(ctx context.Context, before, now int64, lvs ...string) error {
	return g.LVM.ChangeTags(ctx, g.Pool.View().VG, []string{layout.OriginTag(now)}, []string{layout.OriginTag(before)}, lvs...)
}

// TagGrown has the SSD know the origin's new size. A rescue alone asks for it, and
// can be told.
func (g *Group) TagGrown(ctx context.Context, e *state.Entry, before int64) {
	if !e.Cached() || before == e.OriginBytes {
		return
	}
	if err := g.TagOrigin(ctx, before, e.OriginBytes, layout.DataLV(e.ID), layout.MetaLV(e.ID)); err != nil {
		klog.FromContext(ctx).Error(err, "Tags of the cache keep the volume's old size", "volume", e.ID)
	}
}

// TagStopped notes on the SSD that the cache's devices were removed for good and cleanly
// (I4). Without the note the cache is not used again, which costs no data.
func (g *Group) TagStopped(ctx context.Context, e *state.Entry) {
	if g.Degraded() {
		return
	}
	// The devices are gone, and nobody can say so later: it has time of its own.
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	add := append(layout.ActivationTags(e.Activation()), layout.StopTag)
	if err := g.changeCount(cctx, e, add); err != nil {
		klog.FromContext(ctx).Error(err, "Clean stop of the cache cannot be noted, it will not be used again", "volume", e.ID)
	}
}

// stopTimeout bounds the note of a clean stop.
const stopTimeout = 15 * time.Second

// BeginReuse takes the note of the last stop away before there is a table again, and
// notes the new stage. The mode may have been changed while the volume was attached
// nowhere.
func (g *Group) BeginReuse(ctx context.Context, e *state.Entry, c Cache) error {
	if !c.Facts.Stopped && c.Facts.Mode == e.Mode && c.Facts.Activation() == e.Activation() {
		return nil
	}
	add, remove := layout.ModeTags(e.Mode)
	add = append(add, layout.ActivationTags(e.Activation())...)
	remove = append(append(remove, layout.StopTag), c.OtherActivations(e.Activation())...)
	return g.LVM.ChangeTags(ctx, g.Pool.View().VG, add, remove, layout.DataLV(e.ID), layout.MetaLV(e.ID))
}

// BeginRecover sees to it that the kernel counts every block as dirty, unless the SSD
// proves that the stop was clean after all: then nothing was activated since, and the map
// knows. The two copies of a mirror are made alike before that. Errors: volume.ErrUnavailable
// while they are compared, or if they cannot be.
func (g *Group) BeginRecover(ctx context.Context, e *state.Entry, c Cache) error {
	c, err := g.believe(ctx, e.ID, c)
	if err != nil {
		return err
	}
	if c.Facts.SuperblockClean && !c.Facts.Stopped {
		// A swap of live tables left the flag.
		if err := MarkUnclean(g.Blocks, c.Meta.DevPath()); err != nil {
			return fmt.Errorf("%w: cache of volume %s: %w", volume.ErrUnavailable, e.ID, err)
		}
	}
	if !c.Facts.Stopped && c.Facts.Activation() == e.Activation() {
		return nil
	}
	remove := append(c.OtherActivations(e.Activation()), layout.StopTag)
	return g.LVM.ChangeTags(ctx, g.Pool.View().VG, layout.ActivationTags(e.Activation()), remove, layout.DataLV(e.ID), layout.MetaLV(e.ID))
}
