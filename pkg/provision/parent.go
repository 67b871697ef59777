package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// createFrom makes a volume that begins as a snapshot or as another volume. The record has the
// state of the filesystem before the volume can be there: what was made is found without its
// parent, which may be gone.
func (s *Service) createFrom(ctx context.Context, storage backend.Backend, obj *v1alpha1.CachedVolume, spec volume.Spec) error {
	id, at, parent := volume.ID(obj.Name), placeOf(obj), spec.Parent
	snaps, err := s.snapshots(at, volume.ErrInvalid)
	if err != nil {
		return err
	}
	if err := checkParent(id, at, parent); err != nil {
		return err
	}
	req := request(obj, spec)
	req.From = volume.CloneCut(id)
	if parent.Snapshot != nil {
		req.From = parent.Snapshot.ID
	}
	order := cloneOrder(obj, spec, req)
	if obj.Status.Filesystem != "" {
		switch err := storage.Create(ctx, id, req); {
		case err == nil:
			return s.leaveParent(ctx, snaps, id, parent)
		case !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, volume.ErrInvalid): // the latter of a size that is rounded below
			return s.refused(order, err)
		}
	}
	c, err := s.parentCut(ctx, snaps, order, spec)
	if err != nil {
		return err
	}
	if err := s.makeOf(ctx, storage, obj, spec, req, c); err != nil {
		return s.refused(order, err)
	}
	return s.leaveParent(ctx, snaps, id, parent)
}

// cloneOrder is the cut that a clone begins as.
func cloneOrder(obj *v1alpha1.CachedVolume, spec volume.Spec, req backend.Request) cutOrder {
	req.UID = "" // the next record's is another
	return cutOrder{name: volume.CloneCut(volume.ID(obj.Name)), of: spec.Parent.Volume, clone: obj, begin: req, limit: spec.LimitBytes}
}

// refused remembers why the storage made no clone of what was cut for it: record and cut go, and
// the next call would have the parent drained again.
func (s *Service) refused(o cutOrder, err error) error {
	if o.of != "" && (errors.Is(err, volume.ErrNoSpace) || errors.Is(err, volume.ErrOutOfRange) || errors.Is(err, volume.ErrInvalid)) {
		s.refusals.put(o, err, s.now())
	}
	return err
}

// makeOf makes a volume of a cut that was accepted.
func (s *Service) makeOf(ctx context.Context, storage backend.Backend, obj *v1alpha1.CachedVolume, spec volume.Spec, req backend.Request, c backend.Cut) (err error) {
	id := volume.ID(obj.Name)
	// Before the storage is asked: the next call asks for what the record says.
	if req.SizeBytes, err = s.growToCut(ctx, obj, spec, c); err != nil {
		return err
	}
	err = records.WriteStatus(ctx, s.client, obj, func(status *v1alpha1.CachedVolumeStatus) {
		status.Filesystem = records.ObjectFilesystem(c.Filesystem)
	})
	if err != nil {
		return err
	}
	err = storage.Create(ctx, id, req)
	if errors.Is(err, volume.ErrNotFound) && spec.Parent.Volume != "" {
		return fmt.Errorf("%w: what clone %s was to be made from is gone, and is cut anew: %w", volume.ErrBusy, id, err)
	}
	return err
}

// growToCut has a record say that its volume is as large as the cut that it begins as, which may
// be larger than was asked: storages round sizes up, and the record of a parent may be behind.
// Errors: ErrOutOfRange.
func (s *Service) growToCut(ctx context.Context, obj *v1alpha1.CachedVolume, spec volume.Spec, c backend.Cut) (int64, error) {
	switch {
	case c.SizeBytes <= spec.CapacityBytes:
		return spec.CapacityBytes, nil
	case spec.LimitBytes != 0 && c.SizeBytes > spec.LimitBytes:
		return 0, fmt.Errorf("%w: at most %d bytes: what volume %s begins as has %d; accepted are as many and more", volume.ErrOutOfRange, spec.LimitBytes, obj.Name, c.SizeBytes)
	}
	return c.SizeBytes, s.patch(ctx, obj, func(obj *v1alpha1.CachedVolume) { obj.Spec.CapacityBytes = &c.SizeBytes })
}

// checkParent refuses a parent that lies elsewhere. Errors: ErrInvalid.
func checkParent(id volume.ID, at place, parent *volume.Parent) error {
	switch h := parent.Snapshot; {
	case h != nil && placeNamed(*h) != at:
		return fmt.Errorf("%w: snapshot %s lies on %s, and volume %s on %s: accepted is a class with %s", volume.ErrInvalid, h, placeNamed(*h), id, at, placeNamed(*h).class())
	case h != nil && h.ID.ForClone():
		return fmt.Errorf("%w: snapshot %s", volume.ErrNotFound, h)
	case parent.Volume == id:
		return fmt.Errorf("%w: volume %s cannot be a clone of itself", volume.ErrInvalid, id)
	}
	return nil
}

// parentCut is the accepted cut that a volume begins as. Errors: ErrNotFound, ErrOutOfRange,
// ErrBusy while it is not ready, and those of cut.
func (s *Service) parentCut(ctx context.Context, snaps backend.Snapshots, o cutOrder, spec volume.Spec) (backend.Cut, error) {
	id := volume.ID(o.clone.Name)
	if h := spec.Parent.Snapshot; h != nil {
		c, err := snaps.Find(ctx, h.ID)
		switch {
		case err != nil:
			return c, fmt.Errorf("find snapshot %s: %w", h, err)
		case !c.Accepted:
			return c, fmt.Errorf("%w: snapshot %s was begun and is not complete", volume.ErrNotFound, h)
		case spec.CapacityBytes < c.SizeBytes:
			return c, fmt.Errorf("%w: %d bytes: snapshot %s has %d; accepted are as many and more", volume.ErrOutOfRange, spec.CapacityBytes, h, c.SizeBytes)
		case !c.Ready:
			return c, fmt.Errorf("%w: snapshot %s is not ready yet", volume.ErrBusy, h)
		}
		return c, nil
	}
	of, err := s.Get(ctx, spec.Parent.Volume)
	switch {
	case err != nil:
		return backend.Cut{}, err
	case placeFor(of.Spec) != placeFor(spec):
		return backend.Cut{}, fmt.Errorf("%w: volume %s lies on %s, and its clone %s on %s: accepted is a class with %s", volume.ErrInvalid, of.ID, placeFor(of.Spec), id, placeFor(spec), placeFor(of.Spec).class())
	case spec.CapacityBytes < of.Spec.CapacityBytes:
		return backend.Cut{}, fmt.Errorf("%w: %d bytes: volume %s has %d; accepted are as many and more", volume.ErrOutOfRange, spec.CapacityBytes, of.ID, of.Spec.CapacityBytes)
	}
	c, _, err := s.cut(ctx, o)
	if err == nil && !c.Ready {
		err = fmt.Errorf("%w: clone %s: volume %s is being copied", volume.ErrBusy, id, of.ID)
	}
	return c, err
}

// leaveParent deletes what a clone was made from, once it is made. Where the clone needs it, it
// goes with the clone.
func (s *Service) leaveParent(ctx context.Context, snaps backend.Snapshots, id volume.ID, parent *volume.Parent) error {
	if parent.Volume == "" {
		return nil
	}
	err := snaps.DeleteCut(ctx, volume.CloneCut(id))
	if errors.Is(err, volume.ErrInUse) {
		logr.FromContextOrDiscard(ctx).V(2).Info("What the clone was made from is kept for it", "volume", id, "reason", err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete what clone %s was made from: %w", id, err)
	}
	return nil
}

// endClone ends the hold for a clone, and deletes what it was made from, before its record goes:
// nobody knows of it after that.
func (s *Service) endClone(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	p, id := obj.Spec.Parent, volume.ID(obj.Name)
	if p == nil || p.VolumeName == "" {
		return nil
	}
	if err := s.endHold(ctx, volume.ID(p.VolumeName), volume.CloneCut(id)); err != nil {
		return err
	}
	return s.dropCloneCut(ctx, id, placeOf(obj))
}

// inheritHotSet has the first cache of a volume begin with what its parent reads most. It is a
// hint, and no error of anything.
func (s *Service) inheritHotSet(ctx context.Context, obj *v1alpha1.CachedVolume, parent *volume.Parent) {
	id, uid := volume.ID(obj.Name), string(obj.UID)
	err := s.copyHotSet(ctx, id, uid, parent)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		logr.FromContextOrDiscard(ctx).Error(err, "Hot set of the parent was not taken over", "volume", id)
	}
}

func (s *Service) copyHotSet(ctx context.Context, id volume.ID, uid string, parent *volume.Parent) error {
	if _, err := s.hotSets.Load(ctx, id, uid); !errors.Is(err, volume.ErrNotFound) {
		return err // it has one
	}
	of := parent.Volume
	if h := parent.Snapshot; h != nil {
		snaps, err := s.snapshots(placeNamed(*h), volume.ErrInvalid)
		if err != nil {
			return err
		}
		c, err := snaps.Find(ctx, h.ID)
		if err != nil {
			return err
		}
		of = c.Volume
	}
	from, err := s.Get(ctx, of)
	if err != nil {
		return err
	}
	set, err := s.hotSets.Load(ctx, of, from.Fence.UID)
	if err != nil {
		return err
	}
	return s.hotSets.Store(ctx, id, uid, set)
}
