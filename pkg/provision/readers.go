package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ReadOnlyMany is the access mode of volumes that many nodes read, in the words of errors.
const ReadOnlyMany = "access mode MULTI_NODE_READER_ONLY (ReadOnlyMany)"

// PublishReader implements volume.Provisioner (states.md, Readers).
func (s *Service) PublishReader(ctx context.Context, id volume.ID, node string, spec *volume.Spec, cred *volume.Credentials) (volume.Publication, error) {
	if spec != nil && spec.IsStatic() {
		return volume.Publication{}, errNotReadByMany(id)
	}
	return s.publish(ctx, id, node, spec, cred, true)
}

// readable returns why many nodes cannot read a volume: nothing but nearflash-target lets several
// in and sees to it that none of them writes, and there has to be something to read. A record that was
// made anew knows nothing of that, and is answered by the generation that the storage server has stored.
func readable(obj *v1alpha1.CachedVolume, stored int64) error {
	switch {
	case records.IsStatic(obj) || obj.Spec.Origin != nil:
		return errNotReadByMany(volume.ID(obj.Name))
	case neverPublished(obj) && stored > 0:
	case obj.Spec.Parent == nil && (neverPublished(obj) || records.Filesystem(obj.Status.Filesystem) != volume.FormatDone):
		return fmt.Errorf("%w: %s of volume %s: nobody has written to it, so that there is nothing to read; use it once with ReadWriteOnce, or make it from a snapshot or a claim (dataSource)", volume.ErrInvalid, ReadOnlyMany, obj.Name)
	}
	return nil
}

func errNotReadByMany(id volume.ID) error {
	return fmt.Errorf("%w: %s of volume %s: accepted are volumes of nearflash-target; a static LUN, or a volume over another CSI driver's, is attached to one node", volume.ErrInvalid, ReadOnlyMany, id)
}

// errNoReaders tells a record that cannot name readers.
func errNoReaders(id volume.ID) error {
	return fmt.Errorf("%w: %s of volume %s: the definition of CachedVolumes is of an earlier version, which has no status.readers; apply the CRDs of this version's chart", volume.ErrInvalid, ReadOnlyMany, id)
}

// withReader are the readers once node is one of them. Those of an ownership that is over are not.
func withReader(obj *v1alpha1.CachedVolume, node string, c claim) []string {
	var readers []string
	if !c.NewOwner {
		readers = slices.Clone(obj.Status.Readers)
	}
	if slices.Contains(readers, node) {
		return readers
	}
	return append(readers, node)
}

// othersOf are the nodes whose initiator name must be another one than that of node, which is to be
// admitted: the owner before, and who reads beside it. Of readers it is enough to look when the
// server has the name already.
func othersOf(access backend.Access, v volume.Volume, node string, grant backend.Grant) []string {
	var others []string
	if v.Fence.Node != volume.Readers && v.Fence.Node != "" {
		others = append(others, v.Fence.Node)
	}
	known := slices.ContainsFunc(access.Exports, func(e backend.Export) bool { return strings.EqualFold(e.Initiator, grant.Initiator) })
	if grant.ReadOnly && known && !slices.Contains(v.Readers, node) {
		others = append(others, v.Readers...)
	}
	return slices.DeleteFunc(others, func(other string) bool { return other == node })
}

// unpublishReader ends the entitlement of one reader, or of all if node is "" or volume.Readers. It
// has nothing to flush: the node may be lost. With the last one the volume is released.
func (s *Service) unpublishReader(ctx context.Context, obj *v1alpha1.CachedVolume, node string) error {
	id, uid, left := volume.ID(obj.Name), obj.UID, true
	generation := ptr.Deref(obj.Status.Generation, 0)
	err := records.UpdateStatus(ctx, s.client, id, func(now *v1alpha1.CachedVolume) error {
		if left = now.UID == uid && now.Status.OwnerNode == volume.Readers && ptr.Deref(now.Status.Generation, 0) == generation; !left {
			return nil
		}
		now.Status.Readers = slices.DeleteFunc(now.Status.Readers, func(n string) bool {
			return node == "" || node == volume.Readers || n == node
		})
		if len(now.Status.Readers) == 0 {
			now.Status.Readers, now.Status.Publication = nil, v1alpha1.PublicationReleased
		}
		obj = now
		return nil
	})
	switch {
	case err != nil:
		return err
	case left && obj.Status.Publication != v1alpha1.PublicationPublished:
		return s.settle(ctx, id, placeOf(obj))
	}
	return s.shutOutOther(ctx, id, placeOf(obj), node)
}
