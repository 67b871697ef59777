package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// setClaim keeps the name of a volume's claim, which metrics and events carry beside
// that of the PersistentVolume. A name that the informer has not seen yet follows
// with its event.
func (r *Reconciler) setClaim(ctx context.Context, id volume.ID, ref *v1alpha1.ClaimReference) error {
	if ref == nil {
		return nil
	}
	err := records.UpdateObject(ctx, r.Client, id, func(now *v1alpha1.CachedVolume) error {
		now.Spec.ClaimRef = ref
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// persistentVolume returns the one that has the handle, nil if there is none. Of
// several, which only an administrator can make, it is the one with a claim.
func (r *Reconciler) persistentVolume(ctx context.Context, handle string) (*corev1.PersistentVolume, error) {
	list := &corev1.PersistentVolumeList{}
	if err := r.informed.List(ctx, list, client.MatchingFields{handleIndex: handle}); err != nil {
		return nil, fmt.Errorf("look for the PersistentVolume of %s: %w", handle, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	free := func(pv corev1.PersistentVolume) int {
		if pv.Spec.ClaimRef == nil {
			return 1
		}
		return 0
	}
	pv := slices.MinFunc(list.Items, func(a, b corev1.PersistentVolume) int {
		return cmp.Or(cmp.Compare(free(a), free(b)), cmp.Compare(a.Name, b.Name))
	})
	return &pv, nil
}

// claimOf returns the claim that a PersistentVolume is for, nil if there is none.
// The claim of a volume whose PersistentVolume is free is kept: it was the last.
func claimOf(pv *corev1.PersistentVolume) *v1alpha1.ClaimReference {
	if pv == nil || pv.Spec.ClaimRef == nil {
		return nil
	}
	return &v1alpha1.ClaimReference{Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.ClaimRef.Name}
}

// namings lets PersistentVolumes pass that come, go, or get another claim.
func namings() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.PersistentVolume)
			after, also := e.ObjectNew.(*corev1.PersistentVolume)
			if !ok || !also {
				return false
			}
			a, b := claimOf(before), claimOf(after)
			return (a == nil) != (b == nil) || a != nil && *a != *b
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
