package csi

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/volume"
)

// testLimit: what the driver answers on a node that has as many of its volumes as it takes, means
// that, whatever its code. The node is tried all the same.
func testLimit(t *testing.T, f *fixture) {
	f.make(t, "there")
	f.make(t, "elsewhere")
	f.make(t, "more")
	for id, node := range map[volume.ID]string{"there": "a", "elsewhere": "b"} {
		_, err := f.b.Export(t.Context(), id, f.grant(node, 1))
		must(t, err)
	}
	takes := func(limit *int32) {
		object := &storagev1.CSINode{}
		must(t, f.api.Get(t.Context(), client.ObjectKey{Name: f.Node("a")}, object))
		object.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: limit}
		must(t, f.api.Update(t.Context(), object))
	}
	behaviour := f.behaviour()
	behaviour.AttachError = "rpc error: code = InvalidArgument desc = Maximum disks count should be less than or equal to [1]"
	f.Behave(behaviour)
	for _, tc := range []struct {
		limit *int32
		want  error
		words []string
	}{
		{nil, volume.ErrUnavailable, []string{"Maximum disks count"}},
		{ptr.To[int32](2), volume.ErrUnavailable, []string{"Maximum disks count"}},
		{ptr.To[int32](1), volume.ErrNoSpace, []string{"Maximum disks count", f.Node("a"), "takes 1 volumes of " + f.Driver}},
	} {
		takes(tc.limit)
		_, err := f.b.Export(t.Context(), "more", f.grant("a", 1))
		want(t, err, tc.want, tc.words...)
	}
	f.Behave(f.behaviour())
	_, err := f.b.Export(t.Context(), "more", f.grant("a", 1))
	must(t, err) // the driver is asked, and takes it
}
