package kubectl_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func overClass(v *v1alpha1.CachedVolume) {
	v.Spec.Backend, v.Spec.Origin = "csi", &v1alpha1.OriginSource{StorageClassName: "foreign"}
	v.CreationTimestamp = before(time.Hour)
}

func originClaim(id string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "nearflash-origins", Name: id, Labels: map[string]string{"nearflash.io/volume": id}, CreationTimestamp: before(10 * time.Minute)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "disk-of-" + id},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: phase},
	}
}

func originAttachment(id string, status storagev1.VolumeAttachmentStatus) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "nearflash-" + id, Labels: map[string]string{"nearflash.io/volume": id}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "other", NodeName: "node-a"},
		Status:     status,
	}
}

// doctorsLines are the lines of a report about what is not in order.
func doctorsLines(t *testing.T, objs ...client.Object) string {
	t.Helper()
	_, out, _ := newRig(t, objs...).run("doctor")
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "ok ") && !strings.HasPrefix(line, "        ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestDoctorOrigins(t *testing.T) {
	healthyOrigin := func(t *testing.T) []client.Object {
		objs := append(healthy(t), class("over", map[string]string{"backend": "csi", "originStorageClass": "foreign", "cacheSize": "10%"}))
		objs = append(objs, bound("shop", "orders", "pvc-o", overClass, on("node-a"))...)
		return append(objs, originClaim("pvc-o", corev1.ClaimBound), originAttachment("pvc-o", storagev1.VolumeAttachmentStatus{Attached: true}))
	}
	expect(t, "all is well", doctorsLines(t, healthyOrigin(t)...), "0 errors, 0 warnings\n")

	left := func(name string, change func(*corev1.PersistentVolume)) client.Object {
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "other"}},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef:                      &corev1.ObjectReference{Namespace: "nearflash-origins", Name: "pvc-left", UID: "gone"},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
		}
		change(pv)
		return pv
	}
	expect(t, "a disk that was left", doctorsLines(t, append(healthyOrigin(t),
		left("left", func(*corev1.PersistentVolume) {}),
		left("going", func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		}),
		left("there-before", func(pv *corev1.PersistentVolume) { pv.Annotations = nil }),
		left("in-use", func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeBound }),
		left("another-namespace", func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.Namespace = "shop" }),
	)...), `warning  pv/left: was made as the origin of volume pvc-left, and has no claim any more: nearflash does not use it, and nothing deletes it
0 errors, 1 warning
`)

	static := func(v *v1alpha1.CachedVolume) {
		overClass(v)
		v.Spec.Origin = &v1alpha1.OriginSource{PersistentVolumeName: "there-before"}
	}
	objs := append(healthyOrigin(t),
		class("alone", map[string]string{"backend": "csi", "provisioning": "thin"}),
		class("gone", map[string]string{"backend": "csi", "originStorageClass": "missing"}),
		class("itself", map[string]string{"backend": "csi", "originStorageClass": "fast"}),
		class("neither", map[string]string{"originStorageClass": "foreign"}),
		originClaim("pvc-unknown", corev1.ClaimBound), originAttachment("pvc-unknown", storagev1.VolumeAttachmentStatus{Attached: true}),
		originClaim("pvc-waits", corev1.ClaimPending), originClaim("pvc-lost", corev1.ClaimLost),
		originAttachment("pvc-lost", storagev1.VolumeAttachmentStatus{
			AttachError: &storagev1.VolumeError{Message: "no such disk"}, DetachError: &storagev1.VolumeError{Message: "too busy"},
		}),
	)
	for name, how := range map[string]func(*v1alpha1.CachedVolume){"waits": overClass, "lost": overClass, "bare": overClass, "static": static} {
		objs = append(objs, bound("shop", name, "pvc-"+name, how)...)
	}
	expect(t, "what is wrong", doctorsLines(t, objs...), `error    storageclass/alone: claims of it will fail: backend csi needs originStorageClass; backend csi takes no provisioning
error    storageclass/gone: claims of it will fail: originStorageClass missing is not in the cluster
error    storageclass/itself: claims of it will fail: originStorageClass fast is of this driver, accepted is one of another CSI driver
error    storageclass/neither: claims of it will fail: originStorageClass is for backend csi only
error    pvc/bare (namespace shop): the claim of its origin is gone: it cannot be attached
error    pvc/lost (namespace shop): PersistentVolume disk-of-pvc-lost of its origin is gone
warning  pvc/pvc-unknown (namespace nearflash-origins): is the origin of volume pvc-unknown, which has no CachedVolume; its data are on PersistentVolume disk-of-pvc-unknown
warning  pvc/waits (namespace shop): the claim of its origin has waited for 10m
warning  volumeattachment/nearflash-pvc-lost: the origin of volume pvc-lost cannot be attached to node node-a: no such disk
warning  volumeattachment/nearflash-pvc-lost: the origin of volume pvc-lost cannot be detached from node node-a: too busy
warning  volumeattachment/nearflash-pvc-unknown: has the origin of volume pvc-unknown attached to node node-a, and the volume has no CachedVolume; unflushed writes may be on that node
6 errors, 5 warnings
`)
}

// TestDoctorAdoptions: an adoption or a release that was begun and not ended is named, with the command
// that goes on with it.
func TestDoctorAdoptions(t *testing.T) {
	journal := func(name, direction string, age time.Duration) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "nearflash-origins", Name: "adoption-" + name, Labels: map[string]string{"nearflash.io/adoption": "adopted-" + name}, CreationTimestamp: before(age)},
			Data: map[string]string{
				"state.yaml":            "direction: " + direction + "\nreclaimPolicy: Delete\nattributes: {}\n",
				"claim.yaml":            "metadata: {namespace: shop, name: " + name + ", uid: " + name + "}\n",
				"persistentvolume.yaml": "metadata: {name: pv-" + name + ", uid: u}\nspec: {csi: {driver: other, volumeHandle: h}}\n",
			},
		}
	}
	front := func(name string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "adopted-" + name}, Status: corev1.PersistentVolumeStatus{Phase: phase}}
	}
	spoilt := journal("spoilt", "adopt", time.Hour)
	delete(spoilt.Data, "claim.yaml")
	later := journal("later", "adopt", time.Hour)
	later.Data["format"] = "2"
	objs := append(healthy(t), journal("done", "adopt", time.Hour), front("done", corev1.VolumeBound),
		journal("half", "adopt", time.Hour), front("half", corev1.VolumeAvailable), journal("now", "adopt", time.Second),
		journal("back", "release", time.Hour), front("back", corev1.VolumeBound), journal("given", "ended", time.Hour), spoilt, later)
	expect(t, "what was begun", doctorsLines(t, objs...), `warning  configmap/adoption-back (namespace nearflash-origins): the release of claim shop/back has not ended
warning  configmap/adoption-given (namespace nearflash-origins): the release of claim shop/given has not ended
warning  configmap/adoption-half (namespace nearflash-origins): the adoption of claim shop/half has not ended
warning  configmap/adoption-later (namespace nearflash-origins): is the journal of an adoption: it was written by a newer version of nearflash: format 2, known is 1: use kubectl nearflash of that version
warning  configmap/adoption-spoilt (namespace nearflash-origins): is the journal of an adoption, and makes no sense: it lacks the UID of the claim or of the PersistentVolume, its CSI source, or its reclaim policy
0 errors, 5 warnings
`)
}

// The parameters that doctor knows are those that the reference has.
func TestDoctorKnowsParameters(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "storageclass.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| `backend`")
	table, _, _ = strings.Cut("| `backend`"+table, "\n\n")
	all := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-zA-Z]+)` \\|").FindAllStringSubmatch(table, -1) {
		all[m[1]] = "x"
	}
	if len(all) < 12 {
		t.Fatalf("parameters of the reference: %v", all)
	}
	if lines := doctorsLines(t, append(healthy(t), class("all", all))...); !strings.Contains(lines, "storageclass/all") || strings.Contains(lines, "unknown parameter") {
		t.Error(lines)
	}
}
