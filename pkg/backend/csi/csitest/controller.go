package csitest

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Sidecars has the stand-in ask the controller of a driver that is there, as the sidecars do, where it
// would otherwise only note what it has done. To be called before the first claim. Nodes have the IDs
// of CSINode objects: "a" and "b".
func (c *Cluster) Sidecars(controller csipb.ControllerServer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.controller = controller
}

func (c *Cluster) theirs() csipb.ControllerServer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.controller
}

// capability is what external-provisioner and external-attacher make of a PersistentVolume, for a driver
// without SINGLE_NODE_MULTI_WRITER.
func capability(pv *corev1.PersistentVolume) *csipb.VolumeCapability {
	mode := csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	if len(pv.Spec.AccessModes) != 1 || pv.Spec.AccessModes[0] != corev1.ReadWriteOnce {
		mode = csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	out := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
	}
	if ptr.Deref(pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock {
		out.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	}
	return out
}

// create makes what a PersistentVolume is of.
func (c *Cluster) create(ctx context.Context, pv *corev1.PersistentVolume, size int64) error {
	controller := c.theirs()
	if controller == nil {
		return nil
	}
	made, err := controller.CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name: pv.Name, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csipb.VolumeCapability{capability(pv)},
	})
	if err != nil {
		return err
	}
	v := made.GetVolume()
	pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.VolumeAttributes = v.GetVolumeId(), v.GetVolumeContext()
	pv.Spec.Capacity[corev1.ResourceStorage] = quantity(v.GetCapacityBytes())
	return nil
}

// erase deletes what a PersistentVolume is of.
func (c *Cluster) erase(ctx context.Context, pv *corev1.PersistentVolume) error {
	controller := c.theirs()
	if controller == nil {
		return nil
	}
	_, err := controller.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle})
	return err
}

// grow grows what a PersistentVolume is of, and reports whether its node has a part of that.
func (c *Cluster) grow(ctx context.Context, pv *corev1.PersistentVolume, size int64) (node bool, err error) {
	controller := c.theirs()
	if controller == nil {
		return false, nil
	}
	grown, err := controller.ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}, VolumeCapability: capability(pv),
	})
	return grown.GetNodeExpansionRequired(), err
}

// attach attaches what an attachment names, and returns the metadata for it.
func (c *Cluster) attach(ctx context.Context, va *storagev1.VolumeAttachment, name string) (map[string]string, error) {
	controller := c.theirs()
	if controller == nil {
		return map[string]string{"device": "disk-of-" + name}, nil
	}
	pv, node, err := c.parties(ctx, va, name)
	if err != nil {
		return nil, err
	}
	published, err := controller.ControllerPublishVolume(ctx, &csipb.ControllerPublishVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: node, VolumeCapability: capability(pv), VolumeContext: pv.Spec.CSI.VolumeAttributes,
	})
	return published.GetPublishContext(), err
}

// detach ends that.
func (c *Cluster) detach(ctx context.Context, va *storagev1.VolumeAttachment, name string) error {
	controller := c.theirs()
	if controller == nil {
		return nil
	}
	pv, node, err := c.parties(ctx, va, name)
	if err != nil {
		return err
	}
	_, err = controller.ControllerUnpublishVolume(ctx, &csipb.ControllerUnpublishVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: node})
	return err
}

// parties are the volume of an attachment, and what the driver calls its node.
func (c *Cluster) parties(ctx context.Context, va *storagev1.VolumeAttachment, name string) (pv *corev1.PersistentVolume, id string, err error) {
	pv, node := &corev1.PersistentVolume{}, &storagev1.CSINode{}
	if err := c.api.Get(ctx, types.NamespacedName{Name: name}, pv); err != nil {
		return nil, "", err
	}
	if err := c.api.Get(ctx, types.NamespacedName{Name: va.Spec.NodeName}, node); err != nil {
		return nil, "", err
	}
	for _, d := range node.Spec.Drivers {
		if d.Name == c.Driver {
			id = d.NodeID
		}
	}
	return pv, id, nil
}
