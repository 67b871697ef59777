package driver_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

// TestImpossibleVolume: a PersistentVolume that somebody wrote with a handle that no
// volume can have is refused when it is to be attached. What undoes that must succeed:
// else the VolumeAttachment, and with it the PersistentVolume, would never go.
func TestImpossibleVolume(t *testing.T) {
	const id = "No_Volume/at all"
	c := driver.NewController(volumetest.NewProvisioner(1<<40, "node-1"), &keylock.Set{})
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node-1"}); err != nil {
		t.Errorf("unpublish: %v", err)
	}
	if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{NodeId: "node-1"}); err == nil {
		t.Error("a request without a volume succeeded")
	}
}
