package csitest

import (
	"context"
	"embed"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

const (
	defaultClass = "snapshot.storage.kubernetes.io/is-default-class"
	boundFinal   = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
)

// crds are those of external-snapshotter's client, of the version in go.mod.
//
//go:embed crds
var crds embed.FS

// InstallSnapshots makes the VolumeSnapshot API known to an API server.
func InstallSnapshots(t testing.TB, cfg *rest.Config) {
	t.Helper()
	files, err := crds.ReadDir("crds")
	if err != nil {
		t.Fatal(err)
	}
	var list []*apiextensionsv1.CustomResourceDefinition
	for _, f := range files {
		text, err := crds.ReadFile(filepath.Join("crds", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			t.Fatalf("%s: %v", f.Name(), err)
		}
		list = append(list, crd)
	}
	if _, err := envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{CRDs: list}); err != nil {
		t.Fatal(err)
	}
}

// StartSnapshots has the stand-in be the driver's snapshotter, and the snapshot controller, as
// well. Its classes are those of SnapshotClass with "", the default, and "kept", whose
// snapshots are not deleted with their objects; "foreign" is of another driver.
func (c *Cluster) StartSnapshots(t testing.TB) {
	t.Helper()
	for _, kind := range []string{"", "kept", "foreign"} {
		class := &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: c.SnapshotClass(kind)}, Driver: c.Driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}
		switch kind {
		case "":
			class.Annotations = map[string]string{defaultClass: "true"}
		case "kept":
			class.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		case "foreign":
			class.Driver = "foreign.example.org"
		}
		if err := c.api.Create(t.Context(), class); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshots = true
	c.serve(t, func(ctx context.Context) { c.watch(ctx, &snapshotv1.VolumeSnapshotList{}) })
}

// SnapshotClass returns the name of a class of snapshots.
func (c *Cluster) SnapshotClass(kind string) string { return c.Class(kind) }

// Write replaces the content of a claim's volume, and Read returns it.
func (c *Cluster) Write(t testing.TB, claim, content string) {
	t.Helper()
	pv := c.volumeOf(t, claim)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.contents[pv] = content
}

// Read returns the content of a claim's volume.
func (c *Cluster) Read(t testing.TB, claim string) string {
	t.Helper()
	pv := c.volumeOf(t, claim)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.contents[pv]
}

func (c *Cluster) volumeOf(t testing.TB, name string) string {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	if err := c.api.Get(t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: name}, claim); err != nil {
		t.Fatal(err)
	}
	return claim.Spec.VolumeName
}

// DeletedCuts returns the VolumeSnapshots whose snapshots were deleted.
func (c *Cluster) DeletedCuts() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.deletedCuts)
}

// cuts serves VolumeSnapshots.
func (c *Cluster) cuts(ctx context.Context, b Behaviour) {
	list := &snapshotv1.VolumeSnapshotList{}
	if c.api.List(ctx, list, client.InNamespace(c.Namespace)) != nil {
		return
	}
	for i := range list.Items {
		s := &list.Items[i]
		status := ptr.Deref(s.Status, snapshotv1.VolumeSnapshotStatus{})
		switch {
		case s.DeletionTimestamp != nil:
			c.endCut(ctx, s, b)
		case !slices.Contains(s.Finalizers, boundFinal):
			s.Finalizers = append(s.Finalizers, boundFinal)
			if s.Spec.VolumeSnapshotClassName == nil {
				s.Spec.VolumeSnapshotClassName = ptr.To(c.SnapshotClass(""))
			}
			_ = c.api.Update(ctx, s)
		case status.CreationTime == nil && b.CutError != "":
			status.Error = &snapshotv1.VolumeSnapshotError{Time: ptr.To(metav1.Now()), Message: &b.CutError}
			s.Status = &status
			_ = c.api.Status().Update(ctx, s)
		case status.CreationTime == nil && !b.HoldCut:
			c.cut(ctx, s, b)
		case status.CreationTime != nil && !ptr.Deref(status.ReadyToUse, false) && !b.HoldReady:
			status.ReadyToUse = ptr.To(true)
			s.Status = &status
			_ = c.api.Status().Update(ctx, s)
		}
	}
}

// cut copies the content of a volume. Asked again, because its answer was not written, it finds
// what it has made, as CreateSnapshot of the same name does.
func (c *Cluster) cut(ctx context.Context, s *snapshotv1.VolumeSnapshot, b Behaviour) {
	claim := &corev1.PersistentVolumeClaim{}
	if c.api.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: ptr.Deref(s.Spec.Source.PersistentVolumeClaimName, "")}, claim) != nil || claim.Status.Phase != corev1.ClaimBound {
		s.Status = &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("the claim is not bound")}}
		_ = c.api.Status().Update(ctx, s)
		return
	}
	c.mu.Lock()
	if _, ok := c.cutContents[string(s.UID)]; !ok {
		c.cutContents[string(s.UID)] = c.contents[claim.Spec.VolumeName]
	}
	c.mu.Unlock()
	size := resource.NewQuantity(claim.Status.Capacity.Storage().Value()+b.RestoreMore, resource.BinarySI)
	s.Status = &snapshotv1.VolumeSnapshotStatus{
		BoundVolumeSnapshotContentName: ptr.To("snapcontent-" + string(s.UID)), CreationTime: ptr.To(metav1.Now()),
		ReadyToUse: ptr.To(b.ReadyAtOnce), RestoreSize: size,
	}
	_ = c.api.Status().Update(ctx, s)
}

// endCut deletes a snapshot, if its class says so, and lets its object go.
func (c *Cluster) endCut(ctx context.Context, s *snapshotv1.VolumeSnapshot, b Behaviour) {
	if b.HoldCutDelete || !slices.Contains(s.Finalizers, boundFinal) {
		return
	}
	s.Finalizers = slices.DeleteFunc(s.Finalizers, func(f string) bool { return f == boundFinal })
	if c.api.Update(ctx, s) != nil {
		return
	}
	if ptr.Deref(s.Spec.VolumeSnapshotClassName, "") == c.SnapshotClass("kept") {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deletedCuts = append(c.deletedCuts, s.Name)
	delete(c.cutContents, string(s.UID))
}

// begin says what a new volume of a claim begins with.
func (c *Cluster) begin(ctx context.Context, claim *corev1.PersistentVolumeClaim, size int64) (content string, err error) {
	from := claim.Spec.DataSource
	if from == nil {
		return "", nil
	}
	s := &snapshotv1.VolumeSnapshot{}
	if err := c.api.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: from.Name}, s); err != nil {
		return "", err
	}
	if s.Status == nil || !ptr.Deref(s.Status.ReadyToUse, false) || s.DeletionTimestamp != nil {
		return "", fmt.Errorf("snapshot %s is not ready", s.Name)
	}
	if least := s.Status.RestoreSize.Value(); size < least {
		return "", fmt.Errorf("requested volume size %d is less than the size %d for the source snapshot %s", size, least, s.Name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cutContents[string(s.UID)], nil
}
