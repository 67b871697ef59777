package stack

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
)

// hotMetaBytes is the room for the map of a stream's first level in a cache of so many chunks: at
// most a sixteenth of them, and one; of all if it is over what was prewarmed.
func hotMetaBytes(s *state.Stream, blocks uint64) int64 {
	if s.Prewarmed {
		return devmapper.MetadataBytes(blocks)
	}
	return devmapper.MetadataBytes(blocks/16 + 1)
}

// LevelMetaBytes is the room for the maps of both levels.
func LevelMetaBytes(s *state.Stream, blocks uint64) int64 {
	return hotMetaBytes(s, blocks) + devmapper.MetadataBytes(blocks)
}

// HotBlocks is how many chunks the first level has room for.
func HotBlocks(e *state.Entry) uint64 {
	if e.Hydration.Stream.Prewarmed {
		return blocksOf(e)
	}
	return e.Hydration.Stream.Hot
}

// LevelMaps makes the devices for the maps of both levels, in a logical volume of their own
// (states.md, The stream).
func (s *Stack) LevelMaps(ctx context.Context, e *state.Entry, lv lvm.LV) (hot, rest devmapper.Info, err error) {
	first := uint64(hotMetaBytes(e.Hydration.Stream, blocksOf(e))) / devmapper.SectorSize
	all := uint64(lv.SizeBytes) / devmapper.SectorSize
	if all <= first {
		return hot, rest, fmt.Errorf("logical volume %s has %d bytes, too few for the maps of two levels", lv.Name, lv.SizeBytes)
	}
	if hot, err = s.slice(ctx, e, layout.HotMeta, lv.DevNo(), 0, first); err != nil {
		return hot, rest, err
	}
	rest, err = s.slice(ctx, e, layout.RestMeta, lv.DevNo(), first, all-first)
	return hot, rest, err
}

// blocksOf is how many chunks the entry's cache has room for.
func blocksOf(e *state.Entry) uint64 {
	return uint64(e.DataBytes) / devmapper.SectorSize / e.ChunkSectors
}

// slice makes a device of a part of another one.
func (s *Stack) slice(ctx context.Context, e *state.Entry, p layout.Part, devno string, from, sectors uint64) (devmapper.Info, error) {
	t := devmapper.Table{{Length: sectors, Target: devmapper.LinearTarget{Device: devno, Offset: from}}}
	return s.EnsureDevice(ctx, layout.Device(e.ID, p), layout.UUID(e.Fence, p), t)
}

// LevelData makes the data device of the first level.
func (s *Stack) LevelData(ctx context.Context, e *state.Entry, lv lvm.LV) (devmapper.Info, error) {
	return s.slice(ctx, e, layout.HotData, lv.DevNo(), 0, HotBlocks(e)*e.ChunkSectors)
}

// CreateLevels makes the first level, which serves nothing yet, and the top above it, which
// is the second. From here on the kernel takes what is written to out of their maps
// (cache.rst, passthrough). data is the number of the data device.
func (s *Stack) CreateLevels(ctx context.Context, e *state.Entry, lv lvm.LV, data string, o Origin) error {
	parts, err := s.Parts(ctx, e.ID)
	if err != nil {
		return err
	}
	hotData, made := parts[layout.HotData]
	if !made {
		if hotData, err = s.LevelData(ctx, e, lv); err != nil {
			return err
		}
	}
	table := func(meta, data, origin string) devmapper.Table {
		return devmapper.Table{{Length: o.Sectors, Target: devmapper.CacheTarget{
			Metadata: meta, Data: data, Origin: origin, ChunkSectors: e.ChunkSectors,
			Mode: devmapper.Passthrough, Policy: devmapper.PolicyCleaner,
		}}}
	}
	hot, err := s.EnsureDevice(ctx, layout.Device(e.ID, layout.Hot), layout.UUID(e.Fence, layout.Hot),
		table(parts[layout.HotMeta].DevNo(), hotData.DevNo(), o.DevNo))
	if err != nil {
		return err
	}
	return s.CreateTop(ctx, e, table(parts[layout.RestMeta].DevNo(), data, hot.DevNo()))
}

// Levels is which table a volume that a stream fills has.
type Levels struct {
	// Split is true while the top is above the first level; Merged when it is an ordinary
	// cache. Neither is a volume without a cache.
	Split, Merged bool
	// HotServes and RestServes tell which level is in use. HotFailed is a first level whose swap
	// has failed: the kernel holds back what comes to it, and its map is not to be believed.
	HotServes, RestServes, HotFailed bool
	// Top and Hot are the tables of a Split volume.
	Top, Hot devmapper.Table
}

// Levels reads the live tables.
func (s *Stack) Levels(ctx context.Context, e *state.Entry) (l Levels, err error) {
	if l.Top, err = s.DM.Table(ctx, layout.Device(e.ID, layout.Top)); err != nil {
		return l, err
	}
	top, cached := l.Top.Cache()
	if !cached {
		return l, nil
	}
	parts, err := s.Parts(ctx, e.ID)
	if err != nil {
		return l, err
	}
	if hot, exists := parts[layout.Hot]; !exists || top.Origin != hot.DevNo() {
		l.Merged = true
		return l, nil
	}
	if l.Hot, err = s.DM.Table(ctx, layout.Device(e.ID, layout.Hot)); err != nil {
		return l, err
	}
	hot, cached := l.Hot.Cache()
	l.Split, l.RestServes = true, top.Mode == devmapper.Writethrough
	l.HotFailed = !cached || parts[layout.Hot].Suspended
	l.HotServes = !l.HotFailed && hot.Mode == devmapper.Writethrough
	return l, nil
}

// OriginOf is the number of the origin below the levels, "" if there are none.
func (l Levels) OriginOf() string {
	if hot, cached := l.Hot.Cache(); cached {
		return hot.Origin
	}
	if len(l.Hot) == 1 {
		if linear, ok := l.Hot[0].Target.(devmapper.LinearTarget); ok {
			return linear.Device
		}
	}
	return ""
}

// Bypass has a volume go on past its cache, which the journal has denied by then.
func (s *Stack) Bypass(ctx context.Context, e *state.Entry, sectors uint64, origin string) error {
	if e.Streams() {
		if err := s.freeHot(ctx, e); err != nil {
			return err
		}
	}
	return s.Reload(ctx, layout.Device(e.ID, layout.Top), devmapper.LinearTable(sectors, origin))
}

// freeHot lets go what a first level holds back whose swap has failed, so that the top above
// it can get another table.
func (s *Stack) freeHot(ctx context.Context, e *state.Entry) error {
	l, err := s.Levels(ctx, e)
	if err != nil || !l.HotFailed {
		return err
	}
	if _, cached := l.Hot.Cache(); !cached {
		return nil // it was let go
	}
	return s.Reload(ctx, layout.Device(e.ID, layout.Hot), devmapper.LinearTable(l.Hot.Sectors(), l.OriginOf()))
}

// Serve has one level serve what its map names: all of that is on the SSD. The policy
// promotes nothing (smq_create and cleaner_create in drivers/md/dm-cache-policy-smq.c), so
// that neither level takes in what the other one has, and both maps stay as they are.
func (s *Stack) Serve(ctx context.Context, e *state.Entry, p layout.Part, t devmapper.Table) error {
	cache, ok := t.Cache()
	if !ok {
		return fmt.Errorf("device %s is no cache", layout.Device(e.ID, p))
	}
	cache.Mode, cache.Policy = devmapper.Writethrough, devmapper.PolicyCleaner
	if err := s.Reload(ctx, layout.Device(e.ID, p), devmapper.Table{{Length: t[0].Length, Target: cache}}); err != nil {
		return err
	}
	s.RefuseDiscards(ctx, e)
	return nil
}

// GrowHot lengthens the first level, before the top above it.
func (s *Stack) GrowHot(ctx context.Context, e *state.Entry, o Origin) error {
	l, err := s.Levels(ctx, e)
	if err != nil || !l.Split {
		return err
	}
	return s.GrowDevice(ctx, layout.Device(e.ID, layout.Hot), o.Sectors, func(t devmapper.Table) devmapper.Table {
		t[0].Length = o.Sectors
		return t
	})
}

// LevelStatus is the status of both levels together; of an ordinary cache its own. found is
// false if the live table is no cache. What cannot be read of either level is an error: half a
// status would say that nothing is dirty.
func (s *Stack) LevelStatus(ctx context.Context, e *state.Entry) (st devmapper.CacheStatus, found bool, err error) {
	all, err := s.Statuses(ctx, e)
	if err != nil {
		return st, false, err
	}
	st, found = layout.CacheStatus(all, e.ID)
	return st, found, nil
}

// Statuses are the statuses of a volume's cache by the names of its devices: while a stream
// fills it, of both levels. A device that is gone, or is no cache, has none.
func (s *Stack) Statuses(ctx context.Context, e *state.Entry) (map[string]devmapper.CacheStatus, error) {
	parts := []layout.Part{layout.Top}
	if e.Streams() {
		parts = append(parts, layout.Hot)
	}
	all := map[string]devmapper.CacheStatus{}
	for _, p := range parts {
		name := layout.Device(e.ID, p)
		st, found, err := s.DM.Status(ctx, name)
		switch {
		case errors.Is(err, devmapper.ErrNotExist):
		case err != nil:
			return nil, err
		case found:
			all[name] = st
		}
	}
	return all, nil
}
