package provision

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Create implements volume.Provisioner: the record first, as the intent, then
// the volume.
func (s *Service) Create(ctx context.Context, id volume.ID, spec volume.Spec) (volume.Volume, error) {
	if spec.Static != nil {
		return volume.Volume{}, fmt.Errorf("%w: volume %s has a static source, which cannot be created", volume.ErrInvalid, id)
	}
	if spec.IsStatic() {
		return volume.Volume{}, fmt.Errorf("%w: volume %s has PersistentVolume %s as its origin, which cannot be created", volume.ErrInvalid, id, spec.Origin.PV)
	}
	if _, err := s.storage(placeFor(spec), volume.ErrInvalid); err != nil {
		return volume.Volume{}, s.notServed(ctx, id, spec, err)
	}
	if err := s.checkFence(ctx, id, spec); err != nil {
		return volume.Volume{}, err
	}
	obj, made, err := s.ensureRecord(ctx, id, spec, volume.ErrExists)
	if err != nil {
		return volume.Volume{}, err
	}
	if obj.DeletionTimestamp != nil {
		return volume.Volume{}, fmt.Errorf("%w: volume %s is being deleted", volume.ErrBusy, id)
	}
	storage, err := s.storage(placeOf(obj), volume.ErrUnavailable)
	if err != nil {
		return volume.Volume{}, err
	}
	if spec.Parent == nil {
		err = storage.Create(ctx, id, request(obj, spec))
	} else {
		err = s.createFrom(ctx, storage, obj, spec)
	}
	if err != nil {
		err = fmt.Errorf("create volume %s: %w", id, err)
		if intentIsVoid(obj, made || s.unmade(ctx, storage, obj, err), err) {
			// The caller takes these errors as final and does not ask for a deletion.
			err = errors.Join(err, s.drop(ctx, obj))
		}
		return volume.Volume{}, err
	}
	if spec.Parent != nil {
		s.inheritHotSet(ctx, obj, spec.Parent)
	}
	if spec.Origin == nil {
		return records.Volume(obj)
	}
	return s.asMade(ctx, storage, obj)
}

// notServed is the error of a volume that is to be made where no storage is configured: what no
// record tells of is refused. Of what an earlier call may have made, that would be taken as final,
// and nobody would ask for its deletion.
func (s *Service) notServed(ctx context.Context, id volume.ID, spec volume.Spec, refused error) error {
	obj, err := records.Load(ctx, s.client, id)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return refused
	case err != nil:
		return err
	}
	if err := sameSpec(obj, spec, volume.ErrExists); err != nil {
		return err
	}
	_, err = s.storage(placeOf(obj), volume.ErrUnavailable)
	return err
}

// request is what a storage is asked for.
func request(obj *v1alpha1.CachedVolume, spec volume.Spec) backend.Request {
	return backend.Request{
		SizeBytes: spec.CapacityBytes, Provisioning: spec.Provisioning,
		Origin: ptr.Deref(spec.Origin, volume.Origin{}), Node: spec.Node, UID: string(obj.UID),
	}
}

// asMade returns a volume of another driver as it was made: that driver may have made it
// larger than was asked.
func (s *Service) asMade(ctx context.Context, storage backend.Backend, obj *v1alpha1.CachedVolume) (volume.Volume, error) {
	id := volume.ID(obj.Name)
	access, err := storage.Access(ctx, id)
	if err != nil {
		return volume.Volume{}, fmt.Errorf("access to volume %s: %w", id, err)
	}
	if access.SizeBytes > ptr.Deref(obj.Spec.CapacityBytes, 0) {
		if err := s.recordSize(ctx, id, access.SizeBytes); err != nil {
			return volume.Volume{}, err
		}
	}
	v, err := s.Get(ctx, id)
	v.Topologies = access.Topologies
	return v, err
}

// intentIsVoid reports whether the server has certainly made no volume for this
// record. "No space" is answered only when the volume does not exist; the other
// refusals say so only if no earlier call may have made it.
func intentIsVoid(obj *v1alpha1.CachedVolume, unmade bool, err error) bool {
	if ptr.Deref(obj.Status.Generation, 0) != 0 {
		return false
	}
	// A parent that is not there, or too large, is found out after a volume that is.
	return errors.Is(err, volume.ErrNoSpace) ||
		obj.Spec.Parent != nil && (errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrOutOfRange)) ||
		unmade && (errors.Is(err, volume.ErrInvalid) || errors.Is(err, volume.ErrExists) || errors.Is(err, volume.ErrFenced))
}

// unmade reports whether there is certainly no volume that begins as another one, whose record
// an earlier call has made.
func (s *Service) unmade(ctx context.Context, storage backend.Backend, obj *v1alpha1.CachedVolume, err error) bool {
	if obj.Spec.Parent == nil || obj.Status.Filesystem == "" {
		return obj.Spec.Parent != nil
	}
	if !errors.Is(err, volume.ErrInvalid) {
		return false
	}
	_, err = storage.Access(ctx, volume.ID(obj.Name))
	return errors.Is(err, volume.ErrNotFound)
}

// ensureRecord makes the record of a volume, or returns the existing one if it
// asks for the same; otherwise the error wraps kind and names the field.
func (s *Service) ensureRecord(ctx context.Context, id volume.ID, spec volume.Spec, kind error) (_ *v1alpha1.CachedVolume, made bool, err error) {
	obj := records.NewObject(id, spec)
	err = records.Error("create CachedVolume "+string(id), s.client.Create(ctx, obj))
	if err == nil {
		return obj, true, nil
	}
	if !errors.Is(err, volume.ErrExists) {
		return nil, false, err
	}
	obj, err = records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil, false, fmt.Errorf("%w: volume %s was deleted meanwhile", volume.ErrBusy, id)
	}
	if err != nil {
		return nil, false, err
	}
	return obj, false, sameSpec(obj, spec, kind)
}

// sameSpec compares a record with what is asked for. What Modify may have changed
// since a static volume was first published is the record's to say: the attributes
// of a PersistentVolume cannot follow.
func sameSpec(obj *v1alpha1.CachedVolume, want volume.Spec, kind error) error {
	have, err := records.Spec(obj)
	if err != nil {
		return err
	}
	if want.IsStatic() {
		want.Mode, want.Unsafe, want.Cache, want.MaxCacheBytes, want.AcceptNodeLoss = have.Mode, have.Unsafe, have.Cache, have.MaxCacheBytes, have.AcceptNodeLoss
		want.Mirror = have.Mirror
		want.DirtyLimit, want.WarmStart = have.DirtyLimit, have.WarmStart
	}
	if want.IsStatic() && want.Origin != nil {
		want.CapacityBytes = have.CapacityBytes // it may have been expanded
		origin := *want.Origin
		origin.AcceptTwoWriters = have.Origin != nil && have.Origin.AcceptTwoWriters
		want.Origin = &origin
	}
	if field := records.Difference(have, want); field != "" {
		return fmt.Errorf("%w: volume %s was made with another %s", kind, obj.Name, field)
	}
	return nil
}
