package attach

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// tagStopped notes on the SSD that the cache's devices were removed for good and cleanly
// (I4). Without the note the cache is not used again, which costs no data.
func (a *Attacher) tagStopped(ctx context.Context, e *state.Entry) {
	if a.degraded() {
		return
	}
	// The devices are gone, and nobody can say so later: it has time of its own.
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	add := append(layout.ActivationTags(e.Activation()), layout.StopTag)
	if err := a.changeCount(cctx, e, add); err != nil {
		klog.FromContext(ctx).Error(err, "Clean stop of the cache cannot be noted, it will not be used again", "volume", e.ID)
	}
}

// stopTimeout bounds the note of a clean stop.
const stopTimeout = 15 * time.Second

// beginTable prepares the SSD for a table over the cache. The journal says that there may
// be one.
func (a *Attacher) beginTable(ctx context.Context, s *staging) error {
	switch s.plan.Cache {
	case planRecover:
		return a.beginRecover(ctx, s.entry, s.cache)
	case planReuse:
		return a.beginReuse(ctx, s.entry, s.cache)
	case planUncached, planAdopt, planCreate:
	}
	return nil
}

// beginReuse takes the note of the last stop away before there is a table again, and
// notes the new stage. The mode may have been changed while the volume was attached
// nowhere.
func (a *Attacher) beginReuse(ctx context.Context, e *state.Entry, c cacheVolumes) error {
	if !c.facts.Stopped && c.facts.Mode == e.Mode && c.facts.activation() == e.Activation() {
		return nil
	}
	add, remove := layout.ModeTags(e.Mode)
	add = append(add, layout.ActivationTags(e.Activation())...)
	remove = append(append(remove, layout.StopTag), c.OtherActivations(e.Activation())...)
	return a.LVM.ChangeTags(ctx, a.Pool.View().VG, add, remove, layout.DataLV(e.ID), layout.MetaLV(e.ID))
}

// beginRecover sees to it that the kernel counts every block as dirty, unless the SSD
// proves that the stop was clean after all: then nothing was activated since, and the map
// knows.
func (a *Attacher) beginRecover(ctx context.Context, e *state.Entry, c cacheVolumes) error {
	if c.facts.SuperblockClean && !c.facts.Stopped {
		// A swap of live tables left the flag.
		if err := MarkUnclean(a.Blocks, c.Meta.DevPath()); err != nil {
			return fmt.Errorf("%w: cache of volume %s: %w", volume.ErrUnavailable, e.ID, err)
		}
	}
	if !c.facts.Stopped && c.facts.activation() == e.Activation() {
		return nil
	}
	remove := append(c.OtherActivations(e.Activation()), layout.StopTag)
	return a.LVM.ChangeTags(ctx, a.Pool.View().VG, layout.ActivationTags(e.Activation()), remove, layout.DataLV(e.ID), layout.MetaLV(e.ID))
}
