package node

import (
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/kube"
)

// attachLimit is how many volumes the scheduler may place on a node, whose origins are all of
// one other driver: those that this driver takes there, but for the volumes that pods use without
// a cache. 0 is no limit.
//
// Of our origins no pod knows, and kube-controller-manager reports none of them as attached to
// the node: so what it reports are the others' places.
func attachLimit(csiNode *storagev1.CSINode, node *corev1.Node, driver string) int64 {
	limit, known := kube.AttachLimit(csiNode, driver)
	if !known {
		return 0
	}
	prefix := csiVolume + driver + "^"
	for _, v := range node.Status.VolumesAttached {
		if strings.HasPrefix(string(v.Name), prefix) {
			limit--
		}
	}
	// Of CSI's numbers none says that there is no place at all.
	return max(limit, 1)
}

// csiVolume begins the names of CSI volumes in the status of a Node (GetUniqueVolumeName of
// Kubernetes' pkg/volume/util); the driver and ^ follow, and its name of the volume.
const csiVolume = "kubernetes.io/csi/"

// attachLimit asks the API server. What cannot be read is no limit: the node plugin must not fail
// to register for it.
func (p *plugin) attachLimit(ctx context.Context) int64 {
	csiNode, node := &storagev1.CSINode{}, &corev1.Node{}
	key := client.ObjectKey{Name: p.cfg.NodeName}
	if err := errors.Join(p.api.Get(ctx, key, csiNode), p.api.Get(ctx, key, node)); err != nil {
		klog.FromContext(ctx).Info("How many volumes this node takes is not known", "driver", p.cfg.AttachLimitOf, "reason", err.Error())
		return 0
	}
	return attachLimit(csiNode, node, p.cfg.AttachLimitOf)
}
