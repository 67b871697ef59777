package csi

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/pvsource"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// source returns what a CSI driver knows of a PersistentVolume. One of an in-tree plugin that
// was moved to a CSI driver is translated, as external-attacher does. Errors: ErrInvalid.
func source(pv *corev1.PersistentVolume) (*corev1.CSIPersistentVolumeSource, error) {
	if mode := ptr.Deref(pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem); mode != corev1.PersistentVolumeBlock {
		return nil, fmt.Errorf("%w: PersistentVolume %s has volumeMode %s: accepted as an origin is Block", volume.ErrInvalid, pv.Name, mode)
	}
	return pvsource.Of(pv)
}

// attaches reports whether a driver has an attachment that can be ended: without one nothing
// of Kubernetes keeps a node out. A driver without a CSIDriver object is taken to have one,
// as Kubernetes does.
func (b *Backend) attaches(ctx context.Context, driver string) (bool, error) {
	object := &storagev1.CSIDriver{}
	err := records.Error("read CSIDriver "+driver, b.api.Get(ctx, client.ObjectKey{Name: driver}, object))
	if errors.Is(err, volume.ErrNotFound) {
		return true, nil
	}
	return ptr.Deref(object.Spec.AttachRequired, true), err
}

// fences reports whether a detach by a driver keeps a node out.
func (b *Backend) fences(ctx context.Context, driver string) (bool, error) {
	if volume.EmptyDetach(driver) {
		return false, nil
	}
	return b.attaches(ctx, driver)
}

// Fenced reports whether the end of an admission keeps the node out: whether the driver of
// the volume, or of the origin that it is to be made of, has something that is detached
// (CSIDriver spec.attachRequired), and does detach it. Errors: ErrInvalid if the class or the PersistentVolume is
// not there or cannot be an origin; ErrUnavailable.
func (b *Backend) Fenced(ctx context.Context, id volume.ID, o volume.Origin) (bool, error) {
	f, err := b.look(ctx, id)
	if err != nil {
		return false, err
	}
	pv := f.pv
	if pv == nil && o.PV != "" {
		if pv, err = b.origin(ctx, o.PV); err != nil {
			return false, err
		}
	}
	if pv == nil {
		class, err := b.class(ctx, o.StorageClass)
		if err != nil {
			return false, err
		}
		return b.fences(ctx, class.Provisioner)
	}
	src, err := source(pv)
	if err != nil {
		return false, err
	}
	return b.fences(ctx, src.Driver)
}

// origin returns a PersistentVolume that is there. Errors: ErrInvalid if it is not.
func (b *Backend) origin(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	pv, err := b.persistentVolume(ctx, name)
	if err == nil && pv == nil {
		err = fmt.Errorf("%w: no PersistentVolume %s: accepted as an origin is one that exists", volume.ErrInvalid, name)
	}
	return pv, err
}

// class returns a StorageClass. Errors: ErrInvalid if there is none.
func (b *Backend) class(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	class := &storagev1.StorageClass{}
	err := records.Error("read StorageClass "+name, b.api.Get(ctx, client.ObjectKey{Name: name}, class))
	if errors.Is(err, volume.ErrNotFound) {
		return nil, fmt.Errorf("%w: no StorageClass %q: accepted for origins is a class of another CSI driver", volume.ErrInvalid, name)
	}
	return class, err
}

// registered tells whether the kubelet of a node knows a driver. Errors: ErrNodeNotFound if not.
func (b *Backend) registered(ctx context.Context, node, driver string) error {
	object := &storagev1.CSINode{}
	err := records.Error("read CSINode "+node, b.api.Get(ctx, client.ObjectKey{Name: node}, object))
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	if !kube.Registered(object, driver) {
		return fmt.Errorf("%w: the kubelet of node %s does not know driver %s, which has the volume's origin: does its node plugin run there?", volume.ErrNodeNotFound, node, driver)
	}
	return nil
}
