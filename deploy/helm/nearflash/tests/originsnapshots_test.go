package charttest

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
)

func newInnerSnapshot(name string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: originNamespace, Name: name, Finalizers: []string{"nearflash.io/snapshot"},
			Labels: map[string]string{ours: "data"}, Annotations: map[string]string{"nearflash.io/hold": "h"},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("data")}},
	}
}

// testOriginSnapshots: snapshots of inner claims are the controller's alone. With the object
// its data go, whatever finalizer it has.
func (c *cluster) testOriginSnapshots(t *testing.T, controller client.Client) {
	ctx := t.Context()
	csitest.InstallSnapshots(t, c.config)
	patch := func(as client.Client, s *snapshotv1.VolumeSnapshot, text string) error {
		return as.Patch(ctx, s.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text)))
	}
	cut, strange := newInnerSnapshot("cut"), newInnerSnapshot("strange")
	strange.Finalizers = nil
	allowed(t, "make a snapshot of an inner claim", controller.Create(ctx, cut))
	snapshotter := c.impersonate(t, "system:serviceaccount:kube-system:snapshot-controller")
	const bound = `{"metadata":{"finalizers":["nearflash.io/snapshot","snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"]}}`
	allowed(t, "set the snapshot controller's finalizer", patch(snapshotter, cut, bound))
	allowed(t, "say that it is cut", snapshotter.Status().Patch(ctx, cut.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"status":{"readyToUse":true}}`))))
	forbidden(t, "delete it", c.admin.Delete(ctx, cut))
	forbidden(t, "delete all", c.admin.DeleteAllOf(ctx, &snapshotv1.VolumeSnapshot{}, client.InNamespace(originNamespace)))
	for name, text := range map[string]string{
		"take our finalizer": `{"metadata":{"finalizers":null}}`,
		"accept it":          `{"metadata":{"annotations":{"nearflash.io/accepted":"true"}}}`,
		"give it away":       `{"metadata":{"labels":{"nearflash.io/volume":"other"}}}`,
	} {
		forbidden(t, name, patch(c.admin, cut, text))
	}
	allowed(t, "accept it as the controller", patch(controller, cut, `{"metadata":{"annotations":{"nearflash.io/accepted":"true"}}}`))
	c.make(t, strange)
	allowed(t, "delete what is no snapshot of ours", c.admin.Delete(ctx, strange))
	allowed(t, "delete it as the controller", controller.Delete(ctx, cut))
	allowed(t, "let it go", patch(controller, cut, `{"metadata":{"finalizers":null}}`))
	elsewhere := newInnerSnapshot("elsewhere")
	elsewhere.Namespace = "default"
	forbidden(t, "make one elsewhere as the controller", controller.Create(ctx, elsewhere))
}
