package reconcile_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testOrigins: over another driver's volume, the attachment of a node that was released dirty
// lasts until it has flushed; and the record of a static one goes with its PersistentVolume,
// but not what lies below.
func (c *cluster) testOrigins(t *testing.T) {
	node := c.origins.Node("a")
	c.must(t, c.client.Create(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: node}}))
	below := c.origins.Static(t, "below", gib)
	spec := &volume.Spec{
		Mode: volume.ModeWriteback, Cache: volume.Size{Bytes: gib}, AcceptNodeLoss: true, Origin: &volume.Origin{PV: below.Name},
	}
	const id = "over-another"
	pv := persistentVolume("over", driverName, id)
	c.must(t, c.client.Create(t.Context(), pv))
	var fence volume.Fence
	c.locked(t, id, func() error {
		p, err := c.svc.Publish(t.Context(), id, node, spec, nil)
		fence = p.Fence
		return err
	})
	c.must(t, c.records.MarkPossiblyDirty(t.Context(), id, fence))
	c.locked(t, id, func() error { return c.svc.Unpublish(t.Context(), id, node) })
	never(t, "a node that has to flush was detached", func() bool { return len(c.origins.Attached()) == 0 })
	c.must(t, c.records.MarkClean(t.Context(), id, fence))
	eventually(t, "it is detached", func() bool { return len(c.origins.Attached()) == 0 })
	never(t, "the record went before its PersistentVolume", func() bool { return !c.exists(t, id) })
	c.must(t, c.client.Delete(t.Context(), pv, client.GracePeriodSeconds(0)))
	c.must(t, client.IgnoreNotFound(c.client.Patch(t.Context(), pv, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))))
	eventually(t, "the record goes", func() bool { return !c.exists(t, id) })
	c.must(t, c.client.Get(t.Context(), client.ObjectKeyFromObject(below), below))
	if below.DeletionTimestamp != nil || below.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("what lies below: %+v", below.Spec)
	}
}

// testGrown: the claim below a volume says that it has grown once the kubelet says so on the claim
// above, and not before.
func (c *cluster) testGrown(t *testing.T) {
	c.origins.Behave(csitest.Behaviour{NodeStep: true})
	const id = "grown"
	_, err := c.svc.Create(t.Context(), id, volume.Spec{
		CapacityBytes: gib, Mode: volume.ModeWritethrough, Cache: volume.Size{Bytes: gib}, Origin: &volume.Origin{StorageClass: c.origins.Class("")},
	})
	c.must(t, err)
	above := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "grows"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "pv-" + id,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(gib, resource.BinarySI)}},
		},
	}
	c.must(t, c.client.Create(t.Context(), above))
	kubelet := func(size int64) {
		t.Helper()
		base := above.DeepCopy()
		above.Status.Phase, above.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
		c.must(t, c.client.Status().Patch(t.Context(), above, client.MergeFrom(base)))
	}
	kubelet(gib)
	pv := persistentVolume("pv-"+id, driverName, id)
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: above.Namespace, Name: above.Name}
	c.must(t, c.client.Create(t.Context(), pv))
	below := func() *corev1.PersistentVolumeClaim {
		claim := &corev1.PersistentVolumeClaim{}
		c.must(t, c.client.Get(t.Context(), client.ObjectKey{Namespace: c.origins.Namespace, Name: id}, claim))
		return claim
	}
	size := func() int64 { return below().Status.Capacity.Storage().Value() }
	c.locked(t, id, func() error {
		_, err := c.svc.Expand(t.Context(), id, 2*gib)
		return err
	})
	eventually(t, "the node's part is pending", func() bool { return len(below().Status.Conditions) > 0 })
	never(t, "the claim below says that it has grown", func() bool { return size() != gib })
	kubelet(2 * gib)
	eventually(t, "the claim below says that it has grown", func() bool { return size() == 2*gib && len(below().Status.Conditions) == 0 })
}
