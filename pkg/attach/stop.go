package attach

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/volume"
)

// tagStopped notes on the SSD that the cache's devices were removed for good and cleanly
// (I4). Without the note the cache is not used again, which costs no data.
func (a *Attacher) tagStopped(ctx context.Context, e *Entry) {
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	if err := a.LVM.ChangeTags(cctx, a.Pool.View().VG, []string{tagStop}, nil, dataLV(e.ID), metaLV(e.ID)); err != nil {
		klog.FromContext(ctx).Error(err, "Clean stop of the cache cannot be noted, it will not be used again", "volume", e.ID)
	}
}

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

// beginReuse takes the note of the last stop away before there is a table again. The mode
// may have been changed while the volume was attached nowhere.
func (a *Attacher) beginReuse(ctx context.Context, e *Entry, c cacheVolumes) error {
	if !c.facts.Stopped && c.facts.Mode == e.Mode {
		return nil
	}
	add, remove := modeTags(e.Mode)
	return a.LVM.ChangeTags(ctx, a.Pool.View().VG, add, append(remove, tagStop), dataLV(e.ID), metaLV(e.ID))
}

// beginRecover sees to it that the kernel counts every block as dirty, unless the SSD
// proves that the stop was clean after all: then nothing was activated since, and the map
// knows.
func (a *Attacher) beginRecover(ctx context.Context, e *Entry, c cacheVolumes) error {
	switch {
	case c.facts.Stopped:
		if err := a.LVM.ChangeTags(ctx, a.Pool.View().VG, nil, []string{tagStop}, dataLV(e.ID), metaLV(e.ID)); err != nil {
			return err
		}
	case c.facts.SuperblockClean:
		// A swap of live tables left the flag.
		if err := MarkUnclean(c.meta.DevPath()); err != nil {
			return fmt.Errorf("%w: cache of volume %s: %w", volume.ErrUnavailable, e.ID, err)
		}
	}
	return nil
}
