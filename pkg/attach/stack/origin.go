package stack

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/transport"
)

// Origin is the device over the paths of the connected remote device.
type Origin struct {
	// DevNo is "major:minor", Path the node under /dev.
	DevNo, Path string
	Sectors     uint64
	// LogicalBlock is the size of its logical blocks in bytes.
	LogicalBlock int
	// WWID is what the LUN says of its identity, "" if it has none.
	WWID string
}

// Over is the origin that a device shows of a connected remote device.
func Over(devno, path string, o transport.Origin) Origin {
	return Origin{DevNo: devno, Path: path, Sectors: uint64(o.SizeBytes) / devmapper.SectorSize, LogicalBlock: o.LogicalBlock, WWID: o.WWID}
}

// JoinPaths puts a device over the paths: multipath over several, which queues
// while all of them are lost, like a single session does within its replacement
// timeout; linear over one, so that the origin is measured by itself and can be
// swapped below a live cache.
//
// Over a LUN that the storage server lets nobody write it is read-only. dm-cache opens its origin for
// writing (parse_origin_dev in drivers/md/dm-cache-target.c), which such a disk refuses (sd_open in
// drivers/scsi/sd.c) and a read-only device of the device mapper does not.
func (s *Stack) JoinPaths(ctx context.Context, e *state.Entry, o transport.Origin) (Origin, error) {
	info, err := s.ensureOf(ctx, e, layout.Origin, OriginTable(uint64(o.SizeBytes)/devmapper.SectorSize, o.DevNos))
	if err != nil {
		return Origin{}, err
	}
	return Over(info.DevNo(), info.DevPath(), o), nil
}

// OriginTable is the table of the device over an origin's paths.
func OriginTable(sectors uint64, devnos []string) devmapper.Table {
	if len(devnos) == 1 {
		return devmapper.LinearTable(sectors, devnos[0])
	}
	return devmapper.Table{{Start: 0, Length: sectors, Target: devmapper.MultipathTarget{
		QueueIfNoPath: true, Bio: true, Paths: devnos,
	}}}
}

// ReadSuperblock reads a cache's superblock past the page cache: a page read
// before the kernel wrote the metadata would be stale.
func (s *Stack) ReadSuperblock(path string) (devmapper.Superblock, error) {
	f, err := s.Blocks.Open(path, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return devmapper.Superblock{}, fmt.Errorf("read superblock of %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	return devmapper.ReadCacheSuperblock(f)
}
