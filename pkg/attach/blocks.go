package attach

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// mayBeCoarse tells a pool of which that is not known before the origin is: nobody's
// retained cache is evicted for a cache that cannot be.
func mayBeCoarse(v pool.View) bool { return v.LogicalBlock > sectorSize }

// checkPool gives up a cache that is not active yet, if the pool is too coarse for it.
func (a *Attacher) checkPool(ctx context.Context, s *staging) error {
	why := stack.Coarse(a.Pool.View().LogicalBlock, s.origin.LogicalBlock)
	if why == "" || s.plan.Cache != planCreate && s.plan.Cache != planReuse {
		return nil
	}
	return a.fallBack(ctx, s, fmt.Errorf("%w: %s", stack.ErrBlockSize, why))
}

// leaveCoarse flushes a cache that had to be activated although it is too coarse, and
// leaves it before anybody mounts the volume. One that was active before this stage, and is
// in use, is left by the steps for attached volumes. Who has a device open that this stage
// made only looks what it is, as udev does.
func (a *Attacher) leaveCoarse(ctx context.Context, s *staging) error {
	e := s.entry
	if !e.Cached() {
		return nil
	}
	infos, err := a.DM.Info(ctx, layout.Device(e.ID, layout.Top))
	if err != nil {
		return err
	}
	why := a.stack.LiveBlocks(e.ID, infos)
	if why == "" || s.plan.Cache == planAdopt && infos[layout.Device(e.ID, layout.Top)].OpenCount > 0 {
		return nil
	}
	klog.FromContext(ctx).Info("Leaving a cache whose logical blocks are too large", "volume", e.ID, "reason", why)
	f := changeFacts{Entry: e, Record: s.rec, Coarse: why}
	if e.Mode == volume.ModeWriteback {
		if err := a.swapPolicy(ctx, e, true); err != nil {
			return err
		}
		if err := a.stack.AwaitClean(ctx, e); err != nil {
			return err
		}
		if _, err := a.cleanLive(ctx, f); err != nil {
			return err
		}
	}
	if f.Status, err = a.stack.CacheStatus(ctx, e.ID); err != nil {
		return err
	}
	if err := a.uncacheLive(ctx, f); err != nil {
		return err
	}
	if err := a.takeBackMark(ctx, e); err != nil {
		return err
	}
	s.plan = uncached(s.plan, v1alpha1.ReasonBlockSizeTooLarge, why)
	return nil
}
