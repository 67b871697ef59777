package attach

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// origin is the connected remote device, or the multipath device over its paths.
type origin struct {
	// DevNo is "major:minor", Path the node under /dev.
	DevNo, Path string
	Sectors     uint64
}

// connect attaches the origin and, for several paths, joins them.
func (a *Attacher) connect(ctx context.Context, id volume.ID, req volume.StageRequest) (origin, error) {
	o, err := a.Transport.Connect(ctx, target(req.Publication.Source), credentials(req.Credentials))
	if err != nil {
		return origin{}, transportError(err)
	}
	return a.joinPaths(ctx, id, req.Publication.Fence, o)
}

// reconnect attaches the origin of an entry without a request: the node
// database of the initiator still has the credentials.
func (a *Attacher) reconnect(ctx context.Context, e *Entry) (origin, error) {
	o, err := a.Transport.Connect(ctx, target(e.Source), nil)
	if err != nil {
		return origin{}, transportError(err)
	}
	return a.joinPaths(ctx, e.ID, e.Fence, o)
}

// lookupOrigin finds the origin of an active volume without changing anything.
func (a *Attacher) lookupOrigin(ctx context.Context, id volume.ID, src volume.ISCSI) (origin, error) {
	o, found, err := a.Transport.Lookup(ctx, target(src))
	if err != nil {
		return origin{}, transportError(err)
	}
	if !found {
		return origin{}, fmt.Errorf("%w: volume %s is active but its iSCSI session is gone", volume.ErrUnavailable, id)
	}
	if len(o.Paths) == 1 {
		return single(o), nil
	}
	infos, err := a.DM.Info(ctx, originName(id))
	if err != nil {
		return origin{}, err
	}
	info, ok := infos[originName(id)]
	if !ok {
		return origin{}, fmt.Errorf("%w: volume %s has %d paths but no device %s", volume.ErrUnavailable, id, len(o.Paths), originName(id))
	}
	return origin{DevNo: info.DevNo(), Path: info.DevPath(), Sectors: uint64(o.SizeBytes) / sectorSize}, nil
}

func single(o transport.Origin) origin {
	return origin{DevNo: o.DevNos[0], Path: o.Paths[0], Sectors: uint64(o.SizeBytes) / sectorSize}
}

// joinPaths puts a multipath device over several paths. While all of them are
// lost it queues, like a single session does within its replacement timeout.
func (a *Attacher) joinPaths(ctx context.Context, id volume.ID, f volume.Fence, o transport.Origin) (origin, error) {
	if len(o.Paths) == 1 {
		return single(o), nil
	}
	sectors := uint64(o.SizeBytes) / sectorSize
	info, err := a.ensureDevice(ctx, originName(id), dmUUID(f, "origin"), multipathTable(sectors, o.DevNos))
	if err != nil {
		return origin{}, err
	}
	return origin{DevNo: info.DevNo(), Path: info.DevPath(), Sectors: sectors}, nil
}

func multipathTable(sectors uint64, devnos []string) devmapper.Table {
	return devmapper.Table{{Start: 0, Length: sectors, Target: devmapper.MultipathTarget{
		QueueIfNoPath: true, Bio: true, Paths: devnos,
	}}}
}

// flushOrigin empties the storage server's volatile write cache. Blocks that
// dm-cache wrote back went there without a flush of their own, so that without
// this step a clean cache would not prove durable data (I2).
func flushOrigin(o origin) error {
	f, err := os.Open(o.Path)
	if err != nil {
		return fmt.Errorf("flush origin: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Fsync(int(f.Fd())); err != nil {
		return fmt.Errorf("flush origin %s: %w", o.Path, err)
	}
	return nil
}

// readSuperblock reads a cache's superblock past the page cache: a page read
// before the kernel wrote the metadata would be stale.
func readSuperblock(path string) (devmapper.Superblock, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return devmapper.Superblock{}, fmt.Errorf("read superblock of %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	return devmapper.ReadCacheSuperblock(f)
}
