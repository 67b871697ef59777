package driver_test

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

func capabilityOf(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

const (
	many = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	one  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
)

// TestReadOnlyManyIsMade: only what has content can be read by many.
func TestReadOnlyManyIsMade(t *testing.T) {
	source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "parent"}}}
	for name, tc := range map[string]struct {
		modes      []csi.VolumeCapability_AccessMode_Mode
		source     *csi.VolumeContentSource
		parameters map[string]string
		want       codes.Code
		says       string
	}{
		"of a claim":                    {modes: []csi.VolumeCapability_AccessMode_Mode{many}, source: source, want: codes.OK},
		"of nothing":                    {modes: []csi.VolumeCapability_AccessMode_Mode{many}, want: codes.InvalidArgument, says: "dataSource"},
		"beside a writer":               {modes: []csi.VolumeCapability_AccessMode_Mode{many, one}, source: source, want: codes.InvalidArgument, says: "written by one node or read by many"},
		"over another driver":           {modes: []csi.VolumeCapability_AccessMode_Mode{many}, source: source, parameters: map[string]string{"backend": "csi", "originStorageClass": "other"}, want: codes.InvalidArgument, says: "backend"},
		"one writer of a claim":         {modes: []csi.VolumeCapability_AccessMode_Mode{one}, source: source, want: codes.OK},
		"many writers are not, as ever": {modes: []csi.VolumeCapability_AccessMode_Mode{csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}, source: source, want: codes.InvalidArgument, says: "MULTI_NODE_READER_ONLY"},
	} {
		t.Run(name, func(t *testing.T) {
			p := volumetest.NewProvisioner(1<<40, "node-1")
			c := driver.NewController(p, &keylock.Set{}).WithSnapshots(p)
			if _, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "parent", VolumeCapabilities: []*csi.VolumeCapability{capabilityOf(one)}}); err != nil {
				t.Fatal(err)
			}
			req := &csi.CreateVolumeRequest{Name: "made", VolumeContentSource: tc.source, Parameters: tc.parameters}
			for _, m := range tc.modes {
				req.VolumeCapabilities = append(req.VolumeCapabilities, capabilityOf(m))
			}
			_, err := c.CreateVolume(t.Context(), req)
			if status.Code(err) != tc.want || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v; want %s, %q", err, tc.want, tc.says)
			}
		})
	}
}

// TestReadOnlyManyIsPublished: to several nodes, one of which writes to nothing; a writer is refused
// meanwhile, and each node is taken back by itself.
func TestReadOnlyManyIsPublished(t *testing.T) {
	c := driver.NewController(volumetest.NewProvisioner(1<<40, "node-1", "node-2"), &keylock.Set{})
	made, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{capabilityOf(one)}})
	if err != nil {
		t.Fatal(err)
	}
	id := made.GetVolume().GetVolumeId()
	publish := func(node string, mode csi.VolumeCapability_AccessMode_Mode, volumeContext map[string]string) codes.Code {
		_, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: capabilityOf(mode), VolumeContext: volumeContext})
		return status.Code(err)
	}
	published := func() int {
		t.Helper()
		got, err := c.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
		if err != nil {
			t.Fatal(err)
		}
		return len(got.GetStatus().GetPublishedNodeIds())
	}
	for i, node := range []string{"node-1", "node-2"} {
		if code := publish(node, many, nil); code != codes.OK || published() != i+1 {
			t.Errorf("publish to %s: %s, published to %d", node, code, published())
		}
	}
	if code := publish("node-1", one, nil); code != codes.FailedPrecondition {
		t.Errorf("publish to a writer: %s", code)
	}
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node-2"}); err != nil || published() != 1 {
		t.Errorf("unpublish: %v, published to %d", err, published())
	}
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id}); err != nil || published() != 0 {
		t.Errorf("unpublish from all: %v, published to %d", err, published())
	}
	static := map[string]string{"portals": "192.0.2.1", "iqn": "iqn.2003-01.org.example:disk1", "lun": "3"}
	answer, err := c.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeContext: static, VolumeCapabilities: []*csi.VolumeCapability{capabilityOf(many)}})
	if err != nil || answer.GetConfirmed() != nil || !strings.Contains(answer.GetMessage(), "nearflash-target") {
		t.Errorf("a static volume: %v, %v", answer, err)
	}
	answer, err = c.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{capabilityOf(many)}})
	if err != nil || answer.GetConfirmed() == nil {
		t.Errorf("a volume of nearflash-target: %v, %v", answer, err)
	}
}
