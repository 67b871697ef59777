package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

func TestAttachLimit(t *testing.T) {
	const disks = "disks.example.org"
	attached := func(names ...corev1.UniqueVolumeName) *corev1.Node {
		n := &corev1.Node{}
		for _, name := range names {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: name})
		}
		return n
	}
	takes := func(count *int32) *storagev1.CSINode {
		return &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "other.example.org", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](3)}},
			{Name: disks, Allocatable: &storagev1.VolumeNodeResources{Count: count}},
		}}}
	}
	const one, two = "kubernetes.io/csi/" + disks + "^one", "kubernetes.io/csi/" + disks + "^two"
	for name, tc := range map[string]struct {
		csiNode *storagev1.CSINode
		node    *corev1.Node
		want    int64
	}{
		"nobody uses it":       {takes(ptr.To[int32](15)), attached(), 15},
		"two pods use it":      {takes(ptr.To[int32](15)), attached(one, two), 13},
		"others are no matter": {takes(ptr.To[int32](15)), attached("kubernetes.io/csi/csi.nearflash.io^v", "kubernetes.io/csi/"+disks+".too^x", "kubernetes.io/iscsi/x"), 15},
		"full without us":      {takes(ptr.To[int32](2)), attached(one, two), 1},
		"no limit":             {takes(nil), attached(one), 0},
		"not registered":       {&storagev1.CSINode{}, attached(one), 0},
	} {
		if got := attachLimit(tc.csiNode, tc.node, disks); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
