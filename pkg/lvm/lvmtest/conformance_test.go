package lvmtest_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/lvm/lvmtest"
)

func TestConformance(t *testing.T) {
	m := blockdevtest.New()
	devices := []string{"/dev/one", "/dev/two"}
	for i, path := range devices {
		m.Add([]string{"8:1", "8:2"}[i], path, blockdevtest.NewDisk(64<<20))
	}
	blocks := m.Blocks(nil)
	lvmtest.Conformance(t, lvmtest.Rig{
		Client: lvmtest.New(m).Client(nil), Devices: devices,
		Open: func(path string) (blockdev.File, error) { return blocks.Open(path, unix.O_RDWR) },
	})
}
