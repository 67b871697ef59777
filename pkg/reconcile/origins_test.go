package reconcile_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
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
