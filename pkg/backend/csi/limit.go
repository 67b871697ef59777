package csi

import (
	"context"
	"errors"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// refusal is the driver's answer to an attachment, as [attachError] reads it. Drivers answer with
// any code where a node has no place for one more volume: the Persistent Disk driver with
// InvalidArgument. So a failure that says nothing of its cause is judged by what the node takes.
// An answer is never made up: a node that its kubelet calls full is tried all the same.
func (b *Backend) refusal(ctx context.Context, err error, va *storagev1.VolumeAttachment) error {
	if !errors.Is(err, volume.ErrUnavailable) {
		return err
	}
	driver, node := va.Spec.Attacher, va.Spec.NodeName
	object := &storagev1.CSINode{}
	if failed := records.Error("read CSINode "+node, b.api.Get(ctx, client.ObjectKey{Name: node}, object)); failed != nil {
		klog.FromContext(ctx).Info("Whether a node has room for the volumes of a driver is not known", "node", node, "driver", driver, "reason", failed.Error())
		return err
	}
	limit, known := kube.AttachLimit(object, driver)
	if !known {
		return err
	}
	have := int64(0)
	list := &storagev1.VolumeAttachmentList{}
	failed := records.Pages(ctx, b.api, list, "VolumeAttachments", func() bool {
		for i := range list.Items {
			if takesPlace(&list.Items[i], va) {
				have++
			}
		}
		return have < limit
	})
	switch {
	case failed != nil:
		klog.FromContext(ctx).Info("Whether a node has room for the volumes of a driver is not known", "node", node, "driver", driver, "reason", failed.Error())
		return err
	case have < limit:
		return err
	}
	return fmt.Errorf("%w: node %s takes %d volumes of %s, and has as many: %s", volume.ErrNoSpace, node, limit, driver, ptr.Deref(va.Status.AttachError, storagev1.VolumeError{}).Message)
}

// takesPlace reports whether an attachment takes a place on the node that another one could have.
// One that is being deleted does until it is gone.
func takesPlace(one, other *storagev1.VolumeAttachment) bool {
	return one.Name != other.Name && one.Spec.Attacher == other.Spec.Attacher && one.Spec.NodeName == other.Spec.NodeName && one.Status.Attached
}
