package kubectl_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// adoptable are a claim of another driver with its volume, and what there is of nearflash.
func adoptable() []client.Object {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	return []client.Object{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "c1", Labels: map[string]string{"app": "db"}},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeName: "pv-1", StorageClassName: ptr("disks"), AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size},
			},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-1", UID: "v1"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: size, AccessModes: modes, StorageClassName: "disks", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
				ClaimRef:               &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "c1"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disks.example.org", VolumeHandle: "h"}},
			},
		},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "disks"}, Provisioner: "disks.example.org"},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "cached"}, Provisioner: driver, Parameters: map[string]string{
			"backend": "csi", "originStorageClass": "disks", "cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "cacheSize": "5Gi", "csi.storage.k8s.io/fstype": "xfs",
		}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "nearflash-origins", Labels: map[string]string{"app.kubernetes.io/name": "nearflash", "app.kubernetes.io/component": "origins"}}},
	}
}

const adoptPlan = `
data: this is to be done, in namespace shop:
  1. save the manifests of claim data and PersistentVolume pv-1 in a ConfigMap
  2. set PersistentVolume pv-1 on Retain
  3. make PersistentVolume adopted-c1 of nearflash, reserved for claim data
  4. delete claim data; PersistentVolume pv-1 keeps its volume
  5. delete PersistentVolume pv-1, once it is Released and detached; the volume stays with the other driver
  6. make PersistentVolume adopted-c1-origin of the same volume, with volumeMode Block
  7. make claim data again, for PersistentVolume adopted-c1
warning: PersistentVolume pv-1 is on Delete. While the claim is adopted, deleting the claim deletes no data: the volume stays with the other driver. Release the claim, then delete it, to have the volume deleted
warning: PersistentVolume pv-1 names no filesystem: ext4 is taken for it. A volume with another one is not mounted, and left as it is; release it then, and adopt it with --fs-type
`

// unchanged fails unless claim and PersistentVolume are as they were, and nothing was saved.
func unchanged(t *testing.T, r *rig) {
	t.Helper()
	var pv corev1.PersistentVolume
	var maps corev1.ConfigMapList
	if err := r.client.Get(t.Context(), client.ObjectKey{Name: "pv-1"}, &pv); err != nil {
		t.Fatal(err)
	}
	if err := r.client.List(t.Context(), &maps); err != nil {
		t.Fatal(err)
	}
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || len(maps.Items) > 0 {
		t.Errorf("policy %s, %d ConfigMaps", pv.Spec.PersistentVolumeReclaimPolicy, len(maps.Items))
	}
}

func TestAdoptAsks(t *testing.T) {
	r := newRig(t, adoptable()...)
	code, out, errOut := r.run("adopt", "-n", "shop", "data", "--dry-run")
	expect(t, "output", out, adoptPlan+"data: nothing was changed (--dry-run)\n")
	if code != 0 || errOut != "" {
		t.Errorf("exit status %d, errors %q", code, errOut)
	}
	unchanged(t, r)
	r.interactive, r.input = true, "n\n"
	code, out, errOut = r.run("adopt", "-n", "shop", "data")
	expect(t, "output", out, adoptPlan)
	expect(t, "errors", errOut, "Go on? [y/N] error: nothing was changed: answer y, or add --yes\n")
	if code != 1 {
		t.Errorf("exit status %d", code)
	}
	unchanged(t, r)
	code, out, _ = r.run("release", "-n", "shop", "data")
	expect(t, "output", out, "data: it is not adopted: there is nothing to release\n")
	if code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// controller plays kube-controller-manager's part while the command waits.
func controller(t *testing.T, r *rig) {
	var pvs corev1.PersistentVolumeList
	var claim corev1.PersistentVolumeClaim
	if err := r.client.List(t.Context(), &pvs); err != nil {
		t.Fatal(err)
	}
	there := r.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, &claim) == nil
	for i := range pvs.Items {
		pv := &pvs.Items[i]
		switch {
		case !there:
			pv.Status.Phase = corev1.VolumeReleased
		case claim.Spec.VolumeName == pv.Name: // the fake gives no UID
			pv.Status.Phase, claim.Status.Phase = corev1.VolumeBound, corev1.ClaimBound
			if err := r.client.Status().Update(t.Context(), &claim); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.client.Status().Update(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAdoptAndRelease(t *testing.T) {
	r := newRig(t, adoptable()...)
	for range 8 {
		r.clock.ticks = append(r.clock.ticks, func() { controller(t, r) })
	}
	file := filepath.Join(t.TempDir(), "data.yaml")
	code, out, errOut := r.run("adopt", "-n", "shop", "data", "--yes", "--storage-class", "cached", "--cache-size", "10%", "--fs-type", "xfs", "--save", file)
	if code != 0 || !strings.HasSuffix(out, "data: done: it has a cache in front; start its pods\n") {
		t.Fatalf("exit status %d, errors %q, output\n%s", code, errOut, out)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "kind: PersistentVolumeClaim\n") || !strings.Contains(string(text), "volumeHandle: h\n") {
		t.Errorf("saved are %v\n%s", err, text)
	}
	var front corev1.PersistentVolume
	if err := r.client.Get(t.Context(), client.ObjectKey{Name: "adopted-c1"}, &front); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"backend": "csi", "originPersistentVolume": "adopted-c1-origin", "cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "cacheSize": "10%"}
	if got := front.Spec.CSI.VolumeAttributes; len(got) != len(want) || got["cacheSize"] != "10%" || got["cacheMode"] != "writeback" || got["originPersistentVolume"] != "adopted-c1-origin" || front.Spec.CSI.FSType != "xfs" {
		t.Errorf("attributes %v, want %v; fsType %s", got, want, front.Spec.CSI.FSType)
	}
	code, out, errOut = r.run("release", "-n", "shop", "pvc/data", "--yes")
	if code != 0 || !strings.HasSuffix(out, "data: set PersistentVolume pv-1 on Delete, as it was\ndata: delete the saved manifests\ndata: done: it is given back, without a cache; start its pods\n") {
		t.Errorf("exit status %d, errors %q, output\n%s", code, errOut, out)
	}
	unchanged(t, r)
}

func TestAdoptRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"adopt data":                                                      "adopt deletes the claim and makes it again, and there is nobody to ask: look at it with --dry-run, then add --yes",
		"release data":                                                    "release deletes the claim and makes it again, and there is nobody to ask: look at it with --dry-run, then add --yes",
		"adopt":                                                           "adopt takes 1 argument(s), got 0: write `kubectl nearflash adopt PVC`",
		"adopt pv/x --yes":                                                "\"pv/x\" does not name a claim: write `kubectl nearflash adopt PVC`",
		"adopt -n shop data --yes --timeout -1s":                          "--timeout -1s is negative",
		"adopt -n shop none --yes":                                        "none: there is no claim none in namespace shop",
		"release -n shop none --yes":                                      "none: there is no claim none in namespace shop, and none of the name was adopted",
		"adopt -n shop data --yes --fs-type btrfs":                        "--fs-type btrfs is not known: accepted are ext4, xfs",
		"adopt -n shop data --yes --cache-mode fast":                      "the flags of the cache: volumeAttribute cacheMode: \"fast\" is not accepted; accepted are none, writethrough, writeback, writeback-unsafe",
		"adopt -n shop data --yes --cache-mode writeback":                 "the flags of the cache: volumeAttribute acceptDirtyLoss",
		"adopt -n shop data --yes --cache-size 0":                         "the flags of the cache: volumeAttribute cacheSize",
		"adopt -n shop data --yes --storage-class disks":                  "--storage-class disks has the provisioner disks.example.org: accepted are those with csi.nearflash.io",
		"adopt -n shop data --yes --storage-class none":                   "--storage-class none: there is no such StorageClass",
		"adopt -n shop data --yes --origins-namespace none":               "--origins-namespace none: there is no such namespace",
		"adopt -n shop data --yes --save /nowhere/data.yaml":              "--save /nowhere/data.yaml: ",
		"adopt -n shop data --dry-run --origins-namespace o --cache-mode": "flag needs an argument: --cache-mode",
	} {
		t.Run(args, func(t *testing.T) {
			r := newRig(t, adoptable()...)
			code, _, errOut := r.run(strings.Fields(args)...)
			if code != 1 || !strings.HasPrefix(errOut, "error: "+want) || strings.Count(errOut, "\n") != 1 {
				t.Errorf("exit status %d, errors %q, want %q", code, errOut, want)
			}
			unchanged(t, r)
		})
	}
	for names, want := range map[string]string{
		"":    "error: no namespace of origins is found by the chart's labels",
		"a b": "error: 2 namespaces have the labels of origins: name one of a, b with --origins-namespace\n",
	} {
		objs := adoptable()[:5]
		for _, n := range strings.Fields(names) {
			objs = append(objs, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"app.kubernetes.io/name": "nearflash", "app.kubernetes.io/component": "origins"}}})
		}
		if _, _, errOut := newRig(t, objs...).run("adopt", "-n", "shop", "data", "--yes"); !strings.HasPrefix(errOut, want) {
			t.Errorf("errors %q, want %q", errOut, want)
		}
	}
}

// TestAdoptUnanswered: a command that loses the API server in the middle says that it can be
// repeated, one that is refused does not.
func TestAdoptUnanswered(t *testing.T) {
	lost := &url.Error{Op: "Delete", URL: "https://192.0.2.1/", Err: errors.New("http2: client connection lost")}
	r := newRig(t, adoptable()...)
	r.client = interceptor.NewClient(r.client.(client.WithWatch), interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return lost },
	})
	const hint = "nothing is lost, and the same command goes on"
	if code, _, errOut := r.run("adopt", "-n", "shop", "data", "--yes"); code != 1 || !strings.Contains(errOut, lost.Error()+": "+hint) {
		t.Errorf("exit status %d, errors %q", code, errOut)
	}
	if code, _, errOut := r.run("adopt", "-n", "shop", "missing", "--yes"); code != 1 || strings.Contains(errOut, hint) {
		t.Errorf("exit status %d, errors %q", code, errOut)
	}
}
