package driver

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestTopology: both halves announce it, or neither: a scheduler that is told of a topology which
// no node has places no pod.
func TestTopology(t *testing.T) {
	for _, on := range []bool{false, true} {
		caps, err := NewIdentity("v", nil).WithTopology(on).GetPluginCapabilities(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		announced := false
		for _, c := range caps.GetCapabilities() {
			announced = announced || c.GetService().GetType() == csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS
		}
		info, err := NewNode(nil, nil, "node-a", 0).WithTopology(on).NodeGetInfo(t.Context(), nil)
		if err != nil || announced != on || (info.GetAccessibleTopology().GetSegments()[TopologyNode] == "node-a") != on {
			t.Errorf("on %v: announced %v, node %v, %v", on, announced, info, err)
		}
	}
}

func TestCredentialsFor(t *testing.T) {
	secrets := map[string]string{"userID": "admin", "chap.username": "u"}
	if c, err := credentialsFor(volume.Source{CSI: &volume.CSISource{}}, secrets); err != nil || !c.Equal(volume.Credentials{Secrets: secrets}) {
		t.Errorf("another driver's: %v, %v", c, err)
	}
	if _, err := credentialsFor(volume.Source{}, secrets); err == nil {
		t.Error("a CHAP user without a password is taken")
	}
}

// TestExpandHandsSecretsOn: they are another driver's, and are kept nowhere else after a restart.
func TestExpandHandsSecretsOn(t *testing.T) {
	req := &csi.NodeExpandVolumeRequest{VolumeId: "pvc-1", VolumePath: "/s"}
	if exp, err := parseNodeExpand(req); err != nil || exp.Credentials != nil {
		t.Errorf("without: %+v, %v", exp, err)
	}
	req.Secrets = map[string]string{"userID": "admin"}
	if exp, err := parseNodeExpand(req); err != nil || exp.Credentials == nil || !exp.Credentials.Equal(volume.Credentials{Secrets: req.Secrets}) {
		t.Errorf("with: %+v, %v", exp, err)
	}
}

// TestAttachLimit: of two limits the smaller one counts, and 0 is none.
func TestAttachLimit(t *testing.T) {
	for _, tc := range []struct{ max, limit, want int64 }{{0, 0, 0}, {0, 5, 5}, {7, 0, 7}, {7, 5, 5}, {3, 5, 3}} {
		node := NewNode(nil, nil, "node-a", tc.max).WithLimit(func(context.Context) int64 { return tc.limit })
		if info, err := node.NodeGetInfo(t.Context(), nil); err != nil || info.GetMaxVolumesPerNode() != tc.want {
			t.Errorf("%+v: %d, %v", tc, info.GetMaxVolumesPerNode(), err)
		}
	}
}
