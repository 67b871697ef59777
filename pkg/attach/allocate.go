package attach

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cacheSpec is what decides the logical volumes of a new cache.
type cacheSpec struct {
	id                   volume.ID
	fence                volume.Fence
	activation           volume.Activation
	mode                 volume.CacheMode
	metaBytes, dataBytes int64
	// originBytes is the size of the origin, which is only noted.
	originBytes int64
	// hydrationBytes is the room for the metadata that a hydration has of its own, 0 for a
	// cache that begins without.
	hydrationBytes int64
	// keep tells that the data volume is there, with what was prewarmed.
	keep bool
	// mirror asks for two copies, as the record does.
	mirror bool
	// checked asks for checksums of the data.
	checked bool
}

// cacheSpecOf is the spec of the cache that an entry speaks of, in two copies if the record asks for
// them.
func cacheSpecOf(e *state.Entry, mirror, keep bool) cacheSpec {
	return cacheSpec{mirror: mirror, id: e.ID, fence: e.Fence, activation: e.Activation(), mode: e.Mode, metaBytes: e.MetaBytes, dataBytes: e.DataBytes, originBytes: e.OriginBytes, hydrationBytes: hydrationBytes(e, e.DataBytes, e.ChunkSectors), keep: keep, checked: e.Checked}
}

// hydrationBytes is the room for the metadata of an entry's hydration in a cache of that
// geometry.
func hydrationBytes(e *state.Entry, dataBytes int64, chunkSectors uint64) int64 {
	switch {
	case e.Hydration == nil:
		return 0
	case e.Streams():
		return stack.LevelMetaBytes(e.Hydration.Stream, uint64(dataBytes)/sectorSize/chunkSectors)
	}
	return hydrationMetaBytes
}

func (w cacheSpec) tags() []string {
	tags := append(layout.Tags(w.fence, w.mode), layout.ActivationTags(w.activation)...)
	if w.originBytes > 0 {
		tags = append(tags, layout.OriginTag(w.originBytes))
	}
	return tags
}

// preallocated are logical volumes that were made before it was certain what is needed.
type preallocated struct {
	cacheSpec cacheSpec
	cache     ssd.Cache
	err       error
}

// beginAllocate makes the volumes of a new cache from what the record says, while the
// origin and the peer are asked: that is mostly waiting. The returned function waits
// for the result, nil if there is none. The journal already says Staging, so that
// whoever finds the volumes wipes them.
func (a *Attacher) beginAllocate(ctx context.Context, s *staging) (wait func() *preallocated) {
	e, view := s.entry, a.Pool.View().For(s.rec.Spec.Mirror)
	if s.plan.Cache != planCreate || e.Prewarm != nil || s.rec.Spec.CapacityBytes == 0 || mayBeCoarse(view) {
		return func() *preallocated { return nil }
	}
	g, err := planGeometry(s.rec.Spec, s.rec.Spec.CapacityBytes, allocationUnit(view))
	if err != nil {
		return func() *preallocated { return nil } // the same error comes again
	}
	// The entry belongs to the hydration meanwhile.
	out := &preallocated{cacheSpec: cacheSpec{mirror: s.rec.Spec.Mirror, id: e.ID, fence: e.Fence, activation: e.Activation(), mode: e.Mode, metaBytes: g.metaBytes, dataBytes: g.dataBytes, originBytes: s.rec.Spec.CapacityBytes, hydrationBytes: hydrationBytes(e, g.dataBytes, g.chunkSectors), checked: e.Checked}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
		defer cancel()
		out.cache, out.err = a.allocate(cctx, out.cacheSpec)
	}()
	return func() *preallocated {
		<-done
		return out
	}
}

// preallocUse is what preallocated volumes are good for.
type preallocUse string

const (
	preallocNone          preallocUse = "None"          // there are none
	preallocFail          preallocUse = "Fail"          // the SSD did not answer in time: it is not asked twice
	preallocAsIs          preallocUse = "AsIs"          // they are what is needed
	preallocAddHydration  preallocUse = "AddHydration"  // the metadata of a hydration are missing
	preallocDropHydration preallocUse = "DropHydration" // the metadata of a hydration are too many
	preallocAnew          preallocUse = "Anew"          // they are removed, and others are made
)

func (got *preallocated) use(want cacheSpec) preallocUse {
	if got == nil {
		return preallocNone
	}
	made := got.cacheSpec
	if made.hydrationBytes == 0 || want.hydrationBytes == 0 {
		made.hydrationBytes = want.hydrationBytes
	}
	made.originBytes = want.originBytes
	switch {
	case errors.Is(got.err, context.DeadlineExceeded):
		return preallocFail
	case got.err != nil || made != want:
		return preallocAnew
	case want.hydrationBytes > 0 && got.cacheSpec.hydrationBytes == 0:
		return preallocAddHydration
	case want.hydrationBytes == 0 && got.cacheSpec.hydrationBytes > 0:
		return preallocDropHydration
	}
	return preallocAsIs
}

// newVolumes returns the logical volumes of a new cache: those that were made early, as
// far as they are what is needed now.
func (a *Attacher) newVolumes(ctx context.Context, s *staging, keep bool) (ssd.Cache, error) {
	want, got := cacheSpecOf(s.entry, s.rec.Spec.Mirror, keep), s.preallocated
	s.preallocated = nil
	use := got.use(want)
	if err := a.recordOrigin(ctx, got, want, use); err != nil {
		return ssd.Cache{}, err
	}
	switch use {
	case preallocFail:
		return ssd.Cache{}, got.err
	case preallocAsIs:
		return got.cache, nil
	case preallocAddHydration:
		return a.allocateHydration(ctx, want)
	case preallocDropHydration:
		got.cache.Hydration, got.cache.Facts.Hydration = lvm.LV{}, false
		return got.cache, a.ssd.RemoveHydration(ctx, want.id)
	case preallocAnew:
		klog.FromContext(ctx).V(2).Info("Logical volumes are made anew", "volume", want.id, "error", got.err)
		if err := a.ssd.Remove(ctx, want.id); err != nil {
			return ssd.Cache{}, err
		}
	case preallocNone:
	}
	return a.allocate(ctx, want)
}

// recordOrigin corrects the size of the origin on preallocated volumes that are kept: the record
// may have it in other units than the storage server.
func (a *Attacher) recordOrigin(ctx context.Context, got *preallocated, want cacheSpec, use preallocUse) error {
	if use == preallocNone || use == preallocFail || use == preallocAnew || got.cacheSpec.originBytes == want.originBytes {
		return nil
	}
	return a.ssd.TagOrigin(ctx, got.cacheSpec.originBytes, want.originBytes, got.cache.Names()...)
}

// allocate makes the cache's logical volumes, evicting the oldest retained caches
// when the pool is full, or the namespace's share of it. Errors: lvm.ErrNoSpace, errShare.
func (a *Attacher) allocate(ctx context.Context, w cacheSpec) (ssd.Cache, error) {
	unlock, err := a.ssd.Lock(ctx)
	if err != nil {
		return ssd.Cache{}, err
	}
	defer unlock()
	view, tags := a.Pool.View().For(w.mirror), w.tags()
	if w.mirror && !view.Mirror {
		return ssd.Cache{}, fmt.Errorf("%w: two copies need two SSDs", lvm.ErrNoSpace) // one has gone since it was decided
	}
	specs := w.specs(view, tags)
	if w.keep {
		var data lvm.LV
		if data, err = a.keepData(ctx, w.id, tags); err == nil {
			err = a.createBeside(ctx, w.id, data, specs)
		}
	} else {
		err = a.createPlaced(ctx, w.id, view, specs)
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
func (a *Attacher) allocateHydration(ctx context.Context, w cacheSpec) (ssd.Cache, error) {
	unlock, err := a.ssd.Lock(ctx)
	if err != nil {
		return ssd.Cache{}, err
	}
	defer unlock()
	view := a.Pool.View().For(w.mirror)
	w.keep = true
	specs := w.specs(view, w.tags())[1:]
	if err := a.keepShare(ctx, w.id, view.Copies, sizesOf(specs)); err != nil {
		return ssd.Cache{}, err
	}
	if err := a.ssd.Create(ctx, specs); err != nil {
		return ssd.Cache{}, err
	}
	return a.ssd.Blank(ctx, view.VG, w.id, false)
}

// specs lists the logical volumes that are to be made.
func (w cacheSpec) specs(view pool.View, tags []string) []lvm.CreateSpec {
	// The map on the same SSDs as the data: it counts after a flush of the devices
	// that it is on, and of no others (states.md, Names on the host).
	specs := []lvm.CreateSpec{{VG: view.VG, Name: layout.MetaLV(w.id), SizeBytes: w.metaBytes, Tags: tags, Mirror: view.Mirror, Stripes: view.Stripes}}
	if w.checked {
		specs[0].Flushes = layout.DataLV(w.id)
	}
	if w.hydrationBytes > 0 {
		specs = append(specs, lvm.CreateSpec{VG: view.VG, Name: layout.HydrationLV(w.id), SizeBytes: w.hydrationBytes, Tags: tags, Mirror: view.Mirror})
	}
	if w.keep {
		return specs
	}
	return append(specs, w.dataSpec(view, tags))
}

func (w cacheSpec) dataSpec(view pool.View, tags []string) lvm.CreateSpec {
	spec := lvm.CreateSpec{VG: view.VG, Name: layout.DataLV(w.id), SizeBytes: w.dataBytes, Tags: tags, Mirror: view.Mirror, Stripes: view.Stripes}
	if w.checked {
		spec.Checked, spec.SizeBytes = w.dataBytes, integrity.RawBytes(w.dataBytes)
	}
	return spec
}
