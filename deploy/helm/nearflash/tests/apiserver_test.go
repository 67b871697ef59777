package charttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// TestAPIServer installs the chart with helm on a real API server and tries what
// its accounts may do there. One server serves all parts, in this order.
func TestAPIServer(t *testing.T) {
	c := startCluster(t)
	if err := c.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	t.Run("CRDs", c.testCRDs)
	t.Run("every rendering passes strict validation", c.testDryRun)
	t.Run("pod security", c.testPodSecurity)
	t.Run("install and upgrade", c.testInstall)
	t.Run("CHAP account", c.testAccount)
	t.Run("scheduling", c.testScheduling)
	t.Run("node account", c.testNodeAccount)
	t.Run("controller account", c.testControllerAccount)
	t.Run("origins", c.testOrigins)
	t.Run("check", c.testCheck)
	t.Run("uninstall", c.testUninstall)
}

// testCRDs validates the generated definitions without storing them: helm has to
// install them itself.
func (c *cluster) testCRDs(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(chartDir, "crds", "*.yaml"))
	if err != nil || len(paths) != 4 {
		t.Fatalf("found %d CRDs, want 4 (%v)", len(paths), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.dryRun(t.Context(), text); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func (c *cluster) testDryRun(t *testing.T) {
	for _, name := range []string{"static", "target", "production", "origins", "targets"} {
		for _, object := range mustTemplate(t, valuesArgs(name)...) {
			if err := c.strictCreate(t.Context(), object); err != nil {
				t.Errorf("values/%s.yaml: %s %s: %v", name, object.GetKind(), object.GetName(), err)
			}
			if object.GetKind() == "Namespace" {
				c.make(t, newNamespace(object.GetName())) // for the objects in it, which come later
			}
		}
	}
}

func (c *cluster) dryRun(ctx context.Context, stream []byte) error {
	objects, err := decode(stream)
	if err != nil {
		return err
	}
	for _, object := range objects {
		err = errors.Join(err, c.strictCreate(ctx, object))
	}
	return err
}

// strictCreate lets the API server judge an object; unknown fields are errors.
func (c *cluster) strictCreate(ctx context.Context, object *unstructured.Unstructured) error {
	return c.admin.Create(ctx, object.DeepCopy(), client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
}

// testInstall leaves the chart installed, over one that has generated the CHAP password:
// the upgrade does not rotate it.
func (c *cluster) testInstall(t *testing.T) {
	ctx := t.Context()
	if err := c.helm(ctx, "install", release, chartThatGenerates(t)); err != nil {
		t.Fatal(err)
	}
	before := c.chapSecret(t)
	if n := len(before.Data["node.session.auth.password"]); n != 24 {
		t.Errorf("generated password has %d characters, want 24", n)
	}
	class := []string{
		"--set", "target.address=storage:9443", "--set", "target.tls.existingSecret=x",
		"--set", "storageClasses[0].name=fast", "--set", "storageClasses[0].parameters.backend=iscsi",
	}
	upgrade := append([]string{"upgrade", release, chartDir}, class...)
	for _, args := range [][]string{upgrade, {"rollback", release, "1"}, upgrade, upgrade} {
		if err := c.helm(ctx, args...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before.Data, c.chapSecret(t).Data); diff != "" {
			t.Errorf("helm %s changed the generated CHAP account", args[0])
		}
	}
	var fast storagev1.StorageClass
	if err := c.admin.Get(ctx, client.ObjectKey{Name: "fast"}, &fast); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"controller-publish", "node-stage"} {
		prefix := "csi.storage.k8s.io/" + step + "-secret-"
		if got, want := fast.Parameters[prefix+"namespace"]+"/"+fast.Parameters[prefix+"name"], namespace+"/"+before.Name; got != want {
			t.Errorf("%s secret of the class is %s, want %s", step, got, want)
		}
	}
}

func (c *cluster) chapSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "nearflash-chap"}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// testUninstall wants what volumes still need to stay.
func (c *cluster) testUninstall(t *testing.T) {
	if err := c.helm(t.Context(), "uninstall", release); err != nil {
		t.Fatal(err)
	}
	c.chapSecret(t)
	var volumes v1alpha1.CachedVolumeList
	if err := c.admin.List(t.Context(), &volumes); err != nil || len(volumes.Items) == 0 {
		t.Errorf("%d CachedVolumes are left after uninstall (%v), want those made before", len(volumes.Items), err)
	}
	c.wantNamespaceKept(t)
	c.stored(t, newInnerClaim("data"))
	var driver storagev1.CSIDriver
	if err := c.admin.Get(t.Context(), client.ObjectKey{Name: "csi.nearflash.io"}, &driver); !apierrors.IsNotFound(err) {
		t.Errorf("CSIDriver after uninstall: %v, want not found", err)
	}
}

// testControllerAccount shows that the limits of the node do not bind the
// controller, and what it may not do.
func (c *cluster) testControllerAccount(t *testing.T) {
	ctx := t.Context()
	controller := c.as(t, c.podToken(t, "nearflash-controller", "node-a"))
	volume := newVolume("controller-made")
	allowed(t, "create a volume", controller.Create(ctx, volume))
	volume.Status = ownedStatus("node-a", 1)
	allowed(t, "set owner and generation", controller.Status().Update(ctx, volume))
	volume.Status = ownedStatus("node-b", 2)
	allowed(t, "change owner and generation", controller.Status().Update(ctx, volume))
	allowed(t, "delete a volume", controller.Delete(ctx, volume))
	migration := newMigration("controller-made", 1, "node-a", "node-b")
	if err := c.admin.Create(ctx, migration); err != nil {
		t.Fatal(err)
	}
	ended := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"outcome":"Ended"}}`))
	allowed(t, "end a migration", controller.Status().Patch(ctx, migration, ended))
	allowed(t, "delete a migration", controller.Delete(ctx, migration))
	forbidden(t, "ask for a cache", controller.Create(ctx, newMigration("controller-made", 1, "node-a", "node-b")))
	pool := newPool("node-gone")
	if err := c.admin.Create(ctx, pool); err != nil {
		t.Fatal(err)
	}
	word := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"deleted":[{"volumeName":"v","volumeUID":"u","generation":1}]}}`))
	allowed(t, "tell a node what was deleted", controller.Status().Patch(ctx, pool, word))
	allowed(t, "delete the pool of a node that is gone", controller.Delete(ctx, pool))
	allowed(t, "read the CHAP secret", controller.Get(ctx, client.ObjectKeyFromObject(c.chapSecret(t)), &corev1.Secret{}))

	forbidden(t, "read another secret", controller.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "x"}, &corev1.Secret{}))
	forbidden(t, "list secrets", controller.List(ctx, &corev1.SecretList{}, client.InNamespace(namespace)))
	forbidden(t, "create a pool", controller.Create(ctx, newPool("node-c")))
	forbidden(t, "change a Node", controller.Patch(ctx, newNode("node-a"), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"x":"y"}}}`))))
	forbidden(t, "list pods", controller.List(ctx, &corev1.PodList{}))
}

func allowed(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("may not %s: %v", what, err)
	}
}

func forbidden(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("%s: got %v, want it forbidden", what, err)
	}
}

func newVolume(name string) *v1alpha1.CachedVolume {
	return &v1alpha1.CachedVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.CachedVolumeSpec{
			Backend: "iscsi", CacheMode: v1alpha1.CacheModeWriteback, CacheSize: "10%", AcceptDirtyLoss: v1alpha1.DirtyLossNodeLoss,
		},
	}
}

// newMigration is one from a node that filled its cache under generation (none: from
// the origin) to the node that owns the volume after it.
func newMigration(volume string, generation int64, from, to string) *v1alpha1.CacheMigration {
	m := &v1alpha1.CacheMigration{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", volume, generation+1)},
		Spec:       v1alpha1.CacheMigrationSpec{VolumeName: volume, VolumeUID: "uid", Generation: generation + 1, DestinationNode: to},
	}
	if from != "" {
		m.Spec.SourceNode, m.Spec.SourceGeneration, m.Spec.DestinationPublicKey = from, generation, strings.Repeat("A", 43)+"="
	}
	return m
}

func newPool(node string) *v1alpha1.CachePool {
	return &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: node}}
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func ownedStatus(owner string, generation int64) v1alpha1.CachedVolumeStatus {
	return v1alpha1.CachedVolumeStatus{
		Generation:  &generation,
		OwnerNode:   owner,
		Publication: v1alpha1.PublicationPublished,
		DirtyState:  v1alpha1.DirtyStateClean,
	}
}

// errNotRefused is what waiting for an admission policy ends with.
var errNotRefused = errors.New("the request is not refused")
