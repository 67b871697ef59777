package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// RunFailover lets volumes fail over from caches that fail, until ctx ends.
func (a *Attacher) RunFailover(ctx context.Context, every time.Duration) {
	passes.Repeat(ctx, every, a.FailOver, func(err error) {
		klog.FromContext(ctx).Error(err, "Caches could not be examined, or one that fails could not be left; it is tried again")
	})
}

// FailOver examines the caches of all attached volumes once, and takes the steps of
// states.md, The cache device fails. While none of them fails, that takes two
// commands, once in a while a third, and a few reads of the SSD for each. It is not for concurrent use.
func (a *Attacher) FailOver(ctx context.Context) error {
	entries, err := a.Journal.List()
	problems := []error{err}
	var known []*Entry
	fill := false
	for i := range entries {
		// One that the journal denies may be live if a step was killed.
		if e := &entries[i]; e.State == StateStaged && (e.Cached() || e.FailoverCause != "" || e.DataBytes > 0) {
			known = append(known, e)
			fill = fill || e.Fill != nil
		}
	}
	a.ssd.keep(known)
	if len(known) == 0 {
		return err
	}
	problems = append(problems, a.writeProbe(ctx, known))
	look, err := a.lookAtCaches(ctx, fill)
	if err != nil {
		return errors.Join(append(problems, err)...)
	}
	unreadable := a.unreadable(ctx, known, look.infos)
	var due []volume.ID
	for _, e := range known {
		if look.silent(e) {
			continue // no news, and no table could be swapped
		}
		f := a.failoverFacts(e, look, unreadable[e.ID])
		why := f.broken()
		if !f.LiveCache {
			why = ""
		}
		a.ssd.note(e.ID, why)
		if decideFailover(f) != failoverNothing {
			due = append(due, e.ID)
		}
	}
	return errors.Join(append(problems, a.failingOver.each(ctx, workSlow, workPatience, due, func(ctx context.Context, id volume.ID) error {
		if err := a.failOverOne(ctx, id, unreadable[id], fill); err != nil {
			return fmt.Errorf("volume %s: %w", id, err)
		}
		return nil
	}))...)
}

// cacheLook is what one look at the kernel shows of all caches.
type cacheLook struct {
	status map[string]devmapper.CacheStatus
	clones map[string]devmapper.CloneStatus
	infos  map[string]devmapper.Info
}

// silent tells a volume whose cache, or whose copy into the cache, does not answer.
func (l cacheLook) silent(e *Entry) bool {
	return l.status[layout.Device(e.ID, layout.Top)].Silent || e.Fill != nil && l.clones[layout.Device(e.ID, layout.Data)].Silent
}

func (a *Attacher) lookAtCaches(ctx context.Context, fill bool) (l cacheLook, err error) {
	if l.status, err = a.DM.StatusAll(ctx); err != nil {
		return l, err
	}
	if l.infos, err = a.DM.Info(ctx, layout.DevicePrefix); err != nil || !fill {
		return l, err
	}
	l.clones, err = a.DM.CloneStatusAll(ctx)
	return l, err
}

func (a *Attacher) failoverFacts(e *Entry, l cacheLook, unreadable string) failoverFacts {
	f := failoverFacts{Entry: e, Unreadable: unreadable, AtRiskTold: a.ssd.atRisk(e.ID)}
	if l.silent(e) {
		return f
	}
	f.Status, f.LiveCache = l.status[layout.Device(e.ID, layout.Top)]
	f.LiveOrigin = l.infos[layout.Device(e.ID, layout.Top)].HasLive && !f.LiveCache
	if c, found := l.clones[layout.Device(e.ID, layout.Data)]; found {
		f.Clone = &c
	}
	return f
}

// failOverOne takes the step of one volume under its lock, with what is so by then.
// A volume that a request works on is looked at again.
func (a *Attacher) failOverOne(ctx context.Context, id volume.ID, unreadable string, fill bool) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return nil
	}
	defer unlock()
	e, err := a.loadSettled(ctx, id)
	if err != nil || e == nil {
		return err
	}
	look, err := a.lookAtCaches(ctx, fill)
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("volume", id))
	f := a.failoverFacts(e, look, unreadable)
	switch decideFailover(f) {
	case failoverSwap:
		return a.failOverVolume(ctx, f)
	case failoverReport:
		return a.reportFailover(ctx, e)
	case failoverAtRisk:
		return a.reportAtRisk(ctx, f)
	case failoverHealed:
		return a.reportHealed(ctx, e)
	case failoverNothing:
	}
	return nil
}

// failOverVolume detaches a failing cache below a running pod, in the order of states.md.
func (a *Attacher) failOverVolume(ctx context.Context, f failoverFacts) error {
	e, log := f.Entry, klog.FromContext(ctx)
	if e.FailoverCause == "" {
		e.FailoverCause = f.broken()
	}
	log.Error(nil, "Cache device fails, the volume goes on without its cache", "cause", e.FailoverCause)
	table, err := a.DM.Table(ctx, layout.Device(e.ID, layout.Top))
	if err != nil {
		return err
	}
	cache, ok := table.Cache()
	if !ok || cache.Mode != devmapper.Writethrough {
		return fmt.Errorf("%w: the cache that fails is in mode %q although the journal says %s: it is kept", volume.ErrUnavailable, cache.Mode, e.Mode)
	}
	if err := a.clearDirtyMark(ctx, e); err != nil {
		return err
	}
	faultFailoverUnmarked.Hit()
	a.finalCount(ctx, e.ID)
	if e.Fill != nil {
		// A peer that is lost just now must not hold up the swap.
		a.fills.begin(e.ID, time.Time{})
	}
	// The journal must deny the cache before the pod can write past it (I3).
	e.Mode, e.Activated, e.Clean = volume.ModeNone, false, false
	e.Fill.forgetResidency()
	e.NoCacheBefore = a.Now().Add(deviceRest)
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultFailoverDenied.Hit()
	// The origin by the table itself: nothing else needs to answer.
	if err := a.reload(ctx, layout.Device(e.ID, layout.Top), devmapper.LinearTable(table.Sectors(), cache.Origin)); err != nil {
		return err
	}
	faultFailoverSwapped.Hit()
	a.ssd.note(e.ID, "")
	if a.FailedOver != nil {
		a.FailedOver()
	}
	reported := a.reportFailover(ctx, e)
	faultFailoverReported.Hit()
	return errors.Join(reported, a.sweepBroken(ctx, e))
}

// clearDirtyMark makes sure that nobody flushes the cache when the journal is lost: tags
// that say writeback and a record that says dirty would have it written over newer
// data. One of the two is enough.
func (a *Attacher) clearDirtyMark(ctx context.Context, e *Entry) error {
	if !e.Marked {
		return nil
	}
	err := a.takeBackMark(ctx, e)
	if err == nil {
		return nil
	}
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	if tagErr := a.tagMode(cctx, e, volume.ModeWritethrough); tagErr != nil {
		return errors.Join(err, tagErr)
	}
	return nil
}

// sweepBroken removes what is left of the cache. The volume works without that,
// and repair goes on with what the SSD refuses.
func (a *Attacher) sweepBroken(ctx context.Context, e *Entry) error {
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	if err := a.sweep(cctx, e); err != nil {
		klog.FromContext(ctx).Error(err, "Failed cache could not be removed; it will be")
	}
	return nil
}

// reportFailover tells of a failover, and journals that it did.
func (a *Attacher) reportFailover(ctx context.Context, e *Entry) error {
	r := volume.CacheReport{Reason: v1alpha1.ReasonCacheDeviceError, Warning: true, Message: fmt.Sprintf(
		"%s: the volume goes on without its cache on node %s, nothing is lost; another cache is tried when the pool is ready, not before %s",
		e.FailoverCause, a.Node, e.NoCacheBefore.UTC().Format(time.RFC3339))}
	if err := a.Records.Report(ctx, e.ID, r); err != nil && !errors.Is(err, volume.ErrNotFound) {
		return fmt.Errorf("report of the failover: %w", err)
	}
	faultFailoverTold.Hit()
	e.FailoverCause = ""
	return a.save(ctx, e, e.State)
}

// reportAtRisk tells of unflushed writes on an SSD that fails, once.
func (a *Attacher) reportAtRisk(ctx context.Context, f failoverFacts) error {
	if f.AtRiskTold {
		return nil
	}
	e := f.Entry
	dirty := fmt.Sprintf("%d bytes of its writes", f.Status.DirtyBytes())
	if f.Status.Fail {
		dirty = "an unknown part of its writes"
	}
	r := volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheDeviceError, Warning: true, Message: fmt.Sprintf(
		"%s: %s may be on the SSD of node %s alone, so that the volume cannot go on without its cache; those that the SSD does not give back are lost",
		f.broken(), dirty, a.Node)}
	klog.FromContext(ctx).Error(nil, "Cache device fails with unflushed writes on it", "cause", f.broken(), "dirtyBytes", f.Status.DirtyBytes())
	if err := a.Records.Report(ctx, e.ID, r); err != nil {
		return fmt.Errorf("report of what is at risk: %w", err)
	}
	a.ssd.setAtRisk(e.ID, true)
	return nil
}

// reportHealed takes that back.
func (a *Attacher) reportHealed(ctx context.Context, e *Entry) error {
	r := volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive, Message: "the cache device answers again on node " + a.Node}
	if err := a.Records.Report(ctx, e.ID, r); err != nil {
		return fmt.Errorf("report of the cache: %w", err)
	}
	a.ssd.setAtRisk(e.ID, false)
	return nil
}
