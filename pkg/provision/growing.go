package provision

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// FinishExpansions says on the claims below volumes that the node's part of an expansion is done,
// once the kubelet says so on the claims above them: below, no kubelet does. lock is that of a
// volume; one that is busy is left to the next call. Errors: ErrUnavailable.
func (s *Service) FinishExpansions(ctx context.Context, lock func(key string) (unlock func(), ok bool)) error {
	if s.origins == nil {
		return nil
	}
	growing, err := s.origins.Growing(ctx)
	errs := []error{err}
	for id, size := range growing {
		unlock, ok := lock(string(id))
		if !ok {
			continue
		}
		errs = append(errs, s.finishExpansion(ctx, id, size))
		unlock()
	}
	return errors.Join(errs...)
}

func (s *Service) finishExpansion(ctx context.Context, id volume.ID, size int64) error {
	obj, err := records.Load(ctx, s.client, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil // it is being deleted
	}
	if err != nil {
		return err
	}
	ref := obj.Spec.ClaimRef
	if ref == nil {
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	err = client.IgnoreNotFound(s.client.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, claim))
	if err != nil {
		return records.Error(fmt.Sprintf("read claim %s/%s", ref.Namespace, ref.Name), err)
	}
	if !grownAbove(claim, obj.Status.PersistentVolumeName, size) {
		return nil
	}
	return s.origins.FinishExpand(ctx, id)
}

// grownAbove reports whether the kubelet has said of a claim, if it is the one of that
// PersistentVolume, that the pod has the size: only then it writes a larger capacity
// (kubernetes, pkg/volume/util/resize_util.go, MarkFSResizeFinished).
func grownAbove(claim *corev1.PersistentVolumeClaim, pv string, size int64) bool {
	return pv != "" && claim.Spec.VolumeName == pv && claim.Status.Capacity.Storage().Value() >= size
}
