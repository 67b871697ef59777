package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend/csi"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

const mib = 1 << 20

// fixture is a real API server, a stand-in for what serves claims, and nearflash's controller.
type fixture struct {
	*csitest.Cluster
	api client.WithWatch
	svc *provision.Service
	// apps is the namespace of the claims.
	apps string
	t    *testing.T
}

func newFixture(t *testing.T, cfg *rest.Config, name string) *fixture {
	t.Helper()
	api := apiserver.Client(t, cfg)
	f := &fixture{Cluster: csitest.Start(t, api, name, 4096*mib), api: api, apps: name + "-apps", t: t}
	f.Serve(t, f.apps)
	// Of the first test's making: the API server is shared.
	err := api.Create(t.Context(), &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}})
	f.must(client.IgnoreAlreadyExists(err))
	f.svc = provision.New(provision.Config{
		Client: api, Events: events.NewFakeRecorder(1000),
		Origins: csi.New(csi.Config{Client: api, Namespace: f.Namespace, Driver: driverName, Patience: 20 * time.Second}),
	})
	f.must(api.Create(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: f.Node("a")}}))
	t.Cleanup(func() {
		if wrong := f.Wrong(); len(wrong) > 0 {
			t.Errorf("%q", wrong)
		}
	})
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// adopter is an Adopter over a client. While it waits, nearflash's controller works.
func (f *fixture) adopter(api client.Client) *Adopter {
	return New(Config{
		Client: api, Origins: f.Namespace, Now: time.Now, Patience: 30 * time.Second,
		Report: func(string) error { return nil },
		After: func(time.Duration) <-chan time.Time {
			f.retire(f.t.Context())
			return time.After(60 * time.Millisecond)
		},
	})
}

// retire ends the records whose PersistentVolumes are gone, as pkg/reconcile does.
func (f *fixture) retire(ctx context.Context) {
	list, pvs := &v1alpha1.CachedVolumeList{}, &corev1.PersistentVolumeList{}
	if f.api.List(ctx, list) != nil || f.api.List(ctx, pvs) != nil {
		return
	}
	driver := map[string]string{} // by PersistentVolume
	for i := range pvs.Items {
		driver[pvs.Items[i].Name] = pvs.Items[i].Spec.CSI.Driver
	}
	for i := range list.Items {
		id := list.Items[i].Name
		// Others share the API server.
		if ours := strings.HasPrefix(id, "adopted-") && driver[id+"-origin"] == f.Driver; ours && driver[id] == "" {
			_ = f.svc.Retire(ctx, volume.ID(id)) // what fails comes again
		}
	}
}

func (f *fixture) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: f.apps, Name: name}
}

// newClaim is a claim of the other driver's class, with all that has to come back.
func (f *fixture) newClaim(name string, size int64) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.apps, Name: name, Labels: map[string]string{"app": "db"}, Annotations: map[string]string{"example.org/note": "mine"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(f.Class("")),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}},
		},
	}
}

// bound makes a claim and waits until it has its volume.
func (f *fixture) bound(name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	f.t.Helper()
	f.must(f.api.Create(f.t.Context(), f.newClaim(name, 8*mib)))
	f.await("claim "+name+" is bound", func() bool {
		c := f.claim(name)
		return c != nil && c.Status.Phase == corev1.ClaimBound
	})
	c := f.claim(name)
	return c, f.pv(c.Spec.VolumeName)
}

// claim reads a claim; nil if there is none.
func (f *fixture) claim(name string) *corev1.PersistentVolumeClaim {
	f.t.Helper()
	return read(f, f.key(name), &corev1.PersistentVolumeClaim{})
}

// pv reads a PersistentVolume; nil if there is none.
func (f *fixture) pv(name string) *corev1.PersistentVolume {
	f.t.Helper()
	return read(f, types.NamespacedName{Name: name}, &corev1.PersistentVolume{})
}

func read[T client.Object](f *fixture, key types.NamespacedName, obj T) T {
	f.t.Helper()
	var none T
	err := f.api.Get(f.t.Context(), key, obj)
	if apierrors.IsNotFound(err) {
		return none
	}
	if err != nil {
		f.t.Error(err)
	}
	return obj
}

func (f *fixture) await(what string, ok func() bool) {
	f.t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			f.t.Errorf("not seen within a minute: %s", what)
			return
		}
	}
}

// use lets a pod's node have the volume in front once, as its attacher does.
func (f *fixture) use(front *corev1.PersistentVolume) error {
	spec := &volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, Origin: &volume.Origin{PV: front.Spec.CSI.VolumeAttributes[keyOriginPV]}}
	id := volume.ID(front.Spec.CSI.VolumeHandle)
	ctx := f.t.Context()
	if _, err := f.svc.Publish(ctx, id, f.Node("a"), spec, nil); err != nil {
		return fmt.Errorf("use %s: %w", id, err)
	}
	return errors.Join(f.svc.Unpublish(ctx, id, f.Node("a")), f.svc.Settle(ctx, id))
}

// wantAdopted fails unless the claim leads by nearflash to the volume that it had.
func (f *fixture) wantAdopted(what string, old *corev1.PersistentVolume, name string) *corev1.PersistentVolume {
	f.t.Helper()
	c := f.claim(name)
	if c == nil || c.Status.Phase != corev1.ClaimBound {
		f.t.Fatalf("%s: claim %+v", what, c)
	}
	front := f.pv(c.Spec.VolumeName)
	if front == nil || front.Spec.CSI.Driver != driverName || front.Spec.ClaimRef.UID != c.UID || !kept(front) || front.Spec.CSI.FSType != "ext4" {
		f.t.Fatalf("%s: PersistentVolume of the claim: %+v", what, front)
	}
	block := f.pv(front.Spec.CSI.VolumeAttributes[keyOriginPV])
	if block == nil || !sameSource(block, old) || !kept(block) || *block.Spec.VolumeMode != corev1.PersistentVolumeBlock || block.Spec.CSI.FSType != "" {
		f.t.Fatalf("%s: origin %+v", what, block)
	}
	if pv := f.pv(old.Name); pv != nil {
		f.t.Errorf("%s: PersistentVolume %s is there still", what, pv.Name)
	}
	f.wantData(what, old)
	return front
}

// wantReleased fails unless all is as it was.
func (f *fixture) wantReleased(what string, oldClaim *corev1.PersistentVolumeClaim, old *corev1.PersistentVolume) {
	f.t.Helper()
	c, pv := f.claim(oldClaim.Name), f.pv(old.Name)
	if c == nil || pv == nil || c.Status.Phase != corev1.ClaimBound || c.Spec.VolumeName != old.Name || pv.Spec.ClaimRef.UID != c.UID {
		f.t.Fatalf("%s: claim %+v, PersistentVolume %+v", what, c, pv)
	}
	if !sameSource(pv, old) || pv.Spec.PersistentVolumeReclaimPolicy != old.Spec.PersistentVolumeReclaimPolicy ||
		pv.Annotations["pv.kubernetes.io/provisioned-by"] != f.Driver || *pv.Spec.VolumeMode != *old.Spec.VolumeMode || pv.Spec.CSI.FSType != old.Spec.CSI.FSType ||
		pv.Spec.StorageClassName != old.Spec.StorageClassName {
		f.t.Errorf("%s: PersistentVolume %+v, was %+v", what, pv, old)
	}
	if c.Labels["app"] != "db" || c.Annotations["example.org/note"] != "mine" || *c.Spec.StorageClassName != *oldClaim.Spec.StorageClassName {
		f.t.Errorf("%s: claim %+v", what, c)
	}
	j := &Adopter{api: f.api, origins: f.Namespace}
	if left, err := j.load(f.t.Context(), f.key(oldClaim.Name)); left != nil || err != nil {
		f.t.Errorf("%s: journal is left: %v, %v", what, left, err)
	}
	front := "adopted-" + string(oldClaim.UID)
	for _, name := range []string{front, front + "-origin"} {
		if left := f.pv(name); left != nil {
			f.t.Errorf("%s: PersistentVolume %s is left", what, name)
		}
	}
	f.wantData(what, old)
}

// wantData fails if the data of a PersistentVolume were deleted.
func (f *fixture) wantData(what string, old *corev1.PersistentVolume) {
	f.t.Helper()
	if slices.Contains(f.Erased(), old.Spec.CSI.VolumeHandle) {
		f.t.Errorf("%s: the data are deleted", what)
	}
}

// pod makes a pod with a claim.
func (f *fixture) pod(name, claim string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.apps, Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/c:1"}},
			Volumes: []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	f.must(f.api.Create(f.t.Context(), pod))
	return pod
}

// attach makes a VolumeAttachment of a PersistentVolume.
func (f *fixture) attach(name, pv string) *storagev1.VolumeAttachment {
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "nobody.example.org", NodeName: "node-x", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}
	f.must(f.api.Create(f.t.Context(), va))
	return va
}
