package csitest

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	selectedNode  = "volume.kubernetes.io/selected-node"
	provisionedBy = "pv.kubernetes.io/provisioned-by"
	claimFinal    = "kubernetes.io/pvc-protection"
	volumeFinal   = "kubernetes.io/pv-protection"
)

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

// volume is a PersistentVolume of the driver.
func (c *Cluster) volume(name string, size int64, class string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: quantity(size)}, VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: class,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: c.Driver, VolumeHandle: "handle-of-" + name, VolumeAttributes: map[string]string{"pool": "p"},
			}},
		},
	}
}

// claim does what a claim needs next: it provisions, binds and expands.
func (c *Cluster) claim(ctx context.Context, claim *corev1.PersistentVolumeClaim, b Behaviour, pvs []corev1.PersistentVolume) {
	ours := claim.Namespace == c.Namespace
	switch {
	case claim.DeletionTimestamp != nil:
		if slices.Contains(claim.Finalizers, claimFinal) && (ours || !c.used(ctx, claim)) {
			claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == claimFinal })
			_ = c.api.Update(ctx, claim)
		}
	case claim.Status.Phase == corev1.ClaimBound:
		if i := slices.IndexFunc(pvs, func(pv corev1.PersistentVolume) bool { return pv.Name == claim.Spec.VolumeName }); i >= 0 {
			c.expand(ctx, claim, &pvs[i], b)
		}
	case b.HoldBind:
	case claim.Spec.VolumeName != "" && ours:
		c.bind(ctx, claim)
	case !ours && c.bindReserved(ctx, claim, pvs), claim.Spec.VolumeName != "":
	default:
		c.provision(ctx, claim, b)
	}
}

// provision makes the PersistentVolume of a claim, or refuses.
func (c *Cluster) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, b Behaviour) {
	class := ptr.Deref(claim.Spec.StorageClassName, "")
	node := claim.Annotations[selectedNode]
	size := claim.Spec.Resources.Requests.Storage().Value() + b.Larger
	switch {
	case class == c.Class("late") && node == "":
		return
	case node != "" && node == b.RefuseNode:
		c.event(ctx, claim, "ProvisioningFailed", "rpc error: code = ResourceExhausted desc = nothing left on "+node)
		delete(claim.Annotations, selectedNode)
		_ = c.api.Update(ctx, claim)
		return
	case !c.take(size):
		c.event(ctx, claim, "ProvisioningFailed", fmt.Sprintf("failed to provision volume: rpc error: code = ResourceExhausted desc = no %d bytes left", size))
		return
	}
	content, err := c.begin(ctx, claim, size)
	if err != nil {
		c.take(-size)
		c.event(ctx, claim, "ProvisioningFailed", "failed to provision volume: "+err.Error())
		return
	}
	pv := c.volume("pvc-"+string(claim.UID), size, class)
	pv.Annotations, pv.Spec.NodeAffinity = map[string]string{provisionedBy: c.Driver}, b.Affinity
	pv.Spec.AccessModes = claim.Spec.AccessModes
	if mode := claim.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeFilesystem {
		pv.Spec.VolumeMode, pv.Spec.CSI.FSType = mode, "ext4"
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	if err := c.create(ctx, pv, size); err != nil {
		c.take(-size)
		c.event(ctx, claim, "ProvisioningFailed", "failed to provision volume: "+err.Error())
		return
	}
	if err := c.api.Create(ctx, pv); err != nil {
		c.take(-size)
		if !apierrors.IsAlreadyExists(err) {
			return
		}
	} else {
		c.mu.Lock()
		c.contents[pv.Name] = content
		c.mu.Unlock()
	}
	claim.Spec.VolumeName = pv.Name
	_ = c.api.Update(ctx, claim)
}

// take takes space, and reports whether there was enough.
func (c *Cluster) take(size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if size > c.free {
		return false
	}
	c.free -= size
	return true
}

// bind binds a claim to the PersistentVolume that it names, if that one is for it.
func (c *Cluster) bind(ctx context.Context, claim *corev1.PersistentVolumeClaim) {
	pv := &corev1.PersistentVolume{}
	if c.api.Get(ctx, types.NamespacedName{Name: claim.Spec.VolumeName}, pv) != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return
	}
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: pv.Spec.Capacity, AccessModes: pv.Spec.AccessModes}
	_ = c.api.Status().Update(ctx, claim)
}

// expand grows a claim that asks for more.
func (c *Cluster) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, b Behaviour) {
	want, have := claim.Spec.Resources.Requests.Storage().Value(), pv.Spec.Capacity.Storage().Value()
	if want <= have || claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizePending {
		return
	}
	if !c.take(want - have) {
		c.event(ctx, claim, "VolumeResizeFailed", fmt.Sprintf("resize volume failed: rpc error: code = ResourceExhausted desc = no %d bytes left", want-have))
		return
	}
	onNode, err := c.grow(ctx, pv, want)
	if err != nil {
		c.take(have - want)
		c.event(ctx, claim, "VolumeResizeFailed", "resize volume failed: "+err.Error())
		return
	}
	pv.Spec.Capacity[corev1.ResourceStorage] = quantity(want)
	if c.api.Update(ctx, pv) != nil {
		c.take(have - want)
		return
	}
	if b.NodeStep || onNode {
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
		claim.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceStorage: quantity(want)}
		claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
	} else {
		claim.Status.Capacity = pv.Spec.Capacity
	}
	_ = c.api.Status().Update(ctx, claim)
}

// volumes deletes or keeps the PersistentVolumes whose claims are gone.
func (c *Cluster) volumes(ctx context.Context, pvs []corev1.PersistentVolume, live map[types.UID]bool) {
	for i := range pvs {
		pv := &pvs[i]
		if !c.serves(pv) || pv.Spec.ClaimRef == nil || live[pv.Spec.ClaimRef.UID] {
			continue
		}
		if pv.Spec.ClaimRef.UID == "" {
			c.end(ctx, pv)
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := c.api.Get(ctx, types.NamespacedName{Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.ClaimRef.Name}, claim)
		if err == nil && claim.UID == pv.Spec.ClaimRef.UID || err != nil && !apierrors.IsNotFound(err) {
			continue
		}
		if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
			if pv.Status.Phase != corev1.VolumeReleased {
				pv.Status.Phase = corev1.VolumeReleased
				_ = c.api.Status().Update(ctx, pv)
			}
			c.end(ctx, pv)
			continue
		}
		if node := c.Attached()[pv.Name]; node != "" {
			c.mu.Lock()
			c.wrong = append(c.wrong, fmt.Sprintf("%s is deleted while it is attached to %s", pv.Name, node))
			c.mu.Unlock()
		}
		if err := c.erase(ctx, pv); err != nil {
			c.mu.Lock()
			c.wrong = append(c.wrong, fmt.Sprintf("%s is not deleted: %v", pv.Name, err))
			c.mu.Unlock()
			continue
		}
		pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(f string) bool { return f == volumeFinal })
		if c.api.Update(ctx, pv) != nil || c.api.Delete(ctx, pv) != nil {
			continue
		}
		c.mu.Lock()
		c.deleted = append(c.deleted, pv.Spec.ClaimRef.Name)
		c.erased = append(c.erased, pv.Spec.CSI.VolumeHandle)
		c.free += pv.Spec.Capacity.Storage().Value()
		c.mu.Unlock()
	}
}
