package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

// notOffered are why specs are skipped.
var notOffered = []string{
	"GetCapacity not supported",                            // controllerCapabilities says why
	"ControllerPublishVolume.readonly field not supported", // so it does
	"GetSnapshot not supported",                            // external-snapshotter lists instead
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported",     // a snapshot is where its volume's storage is
	"ControllerGetVolumeHealth not supported",              // the node says it
	"ControllerListVolumeHealth not supported",             // so it does
	"NodeGetVolumeHealth not supported",                    // by NodeGetVolumeStats
	"NodeGetStorageHealth not supported",                   // CachePool says it
	"testnodevolumeattachlimit not enabled",                // kubelet keeps the limit
}

// TestSanity runs csi-sanity against the CSI layer over fakes. The same suite
// runs over the real layers in the kernel ring.
func TestSanity(t *testing.T) {
	dir, err := os.MkdirTemp("", "sanity") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, stop := context.WithCancel(context.Background())
	l, err := rpc.Listen(ctx, filepath.Join(dir, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	locks := &keylock.Set{}
	s := rpc.NewServer(ctx, nil)
	csi.RegisterIdentityServer(s, driver.NewIdentity("test", nil).WithGroups(true))
	volumes := volumetest.NewProvisioner(1<<40, "node-1")
	controller := driver.NewController(volumes, locks).WithSnapshots(volumes)
	csi.RegisterControllerServer(s, controller)
	csi.RegisterGroupControllerServer(s, controller.Groups())
	node := volumetest.NewAttacher()
	csi.RegisterNodeServer(s, driver.NewNode(node, locks, "node-1", 0))
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, s, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	cfg := sanity.NewTestConfig()
	cfg.Address = filepath.Join(dir, "csi.sock")
	cfg.TargetPath, cfg.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	cfg.TestVolumeSize = 1 << 30
	cfg.TestVolumeMutableParameters = map[string]string{"cacheMode": "writethrough", "cacheSize": "20%", "warmStart": "origin", "warmStartBandwidth": "100Mi"}
	ginkgo.ReportAfterSuite("nothing is skipped without a reason", func(r ginkgo.Report) {
		for _, spec := range r.SpecReports.WithState(types.SpecStateSkipped) {
			if !slices.Contains(notOffered, spec.Failure.Message) {
				t.Errorf("skipped: %s: %s", spec.FullText(), spec.Failure.Message)
			}
		}
	})
	sanity.Test(t, cfg)
	if left := node.Staged(); len(left) > 0 {
		t.Errorf("volumes are still staged: %v", left)
	}
}
