package adopt

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// Attributes of a static PersistentVolume (pkg/driver, static.go).
const (
	keyBackend  = "backend"
	keyOriginPV = "originPersistentVolume"
	backendCSI  = "csi"
)

// driverName is the CSI driver of nearflash.
const driverName = "csi.nearflash.io"

// binding are the annotations that say how and where a claim or a PersistentVolume was bound
// (kubernetes, pkg/controller/volume/persistentvolume): of another object, they would mislead.
var binding = []string{
	"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller", "volume.kubernetes.io/selected-node",
	"volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-resizer",
}

// unbound are annotations without those of a binding.
func unbound(in map[string]string) map[string]string {
	out := maps.Clone(in)
	for _, k := range binding {
		delete(out, k)
	}
	delete(out, annotationTouched)
	return out
}

// reserved is a claim by its name alone: whoever is called so is meant, and nobody else.
func reserved(namespace, name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name}
}

// frontVolume is the PersistentVolume of nearflash: to the claim, what the original was.
func (j *journal) frontVolume() *corev1.PersistentVolume {
	old, src := &j.Volume.Spec, source(j.Volume)
	attributes := maps.Clone(j.Attributes)
	if attributes == nil {
		attributes = map[string]string{}
	}
	attributes[keyBackend], attributes[keyOriginPV] = backendCSI, j.origin()
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: j.front(), Labels: maps.Clone(j.Volume.Labels), Annotations: map[string]string{annotationFrom: j.Volume.Name},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: old.Capacity.DeepCopy(), AccessModes: j.Claim.Spec.AccessModes, VolumeMode: old.VolumeMode,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              old.StorageClassName, MountOptions: old.MountOptions, NodeAffinity: old.NodeAffinity.DeepCopy(),
			ClaimRef: reserved(j.Claim.Namespace, j.Claim.Name),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: j.front(), FSType: j.FSType, VolumeAttributes: attributes,
				NodeStageSecretRef: src.NodeStageSecretRef.DeepCopy(), NodeExpandSecretRef: src.NodeExpandSecretRef.DeepCopy(),
			}},
		},
	}
}

// blockVolume is the raw block PersistentVolume of the same volume. It is for the claim that
// pkg/backend/csi makes, from its first moment on. One of an in-tree kind stays of that: drivers look at
// such PersistentVolumes themselves (vSphere's knows a disk by its path there alone).
func (j *journal) blockVolume(origins string) *corev1.PersistentVolume {
	old := &j.Volume.Spec
	src := *old.PersistentVolumeSource.DeepCopy()
	if src.CSI != nil {
		src.CSI.FSType = ""
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: j.origin(), Labels: maps.Clone(j.Volume.Labels), Annotations: map[string]string{annotationFrom: j.Volume.Name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: old.Capacity.DeepCopy(), AccessModes: j.Claim.Spec.AccessModes, VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              old.StorageClassName, NodeAffinity: old.NodeAffinity.DeepCopy(),
			ClaimRef:               reserved(origins, j.front()),
			PersistentVolumeSource: src,
		},
	}
}

// originalVolume is the original PersistentVolume again. It is on Retain until its claim is
// bound.
func (j *journal) originalVolume() *corev1.PersistentVolume {
	spec := j.Volume.Spec.DeepCopy()
	spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	spec.ClaimRef = reserved(j.Claim.Namespace, j.Claim.Name)
	if j.Capacity != nil && j.Capacity.Cmp(*spec.Capacity.Storage()) > 0 {
		spec.Capacity[corev1.ResourceStorage] = j.Capacity.DeepCopy()
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: j.Volume.Name, Labels: maps.Clone(j.Volume.Labels), Annotations: unbound(j.Volume.Annotations)},
		Spec:       *spec,
	}
}

// claimFor is the claim again, for a PersistentVolume. What a claim was once made of (a
// snapshot, another claim) is left out: the data are there, and a populator might fill them in
// again.
func (j *journal) claimFor(pv string) *corev1.PersistentVolumeClaim {
	old := j.Claim
	out := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: old.Namespace, Name: old.Name, Labels: merged(old.Labels, j.Labels), Annotations: unbound(merged(old.Annotations, j.Annotations)),
			OwnerReferences: old.OwnerReferences,
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: old.Spec.AccessModes, Selector: old.Spec.Selector.DeepCopy(), Resources: *old.Spec.Resources.DeepCopy(),
			VolumeName: pv, VolumeMode: old.Spec.VolumeMode,
			// Without a name the API server would put in that of the default class.
			StorageClassName: ptr.To(volume.GetPersistentVolumeClass(j.Volume)),
		},
	}
	if j.Direction != toCache && j.Owners != nil {
		out.OwnerReferences = j.Owners
	}
	if j.Request != nil && j.Request.Cmp(*old.Spec.Resources.Requests.Storage()) > 0 {
		out.Spec.Resources.Requests[corev1.ResourceStorage] = j.Request.DeepCopy()
	}
	return out
}

// merged is a map with what was changed later.
func merged(first, later map[string]string) map[string]string {
	out := maps.Clone(first)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, later)
	return out
}

// fits reports whether Kubernetes binds a claim that names no PersistentVolume to one that is
// reserved for its name: this is the function by which it does.
func fits(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) bool {
	for _, m := range claim.Spec.AccessModes {
		if !slices.Contains(pv.Spec.AccessModes, m) {
			return false
		}
	}
	found, err := volume.FindMatchingVolume(claim, []*corev1.PersistentVolume{pv}, nil, nil, false, true)
	return err == nil && found != nil
}

// kept reports whether a PersistentVolume is on Retain, the policy under which nothing deletes a volume.
func kept(pv *corev1.PersistentVolume) bool {
	return pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
}

// requested is what a claim asks for.
func requested(c *corev1.PersistentVolumeClaim) resource.Quantity {
	return *c.Spec.Resources.Requests.Storage()
}

// foreignFinalizers are those that somebody else than Kubernetes and the CSI sidecars has put
// on an object: it would not go. That of the controller of PersistentVolumes is taken off what a plugin
// in its place has made, and of nothing else (modifyDeletionFinalizers in pv_controller_base.go).
func foreignFinalizers(o metav1.Object) []string {
	var out []string
	_, made := o.GetAnnotations()["pv.kubernetes.io/provisioned-by"]
	for _, f := range o.GetFinalizers() {
		known := f == "kubernetes.io/pvc-protection" || f == "kubernetes.io/pv-protection" || made && f == "kubernetes.io/pv-controller" ||
			strings.HasPrefix(f, "external-attacher/") || strings.HasPrefix(f, "external-provisioner.volume.kubernetes.io/")
		if !known {
			out = append(out, f)
		}
	}
	return out
}
