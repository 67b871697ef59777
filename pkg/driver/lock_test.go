package driver

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

// TestLockWaitsForBackground: kubelet would come again half a second later, and a pod is
// waiting.
func TestLockWaitsForBackground(t *testing.T) {
	for name, tc := range map[string]struct {
		busy time.Duration
		want error
	}{
		"short": {busy: lockPatience / 2},
		"long":  {busy: 2 * lockPatience, want: volume.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := &keylock.Set{}
				release, _ := locks.TryLock("v")
				time.AfterFunc(tc.busy, release)
				began := time.Now()
				unlock, err := lock(t.Context(), locks, "v")
				if !errors.Is(err, tc.want) {
					t.Fatalf("error %v, want %v", err, tc.want)
				}
				if took := time.Since(began); took != min(tc.busy, lockPatience) {
					t.Errorf("waited %s", took)
				}
				if err == nil {
					unlock()
				}
				time.Sleep(tc.busy)
			})
		})
	}
}

// TestStageIsAnnounced: what works on the volume in the background knows of the request
// that waits for it.
func TestStageIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, a := &keylock.Set{}, volumetest.NewAttacher()
		release, _ := locks.TryLock("v")
		defer release()
		_, err := NewNode(a, locks, "node-1", 0).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: "v", StagingTargetPath: "/staging", PublishContext: encodePublication(volume.Publication{
				Fence:  volume.Fence{UID: "u", Generation: 1, Node: "node-1"},
				Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.io.example:v"}},
			}),
			VolumeCapability: &csi.VolumeCapability{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
				AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			},
		})
		if status.Code(err) != codes.Aborted || len(a.Staged()) > 0 {
			t.Errorf("a busy volume: %v, staged: %v", err, a.Staged())
		}
		if got := a.Announced(); len(got) != 1 || got[0] != "v" {
			t.Errorf("announced: %v", got)
		}
	})
}
