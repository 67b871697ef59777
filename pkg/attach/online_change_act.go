package attach

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// takeStep takes one step of the table "What changes while the volume is attached".
// Every step may be repeated from its beginning. wait is true when the kernel
// needs time before the next.
func (a *Attacher) takeStep(ctx context.Context, f changeFacts, step changeStep) (wait bool, err error) {
	e := f.Entry
	switch step {
	case changeSweep:
		return false, a.sweep(ctx, e)
	case changeCache:
		return false, a.cacheLive(ctx, f)
	case changeRecord:
		return false, a.recordCache(ctx, e)
	case changeUncache:
		return false, a.uncacheLive(ctx, f)
	case changeClean:
		return a.cleanLive(ctx, f)
	case changeUnmark:
		err := a.unmark(ctx, e)
		if err == nil && f.Degraded != "" {
			a.report(ctx, e.ID, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonMirrorDegraded, Warning: true, Message: fmt.Sprintf(
				"the pool of node %s is degraded (%s): everything was flushed, and writes go through to the storage server until the mirror is whole", a.Node, f.Degraded)})
		}
		return false, err
	case changeMark:
		return false, a.markDirty(ctx, e)
	case changeRestore:
		return false, a.restore(ctx, e)
	case changeWriteback:
		return false, a.startWriteback(ctx, e)
	case changeGrow:
		return false, a.growCache(ctx, f)
	case changeFlushed:
		return false, a.flushed(ctx, f)
	case changeUnsafe:
		return false, a.startUnsafe(ctx, e)
	case changeSafe:
		return false, a.endUnsafe(ctx, e)
	case changeTell:
		return false, a.tellTorn(ctx, e)
	case changeNothing, changeImpossible, changeDone:
	}
	return false, nil
}

// sweep removes what is left of a cache below a linear top device.
func (a *Attacher) sweep(ctx context.Context, e *state.Entry) error {
	return a.sweepBecause(ctx, e, "the cache was taken away")
}

// sweepBecause is sweep with the reason for which a move that was under way ends.
func (a *Attacher) sweepBecause(ctx context.Context, e *state.Entry, why string) error {
	top, _, err := a.stack.Top(ctx, e.ID)
	if err != nil {
		return err
	}
	if top.HasInactive {
		// A load whose process was killed before the resume holds the cache open.
		if err := a.DM.Clear(ctx, layout.Device(e.ID, layout.Top)); err != nil {
			return err
		}
	}
	if err := a.leases.End(ctx, e); err != nil {
		return err
	}
	if err := a.streams.Stop(ctx, e.ID); err != nil {
		return err
	}
	if err := a.stack.RemoveBelow(ctx, e.ID); err != nil {
		return err
	}
	faultChangeDataRemoved.Hit()
	if e.Hydration != nil || e.Recovered {
		outcome := volume.MoveEnded
		if a.Now().Before(e.NoCacheBefore) {
			outcome, why = volume.MoveFailed, "the SSD failed"
		}
		a.dropHydration(ctx, e, outcome, why)
		e.Recovered = false
		if err := a.save(ctx, e, e.State); err != nil {
			return err
		}
	}
	if err := a.removeUnclaimed(ctx, e.ID, e); err != nil || !e.Checked {
		return err
	}
	e.Checked = false // until now a plugin of before, which could not take the layer down, has to refuse the entry
	return a.save(ctx, e, e.State)
}

// cacheLive puts an empty writethrough cache between the pod and the origin. The
// origin's content does not change by it, so that it can be undone or forgotten
// at any moment.
func (a *Attacher) cacheLive(ctx context.Context, f changeFacts) error {
	e := f.Entry
	o, err := a.lookupOrigin(ctx, e.ID, e.Source)
	if err != nil {
		return err
	}
	// What an earlier, killed try left has another shape, or a map.
	if err := a.sweep(ctx, e); err != nil {
		return err
	}
	// A failover that could not be reported in all that time is not news any more; left
	// here it would be completed with the new cache.
	e.FailoverCause, e.Mirrored, e.Checked, e.WrittenThrough = "", false, a.Pool.View().Integrity, true
	e.ChunkSectors, e.DataBytes, e.MetaBytes = f.Want.chunkSectors, f.Want.dataBytes, f.Want.metaBytes
	a.markOrigin(ctx, e)
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultChangeJournaled.Hit()
	if err := a.loadNewCache(ctx, e, o, f.Record.Spec.Mirror); err != nil {
		if undo := a.sweep(context.WithoutCancel(ctx), e); undo != nil {
			klog.FromContext(ctx).Error(undo, "Cache that could not be made live was not removed; it will be")
		}
		return err
	}
	faultChangeCached.Hit()
	return a.recordCache(ctx, e)
}

func (a *Attacher) loadNewCache(ctx context.Context, e *state.Entry, o stack.Origin, mirror bool) error {
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	next := *e
	next.Mode = volume.ModeWritethrough
	c, err := a.allocate(cctx, cacheSpecOf(&next, mirror, false))
	if err != nil {
		return err
	}
	faultChangeAllocated.Hit()
	data, err := a.createDataDevice(cctx, &next, c, o)
	if err != nil {
		return err
	}
	if err := a.stack.CheckData(data, o); err != nil {
		return err
	}
	e.Mirrored = next.Mirrored
	return a.stack.ReloadTop(cctx, e, a.stack.CacheTable(&next, c.Meta, data, o, false))
}

// recordCache journals a cache that is live in writethrough mode.
func (a *Attacher) recordCache(ctx context.Context, e *state.Entry) error {
	if err := a.nothingDirty(ctx, e); err != nil {
		return err
	}
	e.Activate(volume.ModeWritethrough)
	a.stack.RefuseDiscards(ctx, e) // whoever loaded the table may have been killed before
	a.stack.BeginCounting(ctx, e)
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultChangeRecorded.Hit()
	a.report(ctx, e.ID, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive, Message: "a new, empty cache, made while the volume was attached, on node " + a.Node})
	return nil
}

// nothingDirty refuses a live cache with dirty blocks, which the journal is about to deny, or has
// denied. What a level of a stream has is a copy.
func (a *Attacher) nothingDirty(ctx context.Context, e *state.Entry) error {
	if e.Streams() {
		return nil
	}
	st, found, err := a.DM.Status(ctx, layout.Device(e.ID, layout.Top))
	switch {
	case err != nil:
		return err
	case found && st.Dirty > 0:
		return fmt.Errorf("%w: the cache of volume %s has %d dirty blocks, which its journal denies", volume.ErrUnavailable, e.ID, st.Dirty)
	}
	return nil
}

// disown sees to it that nobody writes a cache in writethrough mode to its origin, past which a pod may
// write by then, should the journal be lost: its tags say writethrough. LVM changes none of a group that
// lacks an SSD; then the record is ahead of them, which makes them those of the past.
func (a *Attacher) disown(ctx context.Context, e *state.Entry) error {
	if !e.Marked && (e.WrittenThrough || e.Streams()) {
		return nil // made in writethrough mode, and never in another
	}
	if !a.ssd.Degraded() {
		return a.ssd.TagMode(ctx, e, volume.ModeWritethrough)
	}
	if err := a.countUp(ctx, e); err != nil {
		return err
	}
	return a.recordCount(ctx, e)
}

// unmark takes back the mark of a volume that is in use. A cache that takes no writes any more is
// disowned by that (states.md, Disown): its pod goes on, and what the SSD loses of it has the origin alone.
func (a *Attacher) unmark(ctx context.Context, e *state.Entry) error {
	if !e.Cached() {
		return a.takeBackMark(ctx, e)
	}
	if err := a.countUp(ctx, e); err != nil {
		return err
	}
	if !a.ssd.Degraded() {
		a.tagCounted(ctx, e)
	}
	// The record before the tags: if it said PossiblyDirty, and they do not, a lost journal would have the
	// volume refused. The journal says Marked until both are done, so that this is repeated.
	if err := a.tellClean(ctx, e); err != nil {
		return err
	}
	faultChangeUnmarked.Hit()
	if !a.ssd.Degraded() {
		if err := a.ssd.TagMode(ctx, e, volume.ModeWritethrough); err != nil {
			return err
		}
	}
	e.Marked = false
	return a.save(ctx, e, e.State)
}

// uncacheLive takes the cache from below a running pod. The table is writethrough
// and nothing is dirty: the caller has seen to that.
func (a *Attacher) uncacheLive(ctx context.Context, f changeFacts) error {
	e := f.Entry
	if f.Status.Mode() != devmapper.Writethrough && !e.Streams() || f.Status.Dirty > 0 {
		return fmt.Errorf("%w: the cache of volume %s is in mode %s with %d dirty blocks, it cannot be taken away",
			volume.ErrUnavailable, e.ID, f.Status.Mode(), f.Status.Dirty)
	}
	o, err := a.lookupOrigin(ctx, e.ID, e.Source)
	if err != nil {
		return err
	}
	if err := a.disown(ctx, e); err != nil {
		return err
	}
	a.stack.FinalCount(ctx, e.ID)
	// The journal must deny the cache before the pod can write past it (I3).
	e.Deny()
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultChangeDenied.Hit()
	if err := a.stack.Bypass(ctx, e, f.Status.OriginSectors, o.DevNo); err != nil {
		return err
	}
	faultChangeUncached.Hit()
	switch {
	case f.Coarse != "":
		a.report(ctx, e.ID, volume.CacheReport{Reason: v1alpha1.ReasonBlockSizeTooLarge, Warning: true, Message: f.Coarse})
	case f.ProblemReason == v1alpha1.ReasonNotMirrored:
		a.report(ctx, e.ID, volume.CacheReport{Reason: f.ProblemReason, Warning: true, Message: f.Problem})
	case f.Leaving && f.Record.Spec.Mode != volume.ModeNone:
		a.report(ctx, e.ID, volume.CacheReport{Reason: v1alpha1.ReasonDeviceEvacuated, Message: "the cache has left an SSD that is to be out of the pool of node " + a.Node + ", and is made anew as soon as there is a place"})
	case f.Record.Spec.Mode == volume.ModeNone:
		a.report(ctx, e.ID, volume.CacheReport{Reason: v1alpha1.ReasonDropped, Message: "the cache was given back while the volume was attached on node " + a.Node})
	}
	return a.sweep(ctx, e)
}

// cleanLive writes every dirty block to the origin while the pod goes on. The
// table is writethrough meanwhile, so that no write makes a block dirty again.
func (a *Attacher) cleanLive(ctx context.Context, f changeFacts) (wait bool, err error) {
	e := f.Entry
	if e.Mode != volume.ModeWriteback && !e.Recovered {
		// Whatever made it dirty would do so again with the next table.
		e.Recovered = true
		if err := a.save(ctx, e, e.State); err != nil {
			return false, err
		}
	}
	if err := a.swapPolicy(ctx, e, true); err != nil {
		return false, err
	}
	faultChangeCleaner.Hit()
	st, err := a.stack.CacheStatus(ctx, e.ID)
	if err != nil {
		return false, err
	}
	switch {
	case st.Fail:
		return false, fmt.Errorf("%w: the cache of volume %s failed during its flush", volume.ErrUnavailable, e.ID)
	case st.Mode() != devmapper.Writethrough || st.Policy != devmapper.PolicyCleaner:
		return false, fmt.Errorf("%w: the cache of volume %s is not being cleaned", volume.ErrUnavailable, e.ID)
	case st.Dirty > 0:
		return true, nil
	}
	if err := a.passFlushes(ctx, e); err != nil {
		return false, err
	}
	if err := a.flushOrigin(ctx, e); err != nil {
		return false, err
	}
	faultChangeCleaned.Hit()
	e.FlushDone = f.Record.FlushRequest
	if e.Mode == volume.ModeWriteback && (f.Record.Spec.Mode != volume.ModeWriteback || needsNewCache(f)) {
		// From here on a crash costs the cache, not data: it is not dirty, and the
		// table cannot make it so.
		e.Mode = volume.ModeWritethrough
		e.Passed()
	}
	return false, a.save(ctx, e, e.State)
}

// restore loads the table that the journal speaks of.
func (a *Attacher) restore(ctx context.Context, e *state.Entry) error {
	if err := a.markDirty(ctx, e); err != nil {
		return err
	}
	return a.swapPolicy(ctx, e, false)
}

// startWriteback lets a writethrough cache take writes. What the SSD's tags say
// comes first: alone they must never deny what may be dirty.
func (a *Attacher) startWriteback(ctx context.Context, e *state.Entry) error {
	// A backup of the journal of before speaks of this activation too, and of nothing dirty.
	if err := a.countUp(ctx, e); err != nil {
		return err
	}
	if err := a.ssd.TagMode(ctx, e, volume.ModeWriteback); err != nil {
		return err
	}
	faultChangeTagged.Hit()
	e.Activate(volume.ModeWriteback)
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultChangeWriteback.Hit()
	if err := a.restore(ctx, e); err != nil {
		return err
	}
	a.report(ctx, e.ID, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive, Message: "the cache, now in mode writeback, on node " + a.Node})
	return nil
}

// growCache gives a live cache more room and keeps its map: the kernel takes a
// longer data device when the table is loaded again.
func (a *Attacher) growCache(ctx context.Context, f changeFacts) error {
	e, view := f.Entry, a.Pool.View()
	if err := a.extendData(ctx, e, f.Want.dataBytes); err != nil {
		return err
	}
	faultChangeExtended.Hit()
	c, err := a.ssd.Inspect(ctx, view.VG, e.ID)
	if err != nil {
		return err
	}
	if !c.Facts.Whole {
		return fmt.Errorf("%w: the cache of volume %s is not whole", volume.ErrUnavailable, e.ID)
	}
	sectors := uint64(c.Data.SizeBytes) / sectorSize
	err = a.stack.GrowDevice(ctx, layout.Device(e.ID, layout.Data), sectors, func(devmapper.Table) devmapper.Table {
		return devmapper.LinearTable(sectors, c.Data.DevNo())
	})
	if err != nil {
		return err
	}
	faultChangeDataGrown.Hit()
	table, err := a.DM.Table(ctx, layout.Device(e.ID, layout.Top))
	if err != nil {
		return err
	}
	if err := a.reloadCache(ctx, e, table, a.stack.FinalCount); err != nil {
		return err
	}
	faultChangeGrown.Hit()
	e.DataBytes = c.Data.SizeBytes
	return a.save(ctx, e, e.State)
}

// extendData makes room in the pool and lengthens the data volume.
func (a *Attacher) extendData(ctx context.Context, e *state.Entry, size int64) error {
	unlock, err := a.ssd.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	view := a.Pool.View()
	c, err := a.ssd.Inspect(ctx, view.VG, e.ID)
	if err != nil {
		return err
	}
	view = view.Holding(c.Data.Mirrored())
	raw := func(bytes int64) int64 { return bytes }
	if c.Data.Checked {
		raw = integrity.RawBytes
	}
	on, more := a.ssd.DevicesBelow(c.Data.DevNo(), view), raw(size)-raw(c.Data.SizeBytes)
	if err := a.keepShare(ctx, e.ID, view.Copies, []int64{more}); err != nil {
		return err
	}
	if err := a.makeRoom(ctx, e.ID, view, []int64{more}, func(free map[string]int64) bool {
		return ssd.GrowsOn(view, free, on, more)
	}); err != nil {
		return err
	}
	return a.LVM.ExtendLV(ctx, view.VG, layout.DataLV(e.ID), size)
}

// flushed reports a flush that is done. Without a writeback cache there is
// nothing dirty, and the origin's own cache is all that is left to flush.
func (a *Attacher) flushed(ctx context.Context, f changeFacts) error {
	e := f.Entry
	if f.flushDue() {
		if err := a.flushOrigin(ctx, e); err != nil {
			return err
		}
		e.FlushDone = f.Record.FlushRequest
		if err := a.save(ctx, e, e.State); err != nil {
			return err
		}
	}
	return a.Records.ReportFlushed(ctx, e.ID, e.Fence, e.FlushDone)
}

// report tells the record what the cache does; nobody's data wait for it.
func (a *Attacher) report(ctx context.Context, id volume.ID, r volume.CacheReport) {
	if err := a.Records.Report(ctx, id, r); err != nil {
		klog.FromContext(ctx).Error(err, "Cache state could not be reported", "volume", id)
	}
}
