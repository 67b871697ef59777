package csitest

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// front is the driver whose PersistentVolumes lie over those of the other one.
const front = "csi.nearflash.io"

// Serve makes a namespace of pods with claims, which are served as Kubernetes does it: a claim
// gets the PersistentVolume that is reserved for its name, or else a new one of the other
// driver; one that pods use does not go.
func (c *Cluster) Serve(t testing.TB, namespace string) {
	t.Helper()
	if err := c.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = append(c.apps, namespace)
}

// served are the namespaces of pods.
func (c *Cluster) served() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.apps)
}

// serves reports whether a PersistentVolume is this cluster's: of the other driver, or in
// front of one, for a claim of its pods.
func (c *Cluster) serves(pv *corev1.PersistentVolume) bool {
	if pv.Spec.CSI == nil {
		return false
	}
	return pv.Spec.CSI.Driver == c.Driver ||
		pv.Spec.CSI.Driver == front && pv.Spec.ClaimRef != nil && slices.Contains(c.served(), pv.Spec.ClaimRef.Namespace)
}

// used reports whether a pod uses a claim.
func (c *Cluster) used(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	pods := &corev1.PodList{}
	if c.api.List(ctx, pods, client.InNamespace(claim.Namespace)) != nil {
		return true
	}
	return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name
		})
	})
}

// bindReserved binds a claim to the PersistentVolume that it names, or that is reserved for it,
// by Kubernetes' own rule. It reports whether there is one.
func (c *Cluster) bindReserved(ctx context.Context, claim *corev1.PersistentVolumeClaim, pvs []corev1.PersistentVolume) bool {
	var pv *corev1.PersistentVolume
	var reserved []*corev1.PersistentVolume
	for i := range pvs {
		p := &pvs[i]
		if claim.Spec.VolumeName == p.Name {
			pv = p
		}
		if p.Spec.ClaimRef != nil {
			reserved = append(reserved, p)
		}
	}
	if claim.Spec.VolumeName == "" {
		pv, _ = volume.FindMatchingVolume(claim, reserved, nil, nil, false, true) // none is an answer
	}
	if pv == nil || !volume.IsVolumeBoundToClaim(pv, claim) {
		return false
	}
	if pv.Spec.ClaimRef.UID == "" {
		pv.Spec.ClaimRef.UID = claim.UID
		if c.api.Update(ctx, pv) != nil {
			return true
		}
	}
	if pv.Status.Phase != corev1.VolumeBound {
		pv.Status.Phase = corev1.VolumeBound
		_ = c.api.Status().Update(ctx, pv)
	}
	if claim.Spec.VolumeName == "" {
		claim.Spec.VolumeName = pv.Name
		if c.api.Update(ctx, claim) != nil {
			return true
		}
	}
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: pv.Spec.Capacity, AccessModes: pv.Spec.AccessModes}
	_ = c.api.Status().Update(ctx, claim)
	return true
}

// end lets a PersistentVolume go that was deleted and that no claim has.
func (c *Cluster) end(ctx context.Context, pv *corev1.PersistentVolume) {
	if pv.DeletionTimestamp == nil || !slices.Contains(pv.Finalizers, volumeFinal) {
		return
	}
	claim := &corev1.PersistentVolumeClaim{}
	if ref := pv.Spec.ClaimRef; c.api.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, claim) == nil && claim.UID == ref.UID {
		return
	}
	pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(f string) bool { return f == volumeFinal })
	_ = c.api.Update(ctx, pv)
}
