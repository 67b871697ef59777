package devmappertest_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
)

func TestConformance(t *testing.T) {
	devmappertest.Conformance(t, func(t *testing.T) devmappertest.Rig {
		m := blockdevtest.New()
		for devno, size := range map[string]int64{"8:1": 4 << 20, "8:2": 8 << 20, "8:3": 16 << 20} {
			m.Add(devno, "/dev/"+devno, blockdevtest.NewDisk(size))
		}
		blocks := m.Blocks(nil)
		return devmappertest.Rig{
			Client: devmappertest.New(m).Client(nil), Metadata: "8:1", MetadataPath: "/dev/8:1", Data: "8:2", Origin: "8:3",
			Open:    func(path string) (blockdev.File, error) { return blocks.Open(path, unix.O_RDWR) },
			Discard: func(path string, ranges [][2]uint64) error { return blocks.Discard(t.Context(), path, ranges) },
		}
	})
}
