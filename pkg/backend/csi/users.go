package csi

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/pvsource"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// foreignUser names who uses an origin besides us, "" if nobody does: a VolumeAttachment of
// its PersistentVolume that is not ours, or a pod with the claim, which makes one, or would if
// the driver had any.
func (b *Backend) foreignUser(ctx context.Context, id volume.ID, pv string) (string, error) {
	own, user := b.attachmentName(id), ""
	attachments := &storagev1.VolumeAttachmentList{}
	err := records.Pages(ctx, b.api, attachments, "VolumeAttachments", func() bool {
		for i := range attachments.Items {
			va := &attachments.Items[i]
			if pv != "" && ptr.Deref(va.Spec.Source.PersistentVolumeName, "") == pv && va.Name != own {
				user = fmt.Sprintf("VolumeAttachment %s to node %s", va.Name, va.Spec.NodeName)
			}
		}
		return user == ""
	})
	if err != nil || user != "" {
		return user, err
	}
	pods := &corev1.PodList{}
	err = records.Pages(ctx, b.api, pods, "pods", func() bool {
		if i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return uses(&p, string(id)) }); i >= 0 {
			user = fmt.Sprintf("pod %s/%s", b.namespace, pods.Items[i].Name)
		}
		return user == ""
	}, client.InNamespace(b.namespace))
	return user, err
}

// onlyOne returns ErrInUse if another PersistentVolume is of the same volume: whoever uses that
// one, on the same node too, nobody would keep out. One of an in-tree plugin is compared by what its
// CSI driver is told; what has no such form, Kubernetes attaches nowhere.
func (b *Backend) onlyOne(ctx context.Context, name string, src *corev1.CSIPersistentVolumeSource) error {
	other := ""
	all := &corev1.PersistentVolumeList{}
	err := records.Pages(ctx, b.api, all, "PersistentVolumes", func() bool {
		for i := range all.Items {
			pv := &all.Items[i]
			if pv.Name == name {
				continue
			}
			if c, err := pvsource.Of(pv); err == nil && pvsource.Same(c, src) {
				other = pv.Name
			}
		}
		return other == ""
	})
	if err == nil && other != "" {
		err = fmt.Errorf("%w: PersistentVolume %s is of the same volume of %s as %s, which shall be an origin: accepted is the only one of it", volume.ErrInUse, other, src.Driver, name)
	}
	if err != nil {
		return err
	}
	return b.notInline(ctx, name, src)
}

// notInline returns ErrInUse if a pod that names the volume itself, by an in-tree kind and without a
// PersistentVolume, has it attached.
func (b *Backend) notInline(ctx context.Context, name string, src *corev1.CSIPersistentVolumeSource) error {
	user := ""
	all := &storagev1.VolumeAttachmentList{}
	err := records.Pages(ctx, b.api, all, "VolumeAttachments", func() bool {
		for i := range all.Items {
			va := &all.Items[i]
			inline := va.Spec.Source.InlineVolumeSpec
			if inline == nil {
				continue
			}
			if c, err := pvsource.Of(&corev1.PersistentVolume{Spec: *inline}); err == nil && pvsource.Same(c, src) {
				user = fmt.Sprintf("VolumeAttachment %s to node %s", va.Name, va.Spec.NodeName)
			}
		}
		return user == ""
	})
	if err == nil && user != "" {
		err = fmt.Errorf("%w: %s is of a pod that names the volume of %s itself, which shall be an origin as PersistentVolume %s: stop the pod", volume.ErrInUse, user, src.Driver, name)
	}
	return err
}

// uses reports whether a pod that has not ended has a claim.
func uses(p *corev1.Pod, claim string) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// unused returns ErrInUse if anybody but us uses an origin.
func (b *Backend) unused(ctx context.Context, id volume.ID, pv string) error {
	user, err := b.foreignUser(ctx, id, pv)
	if err == nil && user != "" {
		err = fmt.Errorf("%w: %s uses PersistentVolume %s, which is the origin of volume %s", volume.ErrInUse, user, pv, id)
	}
	return err
}
