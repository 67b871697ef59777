package driver

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
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

// reached makes volumes that can be reached from some places alone.
type reached struct {
	*volumetest.Provisioner
	from []map[string]string
}

func (r reached) Create(ctx context.Context, id volume.ID, spec volume.Spec) (volume.Volume, error) {
	v, err := r.Provisioner.Create(ctx, id, spec)
	v.Topologies = r.from
	return v, err
}

// TestAccessibleTopology: from where a volume can be reached, its answer says: external-provisioner
// makes the node affinity of the PersistentVolume of that.
func TestAccessibleTopology(t *testing.T) {
	from := []map[string]string{{"zone": "z1", "rack": "r"}, {"zone": "z2"}}
	c := NewController(reached{volumetest.NewProvisioner(1<<40, "node-1"), from}, &keylock.Set{})
	resp, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30}, Parameters: map[string]string{"cacheMode": "writethrough", "cacheSize": "10%"},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]string
	for _, place := range resp.GetVolume().GetAccessibleTopology() {
		got = append(got, place.GetSegments())
	}
	if !slices.EqualFunc(got, from, maps.Equal) {
		t.Errorf("reachable from %v, want %v", got, from)
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
