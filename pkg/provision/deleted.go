package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// sayDeleted leaves word with every node that may have something of a volume whose record
// is about to go: that they find no record any more proves nothing to them (states.md,
// What ends unflushed writes). A node without a CachePool has nobody who could be told.
func (s *Service) sayDeleted(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	word := v1alpha1.DeletedVolume{VolumeName: obj.Name, VolumeUID: string(obj.UID), Generation: ptr.To(ptr.Deref(obj.Status.Generation, 0))}
	for _, a := range obj.Status.Abandoned {
		word.Generation = ptr.To(max(*word.Generation, a.Generation))
	}
	nodes := holders(obj)
	if obj.Status.OwnerNode == volume.Readers {
		// Each node may have read it; the record's list is of those that have reported so far.
		page := v1alpha1.CachePoolList{}
		err := records.Pages(ctx, s.client, &page, "CachePools", func() bool {
			for i := range page.Items {
				nodes = append(nodes, page.Items[i].Name)
			}
			return true
		})
		if err != nil {
			return err
		}
		slices.Sort(nodes)
		nodes = slices.Compact(nodes)
	}
	for _, node := range nodes {
		err := records.UpdatePool(ctx, s.client, node, func(st *v1alpha1.CachePoolStatus) { records.AddDeleted(st, word) })
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			return fmt.Errorf("tell node %s that volume %s was deleted: %w", node, obj.Name, err)
		}
	}
	return nil
}

// holders are the nodes that may have something of a volume on their SSDs: the owner, whom
// it keeps caches on, and where writes were abandoned.
func holders(obj *v1alpha1.CachedVolume) []string {
	var nodes []string
	dirty := obj.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty
	if obj.Status.OwnerNode != "" && obj.Status.OwnerNode != volume.Readers && (dirty || obj.Spec.CacheMode != v1alpha1.CacheModeNone) {
		nodes = append(nodes, obj.Status.OwnerNode)
	}
	nodes = append(nodes, obj.Status.Readers...)
	for _, r := range obj.Status.RetainedCaches {
		nodes = append(nodes, r.NodeName)
	}
	for _, a := range obj.Status.Abandoned {
		nodes = append(nodes, a.NodeName)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
