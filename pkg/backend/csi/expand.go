package csi

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Expand implements backend.Backend. A request that the driver has refused for want of space
// stays on the claim until another size is asked for: Kubernetes takes back none that would be
// no expansion. Errors besides: ErrInvalid if the class does not allow it; ErrBusy while the
// driver is at it.
func (b *Backend) Expand(ctx context.Context, id volume.ID, size int64) (int64, error) {
	ctx, cancel := b.wait(ctx)
	defer cancel()
	f, err := b.lookBound(ctx, id)
	if err != nil {
		return 0, err
	}
	if sizeOf(f.pv) >= size {
		return sizeOf(f.pv), nil
	}
	if err := b.expandable(ctx, f.claim); err != nil {
		return 0, err
	}
	// The node's part of the last one is over, or comes again with this one; left pending, it
	// would hold this one up for good.
	if err := b.FinishExpand(ctx, id); err != nil {
		return 0, err
	}
	known, err := b.events(ctx, f.claim, reasonResizeFailed)
	if err != nil {
		return 0, err
	}
	// The resizer may be at another size that was asked for before, and fail once more.
	others := int32(0)
	if asked := f.claim.Spec.Resources.Requests.Storage().Value(); asked != size && asked > sizeOf(f.pv) {
		others = 1
	}
	err = b.request(ctx, id, size)
	b.growing.add(id) // from now on the claim shows it, also if the answer was lost
	if err != nil {
		return 0, err
	}
	return b.awaitSize(ctx, id, size, times(known), others)
}

// lookBound is look for a claim that has its PersistentVolume.
func (b *Backend) lookBound(ctx context.Context, id volume.ID) (facts, error) {
	f, err := b.look(ctx, id)
	switch {
	case err != nil:
		return f, err
	case f.claim == nil:
		return f, fmt.Errorf("%w: the claim of volume %s does not exist", volume.ErrNotFound, id)
	case f.pv == nil:
		return f, fmt.Errorf("%w: claim %s/%s is not bound", volume.ErrBusy, b.namespace, id)
	}
	return f, nil
}

// expandable reports why a claim cannot grow.
func (b *Backend) expandable(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	class, err := b.class(ctx, name)
	if err != nil {
		return err
	}
	if !ptr.Deref(class.AllowVolumeExpansion, false) {
		return fmt.Errorf("%w: StorageClass %s, of which the origin is, does not allow an expansion: accepted are classes with allowVolumeExpansion true", volume.ErrInvalid, name)
	}
	return nil
}

// request asks for a size by the claim.
func (b *Backend) request(ctx context.Context, id volume.ID, size int64) error {
	f, err := b.lookBound(ctx, id)
	if err != nil {
		return err
	}
	now := f.claim.Spec.Resources.Requests.Storage().Value()
	if now == size || now > size && size <= f.claim.Status.Capacity.Storage().Value() {
		return nil // the latter is asked for already, and cannot be lowered so far
	}
	return b.writeClaim(ctx, f.claim, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(size, resource.BinarySI)
	})
}

// awaitSize waits until the PersistentVolume has the size. Of the failures that come, others are of
// another size.
func (b *Backend) awaitSize(ctx context.Context, id volume.ID, size int64, known map[types.UID]int32, others int32) (int64, error) {
	var pace pacer
	for {
		f, err := b.lookBound(ctx, id)
		if err != nil {
			return 0, err
		}
		if sizeOf(f.pv) >= size {
			return sizeOf(f.pv), nil
		}
		failure, exhausted, err := b.failure(ctx, f.claim, reasonResizeFailed, known)
		if err != nil {
			return 0, err
		}
		if exhausted > others {
			return 0, fmt.Errorf("%w: the driver cannot expand the origin of volume %s: %s", volume.ErrNoSpace, id, failure)
		}
		waitingFor := fmt.Sprintf("the origin of volume %s has %d bytes", id, size)
		if failure != "" {
			waitingFor += "; last failure: " + failure
		}
		if err := pace.next(ctx, waitingFor); err != nil {
			return 0, err
		}
	}
}

func times(list []corev1.Event) map[types.UID]int32 {
	out := map[types.UID]int32{}
	for i := range list {
		out[list[i].UID] = timesOf(&list[i])
	}
	return out
}

// FinishExpand says on the claim, as the kubelet does for a pod's, that the node's part of an
// expansion is done: the claim has no pod. Errors: ErrNotFound, ErrBusy, ErrUnavailable.
func (b *Backend) FinishExpand(ctx context.Context, id volume.ID) error {
	f, err := b.lookBound(ctx, id)
	if err != nil {
		return err
	}
	base := f.claim.DeepCopy()
	if !finishExpand(&f.claim.Status, f.pv) {
		return nil
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	return records.Error("write status of claim "+string(id), b.api.Status().Patch(ctx, f.claim, patch))
}

// pendingOnNode reports whether the node's part of an expansion is all that is left of it
// (kubernetes, pkg/volume/util/resize_util.go, MarkFSResizeFinished and
// MarkNodeExpansionFinishedWithRecovery).
func pendingOnNode(s *corev1.PersistentVolumeClaimStatus) bool {
	switch s.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return true
	case "":
		return slices.ContainsFunc(s.Conditions, resizePending)
	}
	return false
}

func resizePending(c corev1.PersistentVolumeClaimCondition) bool {
	return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
}

// finishExpand changes the status of a claim whose node part is pending.
func finishExpand(s *corev1.PersistentVolumeClaimStatus, pv *corev1.PersistentVolume) bool {
	if !pendingOnNode(s) {
		return false
	}
	s.Capacity = s.Capacity.DeepCopy()
	if s.Capacity == nil {
		s.Capacity = corev1.ResourceList{}
	}
	s.Capacity[corev1.ResourceStorage] = *pv.Spec.Capacity.Storage()
	delete(s.AllocatedResourceStatuses, corev1.ResourceStorage)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return resizePending(c) || c.Type == corev1.PersistentVolumeClaimResizing
	})
	return true
}
