package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/cachefault"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Unstage implements volume.Attacher. The staging path of a raw block volume, on which nothing is mounted,
// goes last: without it the kubelet takes the volume for unstaged, and asks no more (TearDownDevice in
// its csi_block.go).
func (a *Attacher) Unstage(ctx context.Context, id volume.ID, stagingPath string) error {
	if err := a.preloads.Stop(ctx, id); err != nil { // it has files of the volume open
		return err
	}
	if err := a.FS.Release(ctx, stagingPath); err != nil {
		return err
	}
	faultUnstageUnmounted.Hit()
	if err := a.bringDown(ctx, id); err != nil {
		return err
	}
	return a.FS.Unmount(ctx, stagingPath)
}

// bringDown leads a volume along the table "What unstage and repair decide"
// until it is Retained or forgotten.
func (a *Attacher) bringDown(ctx context.Context, id volume.ID) error {
	for {
		f, c, err := a.gatherDown(ctx, id)
		if err != nil {
			return err
		}
		action := decideDown(f)
		switch action {
		case downNothing:
			return nil
		case downKeep:
			if f.Past {
				return fmt.Errorf("%w: %w", volume.ErrUnavailable, errPast(a.Node, id))
			}
			why := whyKept(f.Entry.Fence, f.Entry.Static, f.Record)
			a.keep(ctx, volume.KeptCache{ID: id, Fence: f.Entry.Fence, SizeBytes: f.Entry.CacheBytes(), Why: why})
			return fmt.Errorf("%w: unflushed writes of volume %s: %s: %w", volume.ErrUnavailable, id, why, errKept)
		default:
			a.keeps.drop(id)
		}
		klog.FromContext(ctx).V(2).Info("Taking volume down", "volume", id, "state", f.Entry.State, "action", action)
		if action == downFlush || action == downRecover {
			// Without an origin a flush has no end but that of the call's time.
			if left, err := a.leaveVanished(ctx, f.Entry); err != nil {
				return err
			} else if left {
				continue
			}
		}
		if err := a.down(ctx, f, c, action); err != nil {
			return errors.Join(err, a.freeReaders(ctx, f.Entry, err))
		}
	}
}

func (a *Attacher) gatherDown(ctx context.Context, id volume.ID) (downFacts, ssd.Cache, error) {
	e, err := a.loadSettled(ctx, id)
	if err != nil || e == nil {
		return downFacts{}, ssd.Cache{}, err
	}
	_, active, err := a.stack.Top(ctx, id)
	if err != nil {
		return downFacts{}, ssd.Cache{}, err
	}
	f := downFacts{Entry: e, SameBoot: e.Boot == a.Boot, TopActive: active, Taken: e.Lost != nil}
	var c ssd.Cache
	var unread error
	if e.Cached() && !active && e.State != state.Retained {
		if c, unread = a.ssd.Find(ctx, id); unread != nil && ctx.Err() != nil {
			return downFacts{}, ssd.Cache{}, unread
		}
		f.Cache = c.Facts
		if old, err := a.forgetOld(ctx, e, c.Facts); old || err != nil {
			return downFacts{}, ssd.Cache{}, err
		}
	}
	if !f.dirty() {
		return f, c, nil // whatever the SSD says
	}
	if f.Record, err = a.findRecord(ctx, id); err != nil {
		return downFacts{}, ssd.Cache{}, err
	}
	f.Past = f.Record != nil && f.Record.Fence.UID == e.Fence.UID && pastWrites(e, f.Cache, *f.Record)
	// Last: a storage server that does not answer may take all of the caller's time.
	f.Proof, err = a.prove(ctx, id, e.Fence, e, f.Cache, f.Record, a.again(e))
	if err == nil && unread != nil {
		if f.Cache = (ssd.Facts{}); !f.abandoned() {
			err = unread
		}
	}
	if err != nil || e.Lost == nil || !e.Lost.Foreign() {
		return f, c, err
	}
	// A host outside of nearflash is no later owner: what is dirty waits for a word.
	switch decideOwnership(e.Fence, e.Static, f.Record, f.Proof) {
	case ownedHere, ownedUnproven:
		return downFacts{}, ssd.Cache{}, a.lostForeign(e)
	case ownedLater, ownedAbandoned:
	}
	return f, c, nil
}

func (a *Attacher) down(ctx context.Context, f downFacts, c ssd.Cache, action downAction) error {
	e := f.Entry
	// The node that is prewarmed has what it has. From here on a lease is one of
	// a retained cache.
	if err := a.endSent(ctx, e); err != nil {
		return err
	}
	if err := a.streams.Stop(ctx, e.ID); err != nil {
		return err
	}
	if err := a.preloads.Stop(ctx, e.ID); err != nil {
		return err
	}
	if action == downFlush && e.Streams() {
		return a.settleStream(ctx, e)
	}
	switch action {
	case downFlush:
		return a.orAbandon(ctx, f, a.flush(ctx, e))
	case downRecover:
		return a.orAbandon(ctx, f, a.recoverForFlush(ctx, e, c))
	case downRelease:
		return a.release(ctx, e, f.TopActive)
	case downDetach:
		return a.detach(ctx, e)
	case downWipe:
		return a.discard(ctx, e)
	case downNothing, downKeep:
	}
	return nil
}

// errUnusable: what was found is of no use as a cache of this volume.
var errUnusable = errors.New("the cache cannot be used")

// unusable tells an error that another try will not end: not one of a busy device, or of
// a command that has not ended.
func unusable(err error) bool {
	return errors.Is(err, errUnusable) || errors.Is(err, devmapper.ErrInvalid) || errors.Is(err, devmapper.ErrNoSuperblock)
}

// orAbandon discards a cache that cannot be flushed and need not be.
func (a *Attacher) orAbandon(ctx context.Context, f downFacts, err error) error {
	if err == nil || ctx.Err() != nil || !f.abandoned() {
		return err
	}
	if st, serr := a.stack.CacheStatus(ctx, f.Entry.ID); !unusable(err) && (serr != nil || cachefault.Broken(st) == "") {
		return err
	}
	klog.FromContext(ctx).Error(err, "The cache whose unflushed writes were abandoned cannot be flushed, and is discarded", "volume", f.Entry.ID)
	return a.discard(ctx, f.Entry)
}

// recoverForFlush activates a writeback cache after an unclean stop, with the
// cleaner, so that the next step can flush it (I4).
func (a *Attacher) recoverForFlush(ctx context.Context, e *state.Entry, c ssd.Cache) error {
	if !c.Facts.Whole || c.Facts.Fence != e.Fence {
		return fmt.Errorf("%w: node %s holds unflushed writes of volume %s, generation %d, on an SSD that cannot be read now: %s",
			volume.ErrUnavailable, a.Node, e.ID, e.Fence.Generation, orUnknown(a.Pool.View().Problem))
	}
	// What a killed stage, or a step before that was ended, has made above the origin would
	// hold it, and it is about to be made anew.
	if err := a.stack.RemoveUpper(ctx, e.ID); err != nil {
		return err
	}
	if e.ChunkSectors == 0 {
		if err := a.geometryFromSSD(e, c); err != nil {
			return err
		}
	}
	e.Recovered = true
	e.Tear()
	// Before there is a device: a stage adopts it with what the journal says, and a plugin
	// of before must not look for it under another name.
	if err := a.write(ctx, e); err != nil {
		return err
	}
	o, err := a.reconnect(ctx, e)
	if err != nil {
		return err
	}
	if decideLUN(planRecover, false, e.WWID, o.WWID) == lunRefuse {
		// The next try sees whether the right one is there again.
		return errors.Join(fmt.Errorf("%w: %w", errUnusable, otherLUN(e, a.Node, o.WWID)), a.stack.RemoveDevices(ctx, e.ID), a.Transport.Rescan(ctx, transport.Target{Source: e.Source}, nil))
	}
	if e.Hydration != nil {
		a.leavePeer(ctx, e) // the origin is the source now
	}
	if err := a.ssd.BeginRecover(ctx, e, c); err != nil {
		return err
	}
	data, err := a.createDataDevice(ctx, e, c, o)
	if err != nil {
		return err
	}
	// Whatever the last activation has left in doubt, the flush writes it. The journal has
	// the marks before there is a table that they count from: those of a session of before
	// would have the cache doubted, and thrown away once it is flushed.
	a.markOrigin(ctx, e)
	if err := a.write(ctx, e); err != nil {
		return err
	}
	if err := a.stack.CreateTop(ctx, e, a.stack.CacheTable(e, c.Meta, data, o, true)); err != nil {
		return err
	}
	return a.save(ctx, e, state.Flushing)
}

// release takes a flushed cache down and keeps it as retained cache. writable reports whether its
// top device was there when this was decided.
func (a *Attacher) release(ctx context.Context, e *state.Entry, writable bool) error {
	a.heats.Add(ctx, e) // the counts go with the device
	if err := a.recordWhole(ctx, e); err != nil {
		return err
	}
	if err := a.leases.RecordWrites(ctx, e); err != nil {
		return err
	}
	if err := a.stack.RemoveDevices(ctx, e.ID); err != nil {
		return err
	}
	faultUnstageRemoved.Hit()
	e.Recovered = false // the next stage opens the map anew
	// Until now whoever had it open could write, since the flush too.
	if writable {
		e.Doubt = a.doubt(ctx, e)
	}
	if e.Doubt != "" {
		return a.discard(ctx, e)
	}
	if err := a.tagStopped(ctx, e); err != nil {
		return err
	}
	faultUnstageStopped.Hit()
	if err := a.disconnect(ctx, e); err != nil {
		return err
	}
	faultUnstageDisconnected.Hit()
	if err := a.markClean(ctx, e); err != nil {
		return err
	}
	faultUnstageMarkedClean.Hit()
	if e.Hydration != nil {
		a.endHydration(ctx, e, volume.MoveEnded, "the volume left the node before everything was copied")
		// What this ownership has written, no retained cache of another one has.
		e.Hydration.Move, e.Hydration.From = volume.MoveID{}, nil
	}
	a.tellEnded(ctx, e)
	e.HotSetDue, e.RetainedCacheDue = e.Hydration == nil, true
	if err := a.save(ctx, e, state.Retained); err != nil {
		return err
	}
	faultUnstageRetained.Hit()
	a.ssd.Rest(ctx, e.ID)
	a.reportDown(ctx, e, retainedCacheOf(e))
	return nil
}

// tagStopped notes on the SSD that the devices of a flushed cache were removed cleanly, with a count
// that is higher than any while the volume could have writes that were nowhere else.
func (a *Attacher) tagStopped(ctx context.Context, e *state.Entry) error {
	if e.Marked {
		if err := a.countUp(ctx, e); err != nil {
			return err
		}
	}
	if e.State == state.Flushed {
		a.ssd.TagStopped(ctx, e)
	}
	return nil
}

// retainedCacheOf is what the record is to say of a Retained entry.
func retainedCacheOf(e *state.Entry) *volume.RetainedCache {
	return &volume.RetainedCache{Generation: e.Fence.Generation, SizeBytes: e.CacheBytes(), Partial: e.Hydration != nil}
}

// recordWhole journals that a hydration has copied everything, as long as its devices can
// tell.
func (a *Attacher) recordWhole(ctx context.Context, e *state.Entry) error {
	if e.Hydration == nil {
		return nil
	}
	whole, err := a.stack.HydrationIsWhole(ctx, e)
	if err != nil || !whole {
		return err
	}
	if err := a.stack.RemoveUpper(ctx, e.ID); err != nil {
		return err
	}
	a.dropHydration(ctx, e, volume.MoveCompleted, "everything was copied")
	if err := a.ssd.RemoveHydration(ctx, e.ID); err != nil {
		return err
	}
	return a.save(ctx, e, e.State)
}

// detach takes an uncached volume down.
func (a *Attacher) detach(ctx context.Context, e *state.Entry) error {
	if err := a.cleanDenied(ctx, e); err != nil && !a.shutOut(ctx, e) {
		return err
	}
	if e.State != state.Releasing {
		if err := a.save(ctx, e, state.Releasing); err != nil {
			return err
		}
	}
	faultDetachJournaled.Hit()
	if err := a.stack.RemoveDevices(ctx, e.ID); err != nil {
		return err
	}
	faultDetachRemoved.Hit()
	if err := a.disconnect(ctx, e); err != nil {
		return err
	}
	faultDetachDisconnected.Hit()
	if err := a.takeBackMark(ctx, e); err != nil {
		return err
	}
	a.endHydration(ctx, e, volume.MoveEnded, "the volume left the node uncached")
	a.tellEnded(ctx, e)
	if err := a.forget(e.ID); err != nil {
		return err
	}
	a.reportDown(ctx, e, nil)
	return nil
}

// discard takes everything down and destroys the cache.
func (a *Attacher) discard(ctx context.Context, e *state.Entry) error {
	if e.State != state.Wiping {
		if err := a.save(ctx, e, state.Wiping); err != nil {
			return err
		}
	}
	if err := a.stack.RemoveDevices(ctx, e.ID); err != nil {
		return err
	}
	if err := a.disconnect(ctx, e); err != nil {
		return err
	}
	if err := a.takeBackMark(ctx, e); err != nil {
		return err
	}
	a.endHydration(ctx, e, volume.MoveEnded, "the cache was given up")
	a.tellEnded(ctx, e)
	a.reportDoubt(ctx, e)
	if err := a.wipe(ctx, e.ID, e); err != nil {
		return err
	}
	a.reportDown(ctx, e, nil)
	return nil
}

// disconnect ends the use of the origin, before the record says Clean: the admission may end then.
// Another driver is to be asked to detach only what was unstaged; and a disk whose storage server
// cuts its session while the disk is removed holds its remover up for as long as requests wait for a
// lost session (sd flushes the disk's cache, drivers/scsi/sd.c, sd_shutdown).
func (a *Attacher) disconnect(ctx context.Context, e *state.Entry) error {
	if e.Source.IsZero() {
		return nil // never attached here
	}
	a.giveReservation(ctx, e)
	if err := a.Transport.Disconnect(ctx, transport.Target{Source: e.Source}); err != nil {
		return transportError(err)
	}
	return nil
}

// reportDown tells the record that the volume left, with or without a retained cache.
func (a *Attacher) reportDown(ctx context.Context, e *state.Entry, r *volume.RetainedCache) {
	log := klog.FromContext(ctx)
	if e.Prewarm != nil && e.Source.IsZero() {
		return // it never was here
	}
	a.detached.Store(e.ID, nil)
	// The volume has left: what is told of it has time of its own.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	if err := a.reportRetainedCache(ctx, e, r); err != nil {
		log.Error(err, "Retained cache could not be reported", "volume", e.ID)
	}
	applied := volume.AppliedReport{State: volume.AppliedDetached, Reason: v1alpha1.ReasonNotAttached, Message: "takes effect when the volume is attached"}
	if err := a.Records.ReportApplied(ctx, e.ID, a.Node, applied); err != nil {
		log.Error(err, "State of changes could not be reported", "volume", e.ID)
	}
	report := volume.CacheReport{Reason: v1alpha1.ReasonDetached, Message: "not attached", Owner: a.Node}
	if err := a.Records.Report(ctx, e.ID, report); err != nil && !errors.Is(err, volume.ErrNotFound) {
		log.Error(err, "Cache state could not be reported", "volume", e.ID)
	}
}

// reportTimeout bounds what is told of a volume that has left.
const reportTimeout = 10 * time.Second

// reportRetainedCache has the record list a retained cache, or none (nil): then the entry may be
// forgotten already. A record that is gone needs no list, and gets it if it comes back.
func (a *Attacher) reportRetainedCache(ctx context.Context, e *state.Entry, r *volume.RetainedCache) error {
	err := a.Records.SetRetainedCache(ctx, e.ID, a.Node, r)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil || r == nil || !e.RetainedCacheDue {
		return err
	}
	e.RetainedCacheDue = false
	return a.save(ctx, e, e.State)
}

// transportError maps the transport's errors to the domain's.
func transportError(err error) error {
	switch {
	case errors.Is(err, transport.ErrAuth):
		return fmt.Errorf("%w: %w", volume.ErrAuth, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	}
	return fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
}
