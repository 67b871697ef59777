package csi

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Delete implements backend.Backend. It succeeds once the claim is gone and the
// PersistentVolume, if it was made for the claim, is to be deleted: that is the other driver's
// part, and what it cannot delete stays as a PersistentVolume in phase Failed, as with any
// claim. A PersistentVolume that was there before is left, on Retain.
func (b *Backend) Delete(ctx context.Context, id volume.ID) error {
	ctx, cancel := b.wait(ctx)
	defer cancel()
	f, err := b.look(ctx, id)
	if err != nil {
		return err
	}
	if exports := f.exports(); len(exports) > 0 {
		return fmt.Errorf("%w: node %s is admitted to volume %s, or its attachment is not gone yet", volume.ErrInUse, exports[0].Initiator, id)
	}
	if f.claim == nil {
		return nil
	}
	if err := b.unused(ctx, id, f.claim.Spec.VolumeName); err != nil {
		return err
	}
	// On the version that was judged: whoever is admitted since wins, and nobody is after it.
	if err := b.askDeletion(ctx, f.claim); err != nil {
		return err
	}
	return b.finishDelete(ctx, id)
}

// askDeletion writes on a claim that the data are not wanted any more.
func (b *Backend) askDeletion(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if _, asked := claim.Annotations[annotationDeleted]; asked {
		return nil
	}
	return b.writeClaim(ctx, claim, func(c *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationDeleted, "true")
	})
}

// discard deletes a claim that never became a volume.
func (b *Backend) discard(ctx context.Context, id volume.ID, claim *corev1.PersistentVolumeClaim) error {
	if err := b.askDeletion(ctx, claim); err != nil {
		return err
	}
	return b.finishDelete(ctx, id)
}

// deleteStep is the next step of a deletion that was asked for.
type deleteStep int

const (
	deleteDone deleteStep = iota
	deleteRelease
	deleteClaim
	deleteFinalizer
	deleteWait
)

// decideDelete returns the next step. A claim that does not say that its deletion was asked
// for is another one by now.
func decideDelete(f facts) deleteStep {
	if f.claim == nil {
		return deleteDone
	}
	_, asked := f.claim.Annotations[annotationDeleted]
	switch {
	case !asked:
		return deleteDone
	case made(f) && f.pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		return deleteRelease
	case f.claim.DeletionTimestamp == nil:
		return deleteClaim
	case slices.Contains(f.claim.Finalizers, Finalizer):
		return deleteFinalizer
	}
	return deleteWait
}

// made reports whether a claim has a PersistentVolume that was made for it, which goes with
// it. What was there before, or belongs to another claim, is nobody's to delete here.
func made(f facts) bool {
	if f.pv == nil || f.claim.Annotations[annotationStatic] != "" || f.pv.Annotations[annotationProvisionedBy] == "" || found(f.pv) {
		return false
	}
	return f.pv.Spec.ClaimRef != nil && f.pv.Spec.ClaimRef.UID == f.claim.UID
}

// found reports whether Kubernetes gave a claim a PersistentVolume that was there: any of the class
// that nobody has, such as one on Retain whose claimRef an administrator has taken away. It may have
// been provisioned for somebody else, with data of theirs. A provisioner binds what it makes itself.
func found(pv *corev1.PersistentVolume) bool { return pv.Annotations[annotationFound] != "" }

// finishDelete carries a deletion that was asked for to its end.
func (b *Backend) finishDelete(ctx context.Context, id volume.ID) error {
	var pace pacer
	for {
		f, err := b.look(ctx, id)
		if err != nil {
			return err
		}
		switch decideDelete(f) {
		case deleteDone:
			return nil
		case deleteRelease:
			base := f.pv.DeepCopy()
			f.pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			err = records.Error("release PersistentVolume "+f.pv.Name,
				b.api.Patch(ctx, f.pv, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})))
		case deleteClaim:
			err = records.Error("delete claim "+string(id),
				b.api.Delete(ctx, f.claim, client.Preconditions{UID: &f.claim.UID, ResourceVersion: &f.claim.ResourceVersion}))
		case deleteFinalizer:
			err = b.writeClaim(ctx, f.claim, func(c *corev1.PersistentVolumeClaim) {
				c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == Finalizer })
			})
		case deleteWait:
			err = pace.next(ctx, fmt.Sprintf("claim %s of volume %s is gone", f.claim.Name, id))
		}
		if err != nil && (ctx.Err() != nil || !conflict(err)) {
			return err
		}
	}
}
