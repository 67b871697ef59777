package kube

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

func TestAttachLimit(t *testing.T) {
	node := &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: "silent"}, {Name: "unlimited", Allocatable: &storagev1.VolumeNodeResources{}},
		{Name: "limited", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](15)}},
	}}}
	for driver, want := range map[string]int64{"limited": 15, "silent": 0, "unlimited": 0, "absent": 0} {
		if limit, known := AttachLimit(node, driver); limit != want || known != (want > 0) {
			t.Errorf("%s: %d, %v, want %d", driver, limit, known, want)
		}
	}
}
