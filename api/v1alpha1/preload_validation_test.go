package v1alpha1_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// testPreload: a path stays within the volume, and what is wrong is said with what is accepted.
func testPreload(t *testing.T, c client.Client) {
	const path = "path must be one from the root of the volume, without a leading / and without .."
	obj := good()
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		ask  v1alpha1.PreloadRequest
		want string
	}{
		"everything":          {ask: v1alpha1.PreloadRequest{Request: "r"}},
		"a path":              {ask: v1alpha1.PreloadRequest{Request: "r", Path: "models/..large", BandwidthBytesPerSecond: ptr.To[int64](1 << 20)}},
		"a path that goes up": {ask: v1alpha1.PreloadRequest{Request: "r", Path: "models/../.."}, want: `spec.preload.path: Invalid value: "models/../..": ` + path},
		"a path from /":       {ask: v1alpha1.PreloadRequest{Request: "r", Path: "/models"}, want: `spec.preload.path: Invalid value: "/models": ` + path},
		"too slow": {ask: v1alpha1.PreloadRequest{Request: "r", BandwidthBytesPerSecond: ptr.To[int64](1)},
			want: `spec.preload.bandwidthBytesPerSecond: Invalid value: 1: bandwidthBytesPerSecond must be 0 or at least 1048576 (1Mi)`},
	} {
		t.Run(name, func(t *testing.T) {
			changed := obj.DeepCopy()
			changed.Spec.Preload = &tc.ask
			wantMessage(t, c.Update(t.Context(), changed, client.DryRunAll), tc.want)
		})
	}
}
