package attach

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// shape is what decides the logical volumes of a new cache.
type shape struct {
	id                   volume.ID
	fence                volume.Fence
	activation           volume.Activation
	mode                 volume.CacheMode
	metaBytes, dataBytes int64
	// originBytes is the size of the origin, which is only noted.
	originBytes int64
	// hydration tells that the cache begins with a hydration, which has metadata of its own.
	hydration bool
	// keep tells that the data volume is there, with what was copied beforehand.
	keep bool
}

// shapeOf is the shape of the cache that an entry speaks of.
func shapeOf(e *state.Entry, keep bool) shape {
	return shape{id: e.ID, fence: e.Fence, activation: e.Activation(), mode: e.Mode, metaBytes: e.MetaBytes, dataBytes: e.DataBytes, originBytes: e.OriginBytes, hydration: e.Hydration != nil, keep: keep}
}

func (w shape) tags() []string {
	tags := append(layout.Tags(w.fence, w.mode), layout.ActivationTags(w.activation)...)
	if w.originBytes > 0 {
		tags = append(tags, layout.OriginTag(w.originBytes))
	}
	return tags
}

// early are logical volumes that were made before it was certain what is needed.
type early struct {
	shape shape
	cache ssd.Cache
	err   error
}

// beginAllocate makes the volumes of a new cache from what the record says, while the
// origin and the peer are asked: that is mostly waiting. The returned function waits
// for the result, nil if there is none. The journal already says Staging, so that
// whoever finds the volumes wipes them.
func (a *Attacher) beginAllocate(ctx context.Context, s *staging) (wait func() *early) {
	e, view := s.entry, a.Pool.View()
	if s.plan.Cache != planCreate || e.Prewarm != nil || s.rec.Spec.CapacityBytes == 0 || mayBeCoarse(view) {
		return func() *early { return nil }
	}
	g, err := planGeometry(s.rec.Spec, s.rec.Spec.CapacityBytes, allocationUnit(view))
	if err != nil {
		return func() *early { return nil } // the same error comes again
	}
	// The entry belongs to the hydration meanwhile.
	out := &early{shape: shape{id: e.ID, fence: e.Fence, activation: e.Activation(), mode: e.Mode, metaBytes: g.metaBytes, dataBytes: g.dataBytes, originBytes: s.rec.Spec.CapacityBytes, hydration: e.Hydration != nil}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
		defer cancel()
		out.cache, out.err = a.allocate(cctx, out.shape)
	}()
	return func() *early {
		<-done
		return out
	}
}

// earlyUse is what early volumes are good for.
type earlyUse string

const (
	earlyNone          earlyUse = "None"          // there are none
	earlyFail          earlyUse = "Fail"          // the SSD did not answer in time: it is not asked twice
	earlyAsIs          earlyUse = "AsIs"          // they are what is needed
	earlyAddHydration  earlyUse = "AddHydration"  // the metadata of a hydration are missing
	earlyDropHydration earlyUse = "DropHydration" // the metadata of a hydration are too many
	earlyAnew          earlyUse = "Anew"          // they are removed, and others are made
)

func (got *early) use(want shape) earlyUse {
	if got == nil {
		return earlyNone
	}
	made := got.shape
	made.hydration, made.originBytes = want.hydration, want.originBytes
	switch {
	case errors.Is(got.err, context.DeadlineExceeded):
		return earlyFail
	case got.err != nil || made != want:
		return earlyAnew
	case want.hydration && !got.shape.hydration:
		return earlyAddHydration
	case !want.hydration && got.shape.hydration:
		return earlyDropHydration
	}
	return earlyAsIs
}

// newVolumes returns the logical volumes of a new cache: those that were made early, as
// far as they are what is needed now.
func (a *Attacher) newVolumes(ctx context.Context, s *staging, keep bool) (ssd.Cache, error) {
	want, got := shapeOf(s.entry, keep), s.early
	s.early = nil
	use := got.use(want)
	if err := a.noteOrigin(ctx, got, want, use); err != nil {
		return ssd.Cache{}, err
	}
	switch use {
	case earlyFail:
		return ssd.Cache{}, got.err
	case earlyAsIs:
		return got.cache, nil
	case earlyAddHydration:
		return a.allocateHydration(ctx, want)
	case earlyDropHydration:
		got.cache.Hydration, got.cache.Facts.Hydration = lvm.LV{}, false
		return got.cache, a.LVM.RemoveLVs(ctx, a.Pool.View().VG, layout.HydrationLV(want.id))
	case earlyAnew:
		klog.FromContext(ctx).V(2).Info("Logical volumes are made anew", "volume", want.id, "error", got.err)
		if err := a.ssd.Remove(ctx, want.id); err != nil {
			return ssd.Cache{}, err
		}
	case earlyNone:
	}
	return a.allocate(ctx, want)
}

// noteOrigin corrects the size of the origin on early volumes that are kept: the record
// may have it in other units than the storage server.
func (a *Attacher) noteOrigin(ctx context.Context, got *early, want shape, use earlyUse) error {
	if use == earlyNone || use == earlyFail || use == earlyAnew || got.shape.originBytes == want.originBytes {
		return nil
	}
	old := []string{layout.OriginTag(got.shape.originBytes)}
	return a.LVM.ChangeTags(ctx, a.Pool.View().VG, []string{layout.OriginTag(want.originBytes)}, old, got.cache.Names()...)
}

// allocate makes the cache's logical volumes, evicting the oldest retained caches
// when the pool is full.
func (a *Attacher) allocate(ctx context.Context, w shape) (ssd.Cache, error) {
	unlock, err := a.ssd.Lock(ctx)
	if err != nil {
		return ssd.Cache{}, err
	}
	defer unlock()
	view, tags := a.Pool.View(), w.tags()
	specs := w.specs(view, tags)
	if w.keep {
		var data lvm.LV
		if data, err = a.keepData(ctx, w.id, tags); err == nil {
			err = a.createBeside(ctx, w.id, data, specs)
		}
	} else {
		err = a.createPlaced(ctx, w.id, specs)
	}
	if err != nil {
		return ssd.Cache{}, err
	}
	c, err := a.ssd.Blank(ctx, view.VG, w.id, true)
	if err == nil && a.ssd.Apart(c) {
		err = fmt.Errorf("%w: data on %v, map on %v", ssd.ErrApart, a.ssd.DevicesBelow(c.Data.DevNo(), view), a.ssd.DevicesBelow(c.Meta.DevNo(), view))
	}
	return c, err
}

// allocateHydration adds the metadata of a hydration to new volumes.
func (a *Attacher) allocateHydration(ctx context.Context, w shape) (ssd.Cache, error) {
	unlock, err := a.ssd.Lock(ctx)
	if err != nil {
		return ssd.Cache{}, err
	}
	defer unlock()
	view := a.Pool.View()
	w.keep = true
	if err := a.ssd.Create(ctx, w.specs(view, w.tags())[1:]); err != nil {
		return ssd.Cache{}, err
	}
	return a.ssd.Blank(ctx, view.VG, w.id, false)
}

// specs lists the logical volumes that are to be made.
func (w shape) specs(view pool.View, tags []string) []lvm.CreateSpec {
	// The map on the same SSDs as the data: it counts after a flush of the devices
	// that it is on, and of no others (states.md, Names on the host).
	specs := []lvm.CreateSpec{{VG: view.VG, Name: layout.MetaLV(w.id), SizeBytes: w.metaBytes, Tags: tags, Mirror: view.Mirror, Stripes: view.Stripes}}
	if w.hydration {
		specs = append(specs, lvm.CreateSpec{VG: view.VG, Name: layout.HydrationLV(w.id), SizeBytes: hydrationMetaBytes, Tags: tags, Mirror: view.Mirror})
	}
	if w.keep {
		return specs
	}
	return append(specs, w.dataSpec(view, tags))
}

func (w shape) dataSpec(view pool.View, tags []string) lvm.CreateSpec {
	return lvm.CreateSpec{VG: view.VG, Name: layout.DataLV(w.id), SizeBytes: w.dataBytes, Tags: tags, Mirror: view.Mirror, Stripes: view.Stripes}
}
