package rescue

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Fault points of Rescue.
var (
	faultRescueWritten = faultpoint.New("rescue.written")
	faultRescueRetired = faultpoint.New("rescue.retired")
)

// State is what a rescue makes of a cache.
type State string

// The states. Those of the first three are written back, the others are not.
const (
	// StateDirty: the stop was clean, and the map tells which blocks are dirty.
	StateDirty State = "dirty"
	// StateUnclean: the stop was unclean; as for the kernel, every block counts as
	// dirty (I4).
	StateUnclean State = "dirty (unclean stop)"
	// StateClean: the stop was clean and nothing is dirty.
	StateClean State = "clean"

	// StateWritethrough: the origin has everything.
	StateWritethrough State = "writethrough"
	// StateRescued: it was written back before.
	StateRescued State = "rescued"
	// StateEmpty: nothing was ever cached.
	StateEmpty State = "empty"
	// StateActive: somebody uses it.
	StateActive State = "active"
	// StateHydrating: a warm move was not complete. What the map names and was not copied
	// would be written to the origin as rubbish (I5).
	StateHydrating State = "hydrating"
	// StateIncomplete: parts of it are missing or not of one cache.
	StateIncomplete State = "incomplete"
	// StateOneCopy: an SSD of a mirror is missing, which may have newer writes.
	StateOneCopy State = "one copy"
	// StateUnreadable: the map cannot be read.
	StateUnreadable State = "unreadable"
)

// Cache is a cache on the SSDs.
type Cache struct {
	layout.Cache
	State State
	// Detail says more about a state in which nothing is written back.
	Detail string
	// ChunkBytes, UsedBlocks and DirtyBlocks are known of caches that could be written
	// back, as is OriginEnd, where the last of the blocks ends on the origin.
	ChunkBytes              int64
	UsedBlocks, DirtyBlocks int64
	OriginEnd               int64
}

// DirtyBytes is what a rescue writes.
func (c Cache) DirtyBytes() int64 { return c.DirtyBlocks * c.ChunkBytes }

// List inspects all caches of the volume group, in the order of their volumes.
func (r *Rescuer) List(ctx context.Context) ([]Cache, error) {
	lvs, err := r.LVM.LVs(ctx, r.VG)
	if err != nil {
		return nil, err
	}
	var out []Cache
	for _, f := range layout.Scan(lvs) {
		out = append(out, r.inspect(ctx, f))
	}
	return out, nil
}

// inspect tells what can be done with a cache. What stands against reading it is in
// Detail.
func (r *Rescuer) inspect(ctx context.Context, f layout.Cache) Cache {
	c := Cache{Cache: f}
	active, err := r.active(ctx, f)
	switch {
	case err != nil:
		return c.is(StateUnreadable, "%v", err)
	case active:
		return c.is(StateActive, "its devices are in use on this machine")
	case f.Rescued != "":
		return c.is(StateRescued, "its writes were brought to the origin at %s", f.Rescued)
	case !f.Whole():
		return c.is(StateIncomplete, "logical volumes of data or map are missing, or not of one cache")
	case f.Mode != volume.ModeWriteback:
		return c.is(StateWritethrough, "the origin has every write")
	case oneCopy(f) && !r.OneCopy:
		return c.is(StateOneCopy, "an SSD of its mirror is missing, and may have newer writes: give all SSDs, or --one-copy if it is lost for good and this one did not fail before it")
	case f.Hydrating():
		return c.is(StateHydrating, "it was still being filled from elsewhere: only its own node, or one with its journal, can activate it")
	}
	return r.readCache(ctx, c)
}

func (c Cache) is(s State, format string, args ...any) Cache {
	c.State, c.Detail = s, fmt.Sprintf(format, args...)
	return c
}

// oneCopy reports whether a mirror lacks a device. To activate it would write to the copy that is there.
func oneCopy(f layout.Cache) bool {
	return slices.ContainsFunc(f.LVs(), func(lv lvm.LV) bool { return lv.Mirrored() && lv.Health == lvm.HealthPartial })
}

// active reports whether somebody uses the cache.
func (r *Rescuer) active(ctx context.Context, f layout.Cache) (bool, error) {
	if f.Data.Open || f.Meta.Open {
		return true, nil
	}
	infos, err := r.DM.Info(ctx, layout.Device(f.ID, layout.Top)) // the others' names begin with it
	if err != nil {
		return false, err
	}
	_, top := infos[layout.Device(f.ID, layout.Top)]
	_, data := infos[layout.Device(f.ID, layout.Data)]
	return top || data || slices.ContainsFunc(layout.Renames(infos)[f.ID], func(r layout.Rename) bool { return r.Part == layout.Data }), nil
}

// readCache reads superblock and map.
func (r *Rescuer) readCache(ctx context.Context, c Cache) Cache {
	if err := r.activate(ctx, &c); err != nil {
		return c.is(StateUnreadable, "%v", err)
	}
	sb, err := superblock(c.Meta.DevPath())
	switch {
	case errors.Is(err, devmapper.ErrNoSuperblock) && sb.Blank:
		return c.is(StateEmpty, "nothing was ever cached")
	case err != nil:
		return c.is(StateUnreadable, "%v", err)
	}
	m, err := r.readMap(ctx, c.Meta.DevPath(), c.ID)
	if err != nil {
		return c.is(StateUnreadable, "%v", err)
	}
	c.ChunkBytes = int64(m.ChunkSectors) * devmapper.SectorSize
	c.UsedBlocks, c.DirtyBlocks, c.State = int64(len(m.Entries)), int64(m.Dirty), StateDirty
	switch {
	case !(sb.CleanShutdown && c.Stopped) && c.UsedBlocks > 0:
		c.DirtyBlocks, c.State = c.UsedBlocks, StateUnclean
	case c.DirtyBlocks == 0:
		c.State = StateClean
	}
	for _, e := range m.Entries {
		c.OriginEnd = max(c.OriginEnd, int64(e.Origin+1)*c.ChunkBytes)
	}
	return c
}

// activate makes the logical volumes appear.
func (r *Rescuer) activate(ctx context.Context, c *Cache) error {
	if c.Data.Active && c.Meta.Active {
		return nil
	}
	if err := r.LVM.Activate(ctx, r.VG, c.Data.Name, c.Meta.Name); err != nil {
		return err
	}
	lvs, err := r.LVM.LVs(ctx, r.VG)
	if err != nil {
		return err
	}
	for _, lv := range lvs {
		switch lv.Name {
		case c.Data.Name:
			c.Data = lv
		case c.Meta.Name:
			c.Meta = lv
		}
	}
	if !c.Data.Active || !c.Meta.Active {
		return errors.New("its logical volumes are not active after activation")
	}
	return nil
}

func superblock(path string) (devmapper.Superblock, error) {
	f, err := blockdev.OpenDirect(path)
	if err != nil {
		return devmapper.Superblock{}, err
	}
	defer func() { _ = f.Close() }()
	return devmapper.ReadCacheSuperblock(f)
}

// readMap reads the map of a cache that is not active.
func (r *Rescuer) readMap(ctx context.Context, meta string, id volume.ID) (cachemap.Map, error) {
	return cachetools.ReadMap(ctx, r.Tools.Dump, meta, filepath.Join(r.Dir, "rescue-"+string(id)))
}

// originSize is the size of a device that nobody uses: O_EXCL is refused for what is
// mounted, or part of another device (open(2)).
func originSize(path string) (int64, error) {
	f, err := blockdev.Open(path, unix.O_RDWR|unix.O_EXCL)
	switch {
	case errors.Is(err, unix.EBUSY):
		return 0, fmt.Errorf("%w: %s is in use: %w", ErrRefused, path, err)
	case err != nil:
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := f.Close(); err != nil {
		return 0, err
	}
	return blockdev.Size(path)
}

// flushDevice returns when the device, and its own cache, have everything.
func flushDevice(path string) error {
	f, err := blockdev.Open(path, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flush %s: %w", path, err)
	}
	return nil
}
