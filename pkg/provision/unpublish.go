package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ReasonUnflushedWrites is the reason of the Warning event that a volume was
// released by a node that may hold unflushed writes of it.
const ReasonUnflushedWrites = "UnflushedWrites"

const actionUnpublish = "Unpublish"

// Unpublish implements volume.Provisioner. An empty node means the owner,
// whichever that is.
func (s *Service) Unpublish(ctx context.Context, id volume.ID, node string) error {
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) {
		// Nobody knows whether the node has flushed, and only an admission lets it
		// (states.md, I9). It ends with the volume, or when the record was made anew.
		return nil
	}
	if err != nil {
		return err
	}
	if obj.Status.OwnerNode == volume.Readers {
		return s.unpublishReader(ctx, obj, node)
	}
	if node != "" && node != obj.Status.OwnerNode {
		if obj.Spec.Static != nil {
			return nil
		}
		return s.shutOutOther(ctx, id, placeOf(obj), node)
	}
	if obj.Status.OwnerNode == "" {
		return nil
	}
	if err := s.release(ctx, obj); err != nil {
		return err
	}
	if obj.Spec.Static != nil || obj.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty {
		return nil // without asking a storage server that may be as lost as the node
	}
	return s.settle(ctx, id, placeOf(obj))
}

// release ends the owner's entitlement in the record. It does not judge the record: one out
// of a backup may say that the owner was clean, and Settle asks the storage server
// (states.md, A record that is older than the truth).
func (s *Service) release(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	entitled := obj.Status.Publication != v1alpha1.PublicationReleased
	dirty := obj.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty
	err := records.WriteStatus(ctx, s.client, obj, func(status *v1alpha1.CachedVolumeStatus) {
		status.Publication = v1alpha1.PublicationReleased
	})
	if err != nil {
		return err
	}
	if entitled && dirty {
		records.Emit(ctx, s.client, s.events, obj, records.Event{
			Warning: true, Reason: ReasonUnflushedWrites, Action: actionUnpublish,
			Note: fmt.Sprintf("Node %s left the volume with writes that may not have reached the storage server. It flushes them when it is back; until then no other node can use the volume.", obj.Status.OwnerNode),
		})
	}
	return nil
}

// Settle ends all access to a volume that nobody is entitled to and that nobody has
// to flush. Unpublish does it as soon as it can; later, it is for a node that was
// released with unflushed writes and has flushed them since. It is for every volume
// safe to call. Errors: ErrUnavailable, ErrBackend, ErrFenced.
func (s *Service) Settle(ctx context.Context, id volume.ID) error {
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) || err == nil && obj.Spec.Static != nil {
		return nil
	}
	if err != nil {
		return err
	}
	at := placeOf(obj)
	return s.background(ctx, at, func(ctx context.Context) error { return s.settle(ctx, id, at) })
}

func (s *Service) settle(ctx context.Context, id volume.ID, at place) error {
	if s.unserved(at) {
		return nil
	}
	// Mostly nobody is admitted, and then the record need not be asked.
	access, err := s.inspect(ctx, id, at)
	if errors.Is(err, volume.ErrNotFound) || err == nil && len(access.Exports) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	v, err := records.Volume(obj)
	if err != nil {
		return err
	}
	if v.Published || v.PossiblyDirty || v.Spec.Static != nil {
		return nil
	}
	if restored, err := s.restoreOwner(ctx, obj, v, access, access.old(obj)); restored || err != nil {
		return err // somebody has to flush after all
	}
	if access.old(obj) {
		err := records.WriteStatus(ctx, s.client, obj, func(status *v1alpha1.CachedVolumeStatus) {
			status.WarmSource = v1alpha1.WarmSource{} // may have been withdrawn since
		})
		if err != nil {
			return err
		}
	}
	return s.revoke(ctx, v, access, access.old(obj), func(backend.Export) bool { return false })
}

// shutOutOther ends the access of a node that is not the owner.
func (s *Service) shutOutOther(ctx context.Context, id volume.ID, at place, node string) error {
	initiator, err := s.hostName(ctx, at, node)
	if err != nil || initiator == "" || s.unserved(at) {
		return err
	}
	storage, err := s.storage(at, volume.ErrUnavailable)
	if err != nil {
		return err
	}
	access, err := s.inspect(ctx, id, at)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	i := slices.IndexFunc(access.Exports, func(e backend.Export) bool { return strings.EqualFold(e.Initiator, initiator) })
	if i < 0 {
		return nil
	}
	obj, err := records.Load(ctx, s.client, id)
	if err != nil {
		return err
	}
	v, err := records.Volume(obj)
	if err != nil {
		return err
	}
	if restored, err := s.restoreOwner(ctx, obj, v, access, false); restored || err != nil {
		return err // it may have to flush
	}
	if obj.Status.OwnerNode == volume.Readers && slices.Contains(obj.Status.Readers, node) {
		return nil // it reads again
	}
	owner, err := s.hostName(ctx, at, obj.Status.OwnerNode)
	if err != nil || strings.EqualFold(owner, initiator) { // also if it has become the owner meanwhile
		return err
	}
	if err := storage.Unexport(access.of(ctx), id, access.Exports[i]); err != nil {
		return fmt.Errorf("end access of node %s to volume %s: %w", node, id, err)
	}
	return nil
}

// Retire forgets a volume whose PersistentVolume is gone: a static one that
// Retirable allows, or one that is being deleted and that the storage server does
// not have any more, because whoever deleted it was interrupted. It does nothing
// for any other. Errors: ErrBusy, ErrInUse, ErrUnavailable, ErrBackend.
func (s *Service) Retire(ctx context.Context, id volume.ID) error {
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	at := placeOf(obj)
	switch {
	case Retirable(obj) && at.origin: // the claim goes, what it has stays
		return s.background(ctx, at, func(ctx context.Context) error {
			return s.deleteJudged(ctx, id, at, func(now *v1alpha1.CachedVolume) bool { return now.UID == obj.UID && Retirable(now) })
		})
	case Retirable(obj):
		return s.drop(ctx, obj)
	case records.IsStatic(obj) || obj.DeletionTimestamp == nil || s.unserved(at) ||
		obj.Status.Publication == v1alpha1.PublicationPublished:
		return nil
	}
	return s.background(ctx, at, func(ctx context.Context) error { return s.retireDeleted(ctx, obj, at) })
}

// retireDeleted forgets a record that is being deleted, if its volume is gone.
func (s *Service) retireDeleted(ctx context.Context, obj *v1alpha1.CachedVolume, at place) error {
	id := volume.ID(obj.Name)
	storage, err := s.storage(at, volume.ErrUnavailable)
	if err != nil {
		return err
	}
	switch _, err = storage.Access(ctx, id); {
	case errors.Is(err, volume.ErrNotFound):
		return s.forget(ctx, obj)
	case err != nil:
		return fmt.Errorf("access to volume %s: %w", id, err)
	}
	return nil
}

// Retirable reports whether nothing but its PersistentVolume needs a record: a
// static volume, not published, and clean.
func Retirable(obj *v1alpha1.CachedVolume) bool {
	return records.IsStatic(obj) &&
		obj.Status.Publication != v1alpha1.PublicationPublished &&
		obj.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty
}
