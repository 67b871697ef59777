package csi

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestOnlyOneInTree: PersistentVolumes of in-tree plugins are seen as what their CSI drivers are
// told, whatever their volumeMode: two of one disk are two writers.
func TestOnlyOneInTree(t *testing.T) {
	disk := func(name, id string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			VolumeMode: &mode, Capacity: corev1.ResourceList{},
			PersistentVolumeSource: corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}},
		}}
	}
	block, files := corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem
	ofDriver := disk("other", "", block)
	ofDriver.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-1"}}
	local := disk("other", "", block)
	local.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/dev/x"}}
	for name, tc := range map[string]struct {
		origin, other *corev1.PersistentVolume
		used          bool
	}{
		"in-tree beside in-tree":               {disk("pv", "vol-1", block), disk("other", "vol-1", block), true},
		"in-tree with files":                   {disk("pv", "vol-1", block), disk("other", "vol-1", files), true},
		"in-tree with a zone":                  {disk("pv", "vol-1", block), disk("other", "aws://eu-1a/vol-1", files), true},
		"in-tree beside one of the CSI driver": {disk("pv", "vol-1", block), ofDriver, true},
		"another disk":                         {disk("pv", "vol-1", block), disk("other", "vol-2", block), false},
		"no driver":                            {disk("pv", "vol-1", block), local, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := New(Config{Client: fake.NewClientBuilder().WithObjects(tc.origin, tc.other).Build()})
			_, err := b.lookCreate(t.Context(), "v", backend.Request{Origin: volume.Origin{PV: "pv"}})
			if tc.used {
				want(t, err, volume.ErrInUse, "other", "the only one")
				return
			}
			must(t, err)
		})
	}
}

// TestInline: a pod may name a disk itself, and then there is no PersistentVolume of it.
func TestInline(t *testing.T) {
	disk := corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{VolumeMode: ptr.To(corev1.PersistentVolumeBlock), PersistentVolumeSource: disk}}
	for name, id := range map[string]string{"the same": "vol-1", "another": "vol-2"} {
		inline := &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: id}}}
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n", Source: storagev1.VolumeAttachmentSource{InlineVolumeSpec: inline}}}
		b := New(Config{Client: fake.NewClientBuilder().WithObjects(pv.DeepCopy(), va).Build()})
		_, err := b.lookCreate(t.Context(), "v", backend.Request{Origin: volume.Origin{PV: "pv"}})
		if name == "another" {
			must(t, err)
			continue
		}
		want(t, err, volume.ErrInUse, "VolumeAttachment va to node n", "stop the pod")
	}
}

// TestOnTheNode: what the kubelet would tell a driver by the PersistentVolume goes with the attachment.
func TestOnTheNode(t *testing.T) {
	pv := of(nil, nil).pv
	src := pv.Spec.CSI
	if got := secretNames(src); got != nil || checkSecrets("pv", got) != nil || accessMode(pv) != "" {
		t.Errorf("of one that names nothing: %+v, %q", got, accessMode(pv))
	}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	src.NodeStageSecretRef = &corev1.SecretReference{Namespace: "n", Name: "s"}
	src.NodePublishSecretRef = &corev1.SecretReference{Namespace: "n", Name: "s"}
	src.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "n", Name: "g"}
	if got, want := *secretNames(src), (volume.SecretNames{Stage: "n/s", Publish: "n/s", Expand: "n/g"}); got != want || accessMode(pv) != "ReadWriteOncePod" {
		t.Errorf("%+v, want %+v, %q", got, want, accessMode(pv))
	}
	must(t, usable(t.Context(), pv, true, false))
	src.NodePublishSecretRef.Name = "p"
	for _, static := range []bool{true, false} {
		want(t, usable(t.Context(), pv, static, false), volume.ErrInvalid, "n/p", "n/s", "nodePublishSecretRef")
	}
	must(t, usable(t.Context(), pv, true, true))
}

// TestAccessModes: a driver is never asked by a mode for several nodes.
func TestAccessModes(t *testing.T) {
	const once, pod, many, read = corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany, corev1.ReadOnlyMany
	for name, tc := range map[string]struct {
		modes []corev1.PersistentVolumeAccessMode
		want  string
		ok    bool
	}{
		"once":             {[]corev1.PersistentVolumeAccessMode{once}, "", true},
		"one pod":          {[]corev1.PersistentVolumeAccessMode{pod}, "ReadWriteOncePod", true},
		"both":             {[]corev1.PersistentVolumeAccessMode{pod, once}, "", true},
		"many first":       {[]corev1.PersistentVolumeAccessMode{many, once}, "", false},
		"many, or one pod": {[]corev1.PersistentVolumeAccessMode{many, pod}, "ReadWriteOncePod", false},
		"many":             {[]corev1.PersistentVolumeAccessMode{many}, "", false},
		"once, or to read": {[]corev1.PersistentVolumeAccessMode{once, read}, "", false},
		"none":             {nil, "", false},
		"to read":          {[]corev1.PersistentVolumeAccessMode{read}, "", false},
	} {
		pv := of(nil, nil).pv
		pv.Spec.AccessModes = tc.modes
		if got := accessMode(pv); got != tc.want {
			t.Errorf("%s: %q", name, got)
		}
		pv.Spec.ClaimRef = nil
		step, err := decideCreate("vol", createFacts{origin: pv}, backend.Request{Origin: volume.Origin{PV: pv.Name}})
		if (err == nil) != tc.ok || tc.ok && step != createClaim {
			t.Errorf("%s: %v, %v", name, step, err)
		} else if !tc.ok {
			want(t, err, volume.ErrInvalid, "access modes", "ReadWriteOnce")
		}
	}
}

// TestFound: Kubernetes binds a claim to any PersistentVolume of its class that nobody has, which may
// have been provisioned for somebody else. It is no new volume, and keeps its data.
func TestFound(t *testing.T) {
	request := backend.Request{SizeBytes: mib, Origin: volume.Origin{StorageClass: "class"}}
	bound := func(generation int64, policy corev1.PersistentVolumeReclaimPolicy) createFacts {
		f := of(nil, nil)
		f.generation, f.pv.Spec.PersistentVolumeReclaimPolicy = generation, policy
		f.pv.Annotations[annotationFound] = "yes"
		return createFacts{facts: f}
	}
	for name, tc := range map[string]struct {
		facts createFacts
		want  createStep
		err   error
	}{
		"on Delete":   {bound(0, corev1.PersistentVolumeReclaimDelete), createKeep, nil},
		"kept":        {bound(0, corev1.PersistentVolumeReclaimRetain), createDiscard, volume.ErrUnavailable},
		"of a volume": {bound(2, corev1.PersistentVolumeReclaimRetain), createDone, nil}, // since an earlier version
	} {
		step, err := decideCreate("v", tc.facts, request)
		if step != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, %v", name, step, err)
		}
		if tc.err != nil {
			want(t, err, tc.err, "PersistentVolume pv", "there before")
		}
	}
	f := of(nil, nil)
	f.generation = 0
	if step, err := decideCreate("v", createFacts{facts: f}, request); step != createDone || err != nil {
		t.Errorf("what was provisioned for the claim: %v, %v", step, err)
	}
}

// TestDecideTake: the claim of an origin that was there is a new record's of the name, whoever is
// admitted; one that was made for a request stays that one's.
func TestDecideTake(t *testing.T) {
	static := of(to("a", "1"), map[string]string{annotationStatic: "pv"})
	made := of(nil, nil)
	for _, f := range []facts{static, made} {
		f.claim.Labels = map[string]string{LabelOwner: "before"}
	}
	req := backend.Request{UID: "now", Origin: volume.Origin{PV: "pv"}}
	step, err := decideCreate("v", createFacts{facts: static}, req)
	if err != nil || step != createTake {
		t.Errorf("of an origin that was there: %d, %v", step, err)
	}
	req.Origin.PV = "another"
	_, err = decideCreate("v", createFacts{facts: static}, req)
	want(t, err, volume.ErrExists)
	_, err = decideCreate("v", createFacts{facts: made}, backend.Request{UID: "now", SizeBytes: mib, Origin: volume.Origin{StorageClass: "class"}})
	want(t, err, volume.ErrExists, "owner")
	static.claim.DeletionTimestamp = ptr.To(metav1.Now())
	_, err = decideCreate("v", createFacts{facts: static}, backend.Request{UID: "now", Origin: volume.Origin{PV: "pv"}})
	want(t, err, volume.ErrBusy)
}
