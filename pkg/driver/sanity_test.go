package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/rpc"
	"github.com/nearflash/nearflash/pkg/volume/volumetest"
)

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
	csi.RegisterIdentityServer(s, driver.NewIdentity("test", nil))
	volumes := volumetest.NewProvisioner(1<<40, "node-1")
	csi.RegisterControllerServer(s, driver.NewController(volumes, locks).WithSnapshots(volumes))
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
	sanity.Test(t, cfg)
	if left := node.Staged(); len(left) > 0 {
		t.Errorf("volumes are still staged: %v", left)
	}
}
