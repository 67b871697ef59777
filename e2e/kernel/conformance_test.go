//go:build kernel

package kernel

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/lvm/lvmtest"
)

func openForBoth(path string) (blockdev.File, error) {
	return blockdev.Host{}.Open(path, unix.O_RDWR|unix.O_DIRECT)
}

// TestKernelConformDevices holds the kernel's device mapper to the suite of its fake.
func TestKernelConformDevices(t *testing.T) {
	m := newMachine(t)
	devno, err := blockdev.DevNo(ssdOne)
	mustPass(t, "number of the SSD", err)
	dm := devmapper.New(hostexec.New())
	devmappertest.Conformance(t, func(t *testing.T) devmappertest.Rig {
		m.t = t
		rig := devmappertest.Rig{
			Client: dm, Open: openForBoth, NoClone: guest.Lacks("clone"),
			Discard: func(path string, ranges [][2]uint64) error { return blockdev.Host{}.Discard(t.Context(), path, ranges) },
		}
		start := uint64(0)
		for i, part := range []*string{&rig.Metadata, &rig.Data, &rig.Origin} {
			size := []uint64{4, 8, 16}[i] << 20 / devmapper.SectorSize
			name := fmt.Sprintf("part-%d", i)
			info, err := dm.Create(t.Context(), name, "", devmapper.Table{{Length: size, Target: devmapper.LinearTarget{Device: devno, Offset: start}}})
			mustPass(t, "part of the SSD", err)
			// A part that udev is reading is busy: Remove repeats.
			t.Cleanup(func() { mustPass(t, "remove part of the SSD", dm.Remove(context.Background(), name)) })
			mustPass(t, "blank", blockdev.ZeroHead(t.Context(), info.DevPath(), int64(size)*devmapper.SectorSize))
			*part = info.DevNo()
			if part == &rig.Metadata {
				rig.MetadataPath = info.DevPath()
			}
			start += size
		}
		return rig
	})
}

// TestKernelConformLVM holds LVM to the suite of its fake.
func TestKernelConformLVM(t *testing.T) {
	m := newMachine(t)
	devices := []string{ssdOne, ssdTwo}
	t.Cleanup(func() {
		m.t = t
		m.try("vgremove", "--yes", "--force", "conform")
		for _, d := range devices {
			m.try("pvremove", "--yes", d)
		}
	})
	lvmtest.Conformance(t, lvmtest.Rig{Client: lvm.New(hostexec.New(), filepath.Join(t.TempDir(), "devices")), Devices: devices, Open: openForBoth})
}
