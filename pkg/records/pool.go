package records

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// UpdatePool reads the CachePool of a node, changes its status and writes it; after a lost
// race it begins anew. Errors: ErrNotFound if the node has none, ErrUnavailable, ErrBusy.
func UpdatePool(ctx context.Context, c client.Client, node string, change func(*v1alpha1.CachePoolStatus)) error {
	return Retry(ctx, func() error {
		obj := &v1alpha1.CachePool{}
		if err := c.Get(ctx, types.NamespacedName{Name: node}, obj); err != nil {
			return Error("read CachePool "+node, err)
		}
		base := obj.DeepCopy()
		change(&obj.Status)
		if equality.Semantic.DeepEqual(base.Status, obj.Status) {
			return nil
		}
		patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
		return Error("write status of CachePool "+node, c.Status().Patch(ctx, obj, patch))
	})
}

// AddDeleted adds the word that the data of a volume are not wanted to the list of a node.
// What was said of the same volume before is part of it. Of too many the oldest goes: what
// the node has of that is kept.
func AddDeleted(st *v1alpha1.CachePoolStatus, word v1alpha1.DeletedVolume) {
	for i := range st.Deleted {
		if d := &st.Deleted[i]; d.VolumeName == word.VolumeName && d.VolumeUID == word.VolumeUID {
			if d.Generation == nil || *d.Generation < *word.Generation {
				d.Generation = word.Generation
			}
			return
		}
	}
	st.Deleted = append(slices.Clone(st.Deleted), word)
	st.Deleted = st.Deleted[max(0, len(st.Deleted)-v1alpha1.MaxDeletedVolumes):]
}
