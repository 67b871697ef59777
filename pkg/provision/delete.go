package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Delete implements volume.Provisioner. Unflushed writes on a node do not stop
// it: nobody wants the data any more.
func (s *Service) Delete(ctx context.Context, id volume.ID) error {
	s.refusals.forget(volume.CloneCut(id))
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) {
		return s.deleteUnrecorded(ctx, id)
	}
	if err != nil {
		return err
	}
	if obj.Spec.Static == nil {
		return s.deleteServed(ctx, id, placeOf(obj))
	}
	if err := unused(obj); err != nil {
		return err
	}
	return s.drop(ctx, obj)
}

// deleteServed removes a volume of the storage server and its record. It ends only the
// admissions that there were before the record was read; with another one, which a
// controller has granted meanwhile, the server refuses to delete.
func (s *Service) deleteServed(ctx context.Context, id volume.ID, at place) error {
	return s.deleteJudged(ctx, id, at, nil)
}

// deleteJudged is deleteServed for a record that is still what it was judged to be, if that is said: of
// a volume whose data stay, so that an owner with writes that nobody else has is in the way.
func (s *Service) deleteJudged(ctx context.Context, id volume.ID, at place, still func(*v1alpha1.CachedVolume) bool) error {
	storage, err := s.storage(at, volume.ErrUnavailable)
	if err != nil {
		return err
	}
	access, err := s.inspect(ctx, id, at)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) {
		return s.deleteUnrecordedOn(ctx, id, at)
	}
	if err != nil {
		return err
	}
	if placeOf(obj) != at {
		return fmt.Errorf("%w: the record of volume %s was made anew meanwhile", volume.ErrBusy, id)
	}
	// By the record as it was read: knowOwner may say of it that nobody has the volume.
	if err := unused(obj); err != nil {
		return err
	}
	if err := s.knowOwner(ctx, obj, access); err != nil && (still != nil || !errors.Is(err, volume.ErrFenced)) {
		return err
	}
	// By what knowOwner has made of it: an owner of whom the record did not know may hold writes.
	if still != nil && !still(obj) {
		return fmt.Errorf("%w: volume %s is in use again, or may have unflushed writes", volume.ErrBusy, id)
	}
	if err := s.markDeleting(ctx, obj); err != nil {
		return err
	}
	for _, e := range access.Exports {
		if err := storage.Unexport(ctx, id, e); err != nil {
			return fmt.Errorf("end access to volume %s: %w", id, err)
		}
	}
	if err := storage.Delete(ctx, id); err != nil {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	return s.forget(ctx, obj)
}

// unused returns why a volume must not be deleted, if it is published.
func unused(obj *v1alpha1.CachedVolume) error {
	if obj.Status.Publication != v1alpha1.PublicationPublished {
		return nil
	}
	if obj.Status.OwnerNode == volume.Readers {
		return fmt.Errorf("%w: volume %s is read by %s", volume.ErrInUse, obj.Name, volume.NamesOfReaders(obj.Status.Readers))
	}
	return fmt.Errorf("%w: volume %s is published to node %s", volume.ErrInUse, obj.Name, obj.Status.OwnerNode)
}

// knowOwner brings the record up to the owner that the storage server admits, who is to be
// told of the deletion. Errors: ErrInUse if it is logged in: a pod may run there of which the
// record does not know; ErrFenced if nobody knows which node it is.
func (s *Service) knowOwner(ctx context.Context, obj *v1alpha1.CachedVolume, access sight) error {
	v, err := records.Volume(obj)
	if err != nil {
		return err
	}
	seen := v
	seen.PossiblyDirty = false // a mark does not say that nobody has come back since
	if e, unknown := unknownExport(seen, access.Access, access.old(obj)); unknown && e.LoggedIn {
		return fmt.Errorf("%w: initiator %s uses volume %s under generation %d, but the record shows %d, released (was it restored from a backup?)",
			volume.ErrInUse, e.Initiator, v.ID, e.Generation, v.Fence.Generation)
	}
	_, err = s.restoreOwner(ctx, obj, v, access, false)
	return err
}

// deleteUnrecorded removes what a storage may still have of a volume without a record. All are
// asked before anything ends (states.md, Several storage servers).
func (s *Service) deleteUnrecorded(ctx context.Context, id volume.ID) error {
	found, err := s.locate(ctx, id, s.configured())
	if err == nil {
		err = several(id, found)
	}
	if err != nil {
		return err
	}
	for _, at := range s.configured() {
		if err := s.deleteUnrecordedOn(ctx, id, at); err != nil {
			return err
		}
	}
	return nil
}

// deleteUnrecordedOn is deleteUnrecorded for one place. Whoever is admitted, and not logged in,
// was so under a record that was lost: what that node may not have flushed is not wanted any more
// either. Of one that is logged in no access is ended, and the server refuses.
func (s *Service) deleteUnrecordedOn(ctx context.Context, id volume.ID, at place) error {
	storage, err := s.storage(at, volume.ErrUnavailable)
	if err != nil {
		return err
	}
	access, err := s.inspect(ctx, id, at)
	if errors.Is(err, volume.ErrNotFound) {
		return s.dropCloneCut(ctx, id, at)
	}
	if err != nil {
		return err
	}
	for _, e := range access.Exports {
		if e.LoggedIn {
			continue
		}
		if err := storage.Unexport(ctx, id, e); err != nil {
			return fmt.Errorf("end access of %s to volume %s: %w", e.Initiator, id, err)
		}
	}
	if err := storage.Delete(ctx, id); err != nil && !errors.Is(err, volume.ErrNotFound) {
		return fmt.Errorf("delete volume %s, which has no record: %w", id, err)
	}
	return s.dropCloneCut(ctx, id, at)
}

// dropCloneCut removes what a clone without a record may have been made from. Of one that is not
// found a deletion may have been killed: it is ended.
func (s *Service) dropCloneCut(ctx context.Context, clone volume.ID, at place) error {
	snaps, err := s.snapshots(at, volume.ErrInvalid)
	if err != nil {
		return nil // there are none
	}
	switch _, err := snaps.Find(ctx, volume.CloneCut(clone)); {
	case errors.Is(err, volume.ErrInvalid): // a server without snapshots
		return nil
	case err != nil && !errors.Is(err, volume.ErrNotFound):
		return fmt.Errorf("find what clone %s was made from: %w", clone, err)
	}
	if err := snaps.DeleteCut(ctx, volume.CloneCut(clone)); err != nil {
		return fmt.Errorf("delete what clone %s was made from: %w", clone, err)
	}
	return nil
}

// drop removes a record that no volume on the server belongs to.
func (s *Service) drop(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	if err := s.markDeleting(ctx, obj); err != nil {
		return err
	}
	return s.forget(ctx, obj)
}

// markDeleting makes the intent to delete durable, on the version that was read:
// an owner that appeared since wins, and the caller gets ErrBusy.
func (s *Service) markDeleting(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	if obj.DeletionTimestamp != nil {
		return nil
	}
	err := s.client.Delete(ctx, obj, client.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return records.Error("delete CachedVolume "+obj.Name, err)
}

// forget tells the nodes that have something of a volume, and removes the finalizer, and
// with it the record. A record that is gone,
// or that another volume of the name has by now, is left alone. One that got an
// owner meanwhile is not forgotten: another controller may have published a
// volume whose record waits for its finalizer.
func (s *Service) forget(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	s.holds.forget(volume.ID(obj.Name), "")
	if err := s.endClone(ctx, obj); err != nil {
		return err
	}
	if err := s.sayDeleted(ctx, obj); err != nil {
		return err
	}
	err := records.UpdateObject(ctx, s.client, volume.ID(obj.Name), func(now *v1alpha1.CachedVolume) error {
		if now.UID == obj.UID && now.Status.Publication == v1alpha1.PublicationPublished {
			return fmt.Errorf("%w: volume %s was published to node %s meanwhile", volume.ErrInUse, obj.Name, now.Status.OwnerNode)
		}
		if now.UID == obj.UID {
			now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == v1alpha1.VolumeFinalizer })
		}
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}
