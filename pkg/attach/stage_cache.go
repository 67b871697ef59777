package attach

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// buildCached makes the cache and the top device over it. When the cache fails
// and nothing is at risk, the plan becomes uncached (I6).
func (a *Attacher) buildCached(ctx context.Context, s *staging) error {
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	err := a.makeCache(cctx, s)
	if err != nil && cctx.Err() == nil && s.plan.Cache == planCreate && s.entry.Hydration != nil && !errors.Is(err, errMark) {
		klog.FromContext(ctx).Error(err, "Hydration cannot begin, the cache begins cold", "volume", s.req.ID)
		if err = a.undoHydration(cctx, s, err); err == nil {
			err = a.makeCache(cctx, s)
		}
	}
	if err != nil && s.abandoned() && unusable(err) {
		klog.FromContext(ctx).Error(err, "The cache whose unflushed writes were abandoned cannot be activated, and is discarded", "volume", s.req.ID)
		if err = a.startCold(cctx, s, "the unflushed writes were abandoned"); err == nil && s.plan.Cache == planCreate {
			err = a.makeCache(cctx, s)
		}
	}
	switch {
	case errors.Is(err, errMark):
		return err
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case s.plan.Cache == planRecover:
		return fmt.Errorf("%w: the cache with unflushed writes of volume %s cannot be activated: %w", volume.ErrUnavailable, s.req.ID, err)
	}
	return a.fallBack(ctx, s, err)
}

// errMark: the record could not be marked. Failing to mark must fail the stage,
// never the cache: a writeback cache that is active but unmarked would break I2.
var errMark = errors.New("the volume's record could not be marked")

// makeCache provides the cache and makes it active.
func (a *Attacher) makeCache(ctx context.Context, s *staging) error {
	if err := a.provideCache(ctx, s); err != nil {
		return err
	}
	faultStageAllocated.Hit()
	if s.unmarked() {
		// A cache that cannot be activated needs the consent again. Until there is a mark, no
		// table takes writes that only the SSD has.
		if err := a.activate(ctx, s); err != nil {
			return err
		}
		if err := a.restore(context.WithoutCancel(ctx), s.entry); err != nil {
			return fmt.Errorf("%w: %w", errMark, err)
		}
		return nil
	}
	mctx := context.WithoutCancel(ctx)
	if s.plan.Cache == planRecover && !s.rec.PossiblyDirty { // out of a backup, as in Stage
		if err := a.Records.SetActivation(mctx, s.req.ID, s.entry.Fence, s.entry.Activation()); err != nil {
			return fmt.Errorf("%w: %w", errMark, err)
		}
	}
	if err := a.markDirty(mctx, s.entry); err != nil {
		return fmt.Errorf("%w: %w", errMark, err)
	}
	faultStageMarked.Hit()
	return a.activate(ctx, s)
}

// provideCache provides the cache once.
func (a *Attacher) provideCache(ctx context.Context, s *staging) error {
	if s.plannedFor > 0 {
		return nil
	}
	err := a.prepareCache(ctx, s)
	if err == nil {
		s.plannedFor = int64(s.origin.Sectors) * sectorSize
	}
	return err
}

// fallBack turns the stage into an uncached one after a failure of the cache.
func (a *Attacher) fallBack(ctx context.Context, s *staging, cause error) error {
	reason := v1alpha1.ReasonCacheDeviceError
	switch {
	case errors.Is(cause, lvm.ErrNoSpace):
		reason = v1alpha1.ReasonPoolFull
	case errors.Is(cause, errShare):
		reason = v1alpha1.ReasonNamespaceShareFull
	case errors.Is(cause, stack.ErrBlockSize):
		reason = v1alpha1.ReasonBlockSizeTooLarge
	}
	klog.FromContext(ctx).Error(cause, "Cache cannot be had, attaching uncached", "volume", s.req.ID, "reason", reason)
	if err := a.stack.RemoveUpper(ctx, s.req.ID); err != nil {
		return fmt.Errorf("%w (after the cache failed: %w)", err, cause)
	}
	// The journal must deny the cache before the pod can write past it (I3).
	s.plan = uncached(s.plan, reason, cause.Error())
	a.dropHydration(ctx, s.entry, volume.MoveFailed, cause.Error())
	s.entry.Deny()
	s.entry.Recovered = false // its devices are gone
	if reason == v1alpha1.ReasonCacheDeviceError {
		s.entry.NoCacheBefore = a.Now().Add(deviceRest)
	}
	if err := a.save(ctx, s.entry, state.Staging); err != nil {
		return err
	}
	// Its tags may say that it takes writes by now, and it may stay: should the journal be lost, a count that
	// the record has and the SSD has not makes it one of the past.
	if err := a.countUp(ctx, s.entry); err != nil {
		return err
	}
	if err := a.markClean(ctx, s.entry); err != nil { // else the record has the volume refused then
		return err
	}
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	if err := a.ssd.Remove(cctx, s.req.ID); err != nil {
		klog.FromContext(ctx).Error(err, "Failed cache could not be removed; repair will", "volume", s.req.ID)
	}
	return nil
}

// activate loads the cache's table. From here on the kernel may write to the
// cache, which the journal says before it happens.
func (a *Attacher) activate(ctx context.Context, s *staging) error {
	e := s.entry
	e.Activate(e.Mode)
	a.markOrigin(ctx, e)
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultStageActivating.Hit()
	if err := a.beginTable(ctx, s); err != nil {
		return err
	}
	faultStageUntagged.Hit()
	if s.data == "" {
		var err error
		if s.data, err = a.createDataDevice(ctx, e, s.cache, s.origin); err != nil {
			return err
		}
	}
	faultStageDataDevice.Hit()
	if s.plan.Cache != planRecover {
		if err := a.stack.CheckData(s.data, s.origin); err != nil {
			return err
		}
	}
	if e.Streams() {
		return a.stack.CreateLevels(ctx, e, s.cache.Data, s.data, s.origin)
	}
	return a.stack.CreateTop(ctx, e, a.stack.CacheTable(e, s.cache.Meta, s.data, s.origin, s.unmarked()))
}

// beginTable prepares the SSD for a table over the cache. The journal says that there may
// be one.
func (a *Attacher) beginTable(ctx context.Context, s *staging) error {
	switch s.plan.Cache {
	case planRecover:
		return a.ssd.BeginRecover(ctx, s.entry, s.cache)
	case planReuse:
		return a.ssd.BeginReuse(ctx, s.entry, s.cache)
	case planUncached, planAdopt, planCreate:
	}
	return nil
}
