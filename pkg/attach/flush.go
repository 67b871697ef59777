package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// flush proves that the origin has everything (I2) and leads to Flushed.
func (a *Attacher) flush(ctx context.Context, e *state.Entry) error {
	if e.State != state.Flushing {
		if err := a.save(ctx, e, state.Flushing); err != nil {
			return err
		}
	}
	faultUnstageFlushing.Hit()
	st, err := a.stack.CacheStatus(ctx, e.ID)
	if err != nil {
		return err
	}
	if st.Fail && !e.MayBeDirty() {
		// Nothing can be lost with a failed writethrough cache.
		return a.discard(ctx, e)
	}
	if st.Fail {
		return fmt.Errorf("%w: the cache of volume %s has failed with unflushed writes on it", volume.ErrUnavailable, e.ID)
	}
	if (st.Dirty > 0 || e.Mode == volume.ModeWriteback) && !bugNoFlush.On() {
		// Also when nothing is dirty now: a late writer's block must not become
		// dirty between this proof and the removal of the device.
		if err := a.swapPolicy(ctx, e, true); err != nil {
			return err
		}
		faultUnstageCleaner.Hit()
		if err := a.stack.AwaitClean(ctx, e); err != nil {
			return err
		}
	}
	faultUnstageCleaned.Hit()
	if err := a.passFlushes(ctx, e); err != nil {
		return err
	}
	if err := a.flushOrigin(ctx, e); err != nil {
		if !a.shutOut(ctx, e) {
			return err
		}
		if err := a.stack.FailPaths(ctx, e.ID); err != nil {
			return err
		}
		return a.discard(ctx, e)
	}
	e.Passed()
	e.Clean, e.Full = true, st.CacheUsed >= st.CacheTotal
	if e.Doubt = a.doubt(ctx, e); e.Doubt != "" {
		return a.discard(ctx, e)
	}
	if err := a.save(ctx, e, state.Flushed); err != nil {
		return err
	}
	faultUnstageFlushed.Hit()
	return nil
}

// cleanDenied flushes a live cache that the journal denies, because a step was killed. Nothing of
// it is dirty unless something loaded a table that made it so.
func (a *Attacher) cleanDenied(ctx context.Context, e *state.Entry) error {
	if e.DataBytes == 0 {
		return nil // it never had one
	}
	st, found, err := a.DM.Status(ctx, layout.Device(e.ID, layout.Top))
	if errors.Is(err, devmapper.ErrNotExist) || err == nil && (!found || st.Dirty == 0) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := a.swapPolicy(ctx, e, true); err != nil {
		return err
	}
	if err := a.stack.AwaitClean(ctx, e); err != nil {
		return err
	}
	return a.flushOrigin(ctx, e)
}

// flushOrigin empties the storage server's volatile write cache. Blocks that
// dm-cache wrote back went there without a flush of their own, so that without
// this step a clean cache would not prove durable data (I2).
func (a *Attacher) flushOrigin(ctx context.Context, e *state.Entry) error {
	o, err := a.lookupOrigin(ctx, e.ID, e.Source)
	if err != nil {
		return err
	}
	patience := originFlushTimeout
	if end, ok := ctx.Deadline(); ok { // the caller has something to decide then
		patience = min(patience, time.Until(end)/2)
	}
	fctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch done, err := a.flushes.Run(fctx, e.ID, func() error { return a.stack.SyncDevice(o.Path) }); {
	case !done:
		return fmt.Errorf("%w: flush origin %s: the storage server has not answered yet", volume.ErrBusy, o.Path)
	case err != nil:
		return fmt.Errorf("%w: flush origin %s: %w", volume.ErrUnavailable, o.Path, err)
	}
	return nil
}

// originFlushTimeout is how long a flush of the storage server's memory is waited for. It
// goes on beside that, and the next request for one waits for it first.
const originFlushTimeout = 30 * time.Second

// freeReaders answers a device that is open. Whoever has it open may wait for paths that
// never come back, as udev does, which looks at a device whose paths have failed; while this
// ownership may go on, that is waited for.
func (a *Attacher) freeReaders(ctx context.Context, e *state.Entry, busy error) error {
	if !errors.Is(busy, volume.ErrInUse) || e.MayBeDirty() {
		return nil
	}
	// The time of the call went to the device.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	if over, err := a.abandoned(ctx, e); err != nil || !over {
		return err
	}
	return a.stack.FailPaths(ctx, e.ID)
}

// freeTimeout bounds the look at the record, and the message, after a device was open.
const freeTimeout = 5 * time.Second

// removeEarlier removes the devices of an earlier stay. Who has one of them open may wait
// for the paths of an ownership that is over, which nobody else would end.
func (a *Attacher) removeEarlier(ctx context.Context, s *staging) error {
	if err := errors.Join(a.endSent(ctx, s.entry), a.streams.Stop(ctx, s.req.ID), a.preloads.Stop(ctx, s.req.ID)); err != nil {
		return err
	}
	err := a.stack.RemoveDevices(ctx, s.req.ID)
	if !errors.Is(err, volume.ErrInUse) || s.entry == nil || !laterOwner(s.req.Publication.Fence, s.entry.Fence) {
		return err
	}
	if failErr := a.stack.FailPaths(ctx, s.req.ID); failErr != nil {
		return errors.Join(err, failErr)
	}
	return a.stack.RemoveDevices(ctx, s.req.ID)
}
