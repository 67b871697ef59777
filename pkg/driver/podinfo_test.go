package driver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestParsePublishPod: the kubelet says which pod a volume is for, if the CSIDriver
// asks for it; a publication without is no error.
func TestParsePublishPod(t *testing.T) {
	for name, tc := range map[string]struct {
		context map[string]string
		want    volume.Pod
	}{
		"named": {
			context: map[string]string{
				"csi.storage.k8s.io/pod.namespace": "shop", "csi.storage.k8s.io/pod.name": "db-0", "csi.storage.k8s.io/pod.uid": "u-1",
				"csi.storage.k8s.io/serviceAccount.name": "default", "csi.storage.k8s.io/ephemeral": "false",
			},
			want: volume.Pod{Namespace: "shop", Name: "db-0", UID: "u-1"},
		},
		"not named": {},
	} {
		t.Run(name, func(t *testing.T) {
			req, _, err := parsePublish(&csi.NodePublishVolumeRequest{
				VolumeId: "pvc-1", StagingTargetPath: "/staging", TargetPath: "/target", VolumeContext: tc.context,
				VolumeCapability: &csi.VolumeCapability{
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
					AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if req.Pod != tc.want {
				t.Errorf("pod %+v, want %+v", req.Pod, tc.want)
			}
		})
	}
}
