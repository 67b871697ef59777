package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/cachefault"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// CacheFaults returns what has this node's volumes go on without caches that fail.
func (a *Attacher) CacheFaults() *cachefault.Watch { return a.cacheFaults }

// faultHost is the Attacher as the watch of its caches sees it.
type faultHost struct{ *Attacher }

// Entries implements cachefault.Host.
func (h faultHost) Entries() ([]state.Entry, error) { return h.Journal.List() }

// Lock implements cachefault.Host.
func (h faultHost) Lock(ctx context.Context, id volume.ID) (*state.Entry, func(), error) {
	return h.lockSettled(ctx, id)
}

// Report implements cachefault.Host.
func (h faultHost) Report(ctx context.Context, id volume.ID, r volume.CacheReport) error {
	return h.Records.Report(ctx, id, r)
}

// Stripes implements cachefault.Host. Caches of before lie on devices that are to leave the pool too.
func (h faultHost) Stripes() int {
	v := h.Pool.View()
	if v.Mirror {
		return v.Stripes
	}
	return max(v.Stripes, len(v.Devices))
}

func (h faultHost) VG() string { return h.Pool.View().VG }

// Detach implements cachefault.Host.
func (h faultHost) Detach(ctx context.Context, e *state.Entry, cause string) error {
	return h.detachCache(ctx, e, cause)
}

// ReportDetached implements cachefault.Host.
func (h faultHost) ReportDetached(ctx context.Context, e *state.Entry) error {
	return h.reportFailover(ctx, e)
}

// detachCache detaches a failing cache below a running pod, in the order of states.md.
func (a *Attacher) detachCache(ctx context.Context, e *state.Entry, cause string) error {
	log := klog.FromContext(ctx)
	if e.FailoverCause == "" {
		e.FailoverCause = cause
	}
	log.Error(nil, "Cache device fails, the volume goes on without its cache", "cause", e.FailoverCause)
	table, err := a.DM.Table(ctx, layout.Device(e.ID, layout.Top))
	if err != nil {
		return err
	}
	cache, ok := table.Cache()
	if !ok || cache.Mode != devmapper.Writethrough && !e.Streams() {
		return fmt.Errorf("%w: the cache that fails is in mode %q although the journal says %s: it is kept", volume.ErrUnavailable, cache.Mode, e.Mode)
	}
	if err := a.nothingDirty(ctx, e); err != nil {
		return err
	}
	if err := a.clearDirtyMark(ctx, e); err != nil {
		return err
	}
	faultFailoverUnmarked.Hit()
	a.stack.FinalCount(ctx, e.ID)
	if e.Hydration != nil && !e.Streams() {
		// A peer that is lost just now must not hold up the swap.
		a.hydrations.Begin(e.ID, time.Time{})
	}
	// The journal must deny the cache before the pod can write past it (I3).
	e.Deny()
	e.NoCacheBefore = a.Now().Add(deviceRest)
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultFailoverDenied.Hit()
	// The origin by the table itself: nothing else needs to answer. That of a stream is below
	// its first level.
	origin := cache.Origin
	if e.Streams() {
		l, err := a.stack.Levels(ctx, e)
		if err != nil {
			return err
		}
		if below := l.OriginOf(); below != "" {
			origin = below
		}
	}
	if err := a.stack.Bypass(ctx, e, table.Sectors(), origin); err != nil {
		return err
	}
	faultFailoverSwapped.Hit()
	if a.FailedOver != nil {
		a.FailedOver()
	}
	reported := a.reportFailover(ctx, e)
	faultFailoverReported.Hit()
	return errors.Join(reported, a.sweepBroken(ctx, e))
}

// clearDirtyMark makes sure that nobody flushes the cache when the journal is lost, over newer data: the
// record is made to be ahead of the SSD, which fails and is not asked. Without the record, the tags are
// enough: one that says dirty has the volume refused then. A cache without a mark is left also if neither can
// be had: its pod has errors.
func (a *Attacher) clearDirtyMark(ctx context.Context, e *state.Entry) error {
	if e.WrittenThrough && !e.Marked {
		return nil
	}
	err := a.countUp(ctx, e)
	switch {
	case err != nil:
		return err
	case e.Marked:
		err = a.markClean(ctx, e)
	default:
		err = a.bounded(ctx, func(ctx context.Context) error { return a.recordCount(ctx, e) })
	}
	if err == nil {
		return nil
	}
	tagErr := a.bounded(ctx, func(ctx context.Context) error { return a.ssd.TagMode(ctx, e, volume.ModeWritethrough) })
	switch {
	case tagErr == nil:
		return nil
	case e.Marked:
		return errors.Join(err, tagErr)
	}
	klog.FromContext(ctx).Error(errors.Join(err, tagErr), "Neither record nor SSD says that the cache was left", "volume", e.ID)
	return nil
}

// bounded gives a step no longer than a failing SSD gets.
func (a *Attacher) bounded(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	return step(ctx)
}

// sweepBroken removes what is left of the cache. The volume works without that,
// and repair goes on with what the SSD refuses.
func (a *Attacher) sweepBroken(ctx context.Context, e *state.Entry) error {
	if err := a.bounded(ctx, func(ctx context.Context) error { return a.sweep(ctx, e) }); err != nil {
		klog.FromContext(ctx).Error(err, "Failed cache could not be removed; it will be")
	}
	return nil
}

// reportFailover tells of a failover, and journals that it did.
func (a *Attacher) reportFailover(ctx context.Context, e *state.Entry) error {
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
