package attach

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// origin is the device over the paths of the connected remote device.
type origin struct {
	// DevNo is "major:minor", Path the node under /dev.
	DevNo, Path string
	Sectors     uint64
	// LogicalBlock is the size of its logical blocks in bytes.
	LogicalBlock int
	// WWID is what the unit says of its identity, "" if it has none.
	WWID string
}

// connect attaches the origin and, for several paths, joins them.
func (a *Attacher) connect(ctx context.Context, s *staging) (origin, error) {
	e := s.entry
	o, err := a.Transport.Connect(ctx, target(e.Source), credentials(s.req.Credentials))
	// iscsid repeats a login to a target that is not there until its time is up.
	if (errors.Is(err, transport.ErrNoTarget) || errors.Is(err, transport.ErrUnreachable)) && !e.Static {
		return origin{}, fmt.Errorf("%w: the storage server does not answer, or admits node %s to volume %s under generation %d no more (if that stays, publish the volume anew): %w",
			volume.ErrUnavailable, a.Node, e.ID, e.Fence.Generation, err)
	}
	if err != nil {
		return origin{}, transportError(err)
	}
	if err := checkUnit(e, o); err != nil {
		// Nothing of the volume may be used here: neither is the session kept.
		return origin{}, errors.Join(err, a.leaveOrigin(ctx, s))
	}
	if err := a.reserve(ctx, s, o); err != nil {
		return origin{}, errors.Join(err, a.leaveOrigin(ctx, s))
	}
	return a.joinPaths(ctx, e.ID, e.Fence, o)
}

// leaveOrigin ends the session of a stage that fails, while the hydration may journal the entry.
func (a *Attacher) leaveOrigin(ctx context.Context, s *staging) error {
	var e state.Entry
	_ = s.note(func(shared *state.Entry) error { e = *shared; return nil })
	err := a.disconnect(ctx, &e)
	return errors.Join(err, s.note(func(shared *state.Entry) error { shared.Reserved = e.Reserved; return nil }))
}

// checkUnit compares the ownership with what the storage server has last exported
// the unit for (states.md, A record that is older than the truth).
func checkUnit(e *state.Entry, o transport.Origin) error {
	if e.Static {
		return nil // somebody else's server, or a unit that is exported by hand
	}
	if g, since := volume.GivenSince(o.Products, e.Fence.Generation); since {
		return fmt.Errorf("%w: the storage server has given volume %s away under generation %d since generation %d (was the record restored from a backup?): publish the volume anew",
			volume.ErrFenced, e.ID, g, e.Fence.Generation)
	}
	return nil
}

// reconnect attaches the origin of an entry without a request: the node
// database of the initiator still has the credentials.
func (a *Attacher) reconnect(ctx context.Context, e *state.Entry) (origin, error) {
	o, err := a.Transport.Connect(ctx, target(e.Source), nil)
	if err != nil {
		return origin{}, transportError(err)
	}
	if err := checkUnit(e, o); err != nil {
		return origin{}, err
	}
	if err := a.reserveAgain(ctx, e, o); err != nil {
		return origin{}, err
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
	infos, err := a.DM.Info(ctx, layout.Device(id, layout.Origin))
	if err != nil {
		return origin{}, err
	}
	info, ok := infos[layout.Device(id, layout.Origin)]
	if !ok && len(o.Paths) == 1 {
		return single(o), nil // attached by a version that had no device over one path
	}
	if !ok {
		return origin{}, fmt.Errorf("%w: volume %s is attached but has no device %s", volume.ErrUnavailable, id, layout.Device(id, layout.Origin))
	}
	return origin{DevNo: info.DevNo(), Path: info.DevPath(), Sectors: uint64(o.SizeBytes) / sectorSize, LogicalBlock: o.LogicalBlock, WWID: o.WWID}, nil
}

func single(o transport.Origin) origin {
	return origin{DevNo: o.DevNos[0], Path: o.Paths[0], Sectors: uint64(o.SizeBytes) / sectorSize, LogicalBlock: o.LogicalBlock, WWID: o.WWID}
}

// joinPaths puts a device over the paths: multipath over several, which queues
// while all of them are lost, like a single session does within its replacement
// timeout; linear over one, so that the origin is measured by itself and can be
// swapped below a live cache.
func (a *Attacher) joinPaths(ctx context.Context, id volume.ID, f volume.Fence, o transport.Origin) (origin, error) {
	sectors := uint64(o.SizeBytes) / sectorSize
	info, err := a.ensureDevice(ctx, layout.Device(id, layout.Origin), layout.UUID(f, layout.Origin), originTable(sectors, o.DevNos))
	if err != nil {
		return origin{}, err
	}
	return origin{DevNo: info.DevNo(), Path: info.DevPath(), Sectors: sectors, LogicalBlock: o.LogicalBlock, WWID: o.WWID}, nil
}

func originTable(sectors uint64, devnos []string) devmapper.Table {
	if len(devnos) == 1 {
		return devmapper.LinearTable(sectors, devnos[0])
	}
	return devmapper.Table{{Start: 0, Length: sectors, Target: devmapper.MultipathTarget{
		QueueIfNoPath: true, Bio: true, Paths: devnos,
	}}}
}

// readSuperblock reads a cache's superblock past the page cache: a page read
// before the kernel wrote the metadata would be stale.
func (a *Attacher) readSuperblock(path string) (devmapper.Superblock, error) {
	f, err := a.Blocks.Open(path, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return devmapper.Superblock{}, fmt.Errorf("read superblock of %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	return devmapper.ReadCacheSuperblock(f)
}

// MarkUnclean sees to it that the kernel counts every block of a cache as dirty when it
// loads its map the next time, and returns when that is on stable storage.
func MarkUnclean(blocks Blocks, meta string) error {
	f, err := blocks.Open(meta, unix.O_RDWR|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := devmapper.MarkUnclean(f); err != nil {
		return fmt.Errorf("metadata %s: %w", meta, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("metadata %s: %w", meta, err)
	}
	return nil
}
