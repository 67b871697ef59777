package attach

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// errBlockSize: what is below the cache has larger logical blocks than the origin
// (states.md, Logical blocks).
var errBlockSize = errors.New("the volume's logical blocks are too small for a cache here")

// coarse says why no cache with such logical blocks can be before the origin, or "". A
// size of 0 is not known.
func coarse(cache, origin int) string {
	if cache <= origin || origin == 0 {
		return ""
	}
	return fmt.Sprintf("the SSD has logical blocks of %d bytes, the volume of %d: a filesystem with sectors of %d bytes does not work above larger ones", cache, origin, origin)
}

// mayBeCoarse tells a pool of which that is not known before the origin is: nobody's
// retained cache is evicted for a cache that cannot be.
func mayBeCoarse(v pool.View) bool { return v.LogicalBlock > sectorSize }

// blocksOf is the size of the logical blocks of a device in bytes, 0 if it cannot be
// told, as of a device that is going away.
func (a *Attacher) blocksOf(devno string) int {
	n, err := blockdev.LogicalBlock(a.Sysfs, devno)
	if err != nil {
		return 0
	}
	return n
}

// checkPool gives up a cache that is not active yet, if the pool is too coarse for it.
func (a *Attacher) checkPool(ctx context.Context, s *staging) error {
	why := coarse(a.Pool.View().LogicalBlock, s.origin.LogicalBlock)
	if why == "" || s.plan.Cache != planCreate && s.plan.Cache != planReuse {
		return nil
	}
	return a.fallBack(ctx, s, fmt.Errorf("%w: %s", errBlockSize, why))
}

// checkData judges the data device of a new cache, with everything that is below it: also
// what a peer exports.
func (a *Attacher) checkData(devno string, o origin) error {
	if why := coarse(a.blocksOf(devno), o.LogicalBlock); why != "" {
		return fmt.Errorf("%w: %s", errBlockSize, why)
	}
	return nil
}

// liveBlocks says why a live cache should not be before its origin, or "".
func (a *Attacher) liveBlocks(id volume.ID, infos map[string]devmapper.Info) string {
	top, origin := infos[layout.Device(id, layout.Top)], infos[layout.Device(id, layout.Origin)]
	if !top.HasLive || !origin.HasLive {
		return ""
	}
	return coarse(a.blocksOf(top.DevNo()), a.blocksOf(origin.DevNo()))
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
	why := a.liveBlocks(e.ID, infos)
	if why == "" || s.plan.Cache == planAdopt && infos[layout.Device(e.ID, layout.Top)].OpenCount > 0 {
		return nil
	}
	klog.FromContext(ctx).Info("Leaving a cache whose logical blocks are too large", "volume", e.ID, "reason", why)
	f := changeFacts{Entry: e, Record: s.rec, Coarse: why}
	if e.Mode == volume.ModeWriteback {
		if err := a.swapPolicy(ctx, e, true); err != nil {
			return err
		}
		if err := a.awaitClean(ctx, e); err != nil {
			return err
		}
		if _, err := a.cleanLive(ctx, f); err != nil {
			return err
		}
	}
	if f.Status, err = a.cacheStatus(ctx, e.ID); err != nil {
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
