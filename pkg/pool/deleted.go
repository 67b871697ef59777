package pool

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// maxMessage is the bound of a message in the API.
const maxMessage = 1024

// deletion is the domain's form.
func deletion(d v1alpha1.DeletedVolume) volume.Deletion {
	return volume.Deletion{ID: volume.ID(d.VolumeName), UID: d.VolumeUID, Generation: ptr.Deref(d.Generation, 0)}
}

func deletions(in []v1alpha1.DeletedVolume) []volume.Deletion {
	var out []volume.Deletion
	for _, d := range in {
		out = append(out, deletion(d))
	}
	return out
}

// reportCaches removes what the node has done of the volumes that were deleted, and says
// which caches wait for an administrator (states.md, What ends unflushed writes).
func (m *Manager) reportCaches(ctx context.Context, obj *v1alpha1.CachePool) {
	c := m.caches.Load()
	if c == nil {
		return
	}
	st := &obj.Status
	st.Deleted = slices.DeleteFunc(st.Deleted, func(d v1alpha1.DeletedVolume) bool {
		held, err := (*c).Holds(ctx, deletion(d))
		if err != nil {
			klog.FromContext(ctx).Error(err, "Nobody knows what is left of a deleted volume", "volume", d.VolumeName)
		}
		return err == nil && !held
	})
	kept, known := (*c).Kept()
	if !known {
		return // what it said last may still be true
	}
	before := st.Kept
	st.Kept = nil
	for _, k := range kept {
		if len(st.Kept) == v1alpha1.MaxKeptCaches {
			break
		}
		st.Kept = append(st.Kept, v1alpha1.KeptCache{
			VolumeName: string(k.ID), VolumeUID: k.Fence.UID, Generation: ptr.To(k.Fence.Generation),
			SizeBytes: ptr.To(k.SizeBytes), Message: k.Why[:min(len(k.Why), maxMessage)],
		})
	}
	m.notifyKept(obj, before)
	switch n := len(kept); {
	case n > 0:
		setCondition(obj, v1alpha1.ConditionWritesKept, true, v1alpha1.ReasonUndecided,
			fmt.Sprintf("the node keeps unflushed writes of %d volumes until somebody decides: kubectl nearflash doctor", n))
	case meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionWritesKept) != nil:
		setCondition(obj, v1alpha1.ConditionWritesKept, false, v1alpha1.ReasonNothingKept, "every cache is known by a record")
	}
}

// notifyKept tells by an event of what was not kept before.
func (m *Manager) notifyKept(obj *v1alpha1.CachePool, before []v1alpha1.KeptCache) {
	for _, k := range obj.Status.Kept {
		same := func(b v1alpha1.KeptCache) bool { return b.VolumeName == k.VolumeName && b.VolumeUID == k.VolumeUID }
		if m.Events == nil || slices.ContainsFunc(before, same) {
			continue
		}
		m.Events.Eventf(obj, nil, corev1.EventTypeWarning, v1alpha1.ConditionWritesKept, "Keep",
			"Unflushed writes of volume %s, generation %d, are kept until somebody decides: %s", k.VolumeName, ptr.Deref(k.Generation, 0), k.Message)
	}
}
