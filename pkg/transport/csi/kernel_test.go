//go:build kernel

// Tests on a real kernel: loop devices, bound to their targets as drivers do it. They need
// root and some free loop devices.
package csi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelCSIOrigin attaches, expands and detaches a volume whose device is the kernel's.
func TestKernelCSIOrigin(t *testing.T) {
	for _, c := range []origintest.Capabilities{all, {Expand: true}} {
		root := shortDir(t)
		config := origintest.Config{
			Name: driverName, Node: "n", Kubelet: root, State: filepath.Join(root, "state"), Capabilities: c,
			Devices: origintest.Loops{Dir: filepath.Join(root, "disks")}, Secrets: map[string]string{"k": secretWord},
		}
		mkdir(t, config.State)
		mkdir(t, filepath.Join(root, "disks"))
		d := origintest.New(config)
		d.Check(t)
		if err := d.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		source, err := d.Provision(t.Context(), pv, 64*mib)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{
			t: t, root: root, d: d, config: csi.Config{Kubelet: root}, at: transport.Target{Source: volume.Source{CSI: source}},
			cred: &volume.Credentials{Secrets: config.Secrets},
		}
		w.restart()
		o := w.mustConnect()
		if o.SizeBytes != 64*mib || o.LogicalBlock != 512 || !strings.HasPrefix(o.Paths[0], "/dev/loop") {
			t.Errorf("origin %+v", o)
		}
		if size, err := blockdev.Size(o.Paths[0]); err != nil || size != 64*mib {
			t.Errorf("size %d, %v", size, err)
		}
		w.restart()
		if !w.found() {
			t.Error("not found by a new process")
		}
		if _, err := d.ControllerExpandVolume(t.Context(), &csipb.ControllerExpandVolumeRequest{
			VolumeId: source.Handle, CapacityRange: &csipb.CapacityRange{RequiredBytes: 128 * mib},
		}); err != nil {
			t.Fatal(err)
		}
		source.CapacityBytes = 128 * mib
		w.restart()
		w.mustConnect()
		if err := w.tr.Rescan(t.Context(), w.at, nil); err != nil {
			t.Error(err)
		}
		if o, _, err := w.tr.Lookup(t.Context(), w.at); err != nil || o.SizeBytes != 128*mib {
			t.Errorf("origin %+v, %v", o, err)
		}
		w.mustDisconnect()
		gone(t, filepath.Join("/sys/block", filepath.Base(o.Paths[0]), "loop/backing_file"))
	}
}

// gone waits for the kernel, which udev may keep from it for a moment.
func gone(t *testing.T, path string) {
	t.Helper()
	for range 100 {
		if _, err := os.Stat(path); os.IsNotExist(err) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("%s is there still", path)
}
