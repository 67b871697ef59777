package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// CacheTable is the top device's table over a cache. Cleaning tables are
// writethrough, so that no block becomes dirty behind the cleaner's back.
func (s *Stack) CacheTable(e *state.Entry, meta lvm.LV, data string, o Origin, cleaning bool) devmapper.Table {
	t := devmapper.CacheTarget{
		Metadata: meta.DevNo(), Data: data, Origin: o.DevNo,
		ChunkSectors: e.ChunkSectors, Mode: devmapper.Writethrough, Policy: devmapper.PolicySMQ,
		MigrationThreshold: devmapper.MigrationThreshold(e.ChunkSectors),
	}
	if e.Mode == volume.ModeWriteback && !cleaning {
		t.Mode = devmapper.Writeback
	}
	if cleaning {
		t.Policy = devmapper.PolicyCleaner
	}
	return devmapper.Table{{Start: 0, Length: o.Sectors, Target: t}}
}

// CreateTop makes the top device. One that a pod gets itself refuses discards, if it is
// cached (RefuseDiscards).
func (s *Stack) CreateTop(ctx context.Context, e *state.Entry, t devmapper.Table) error {
	top, err := s.ensureOf(ctx, e, layout.Top, t)
	if _, cached := t.Cache(); err != nil || !cached || !e.Raw {
		return err
	}
	return s.Blocks.RefuseDiscards(top.DevNo())
}

// ReloadTop swaps the table of a live top device for that of a cache.
func (s *Stack) ReloadTop(ctx context.Context, e *state.Entry, t devmapper.Table) error {
	if err := s.Reload(ctx, layout.Device(e.ID, layout.Top), t); err != nil {
		return err
	}
	s.RefuseDiscards(ctx, e)
	return nil
}

// RefuseDiscards refuses the discards of pods that have the device itself, as after each
// load of a table.
//
// dm-cache takes a chunk that was discarded in without a copy of the origin
// (mg_full_copy in drivers/md/dm-cache-target.c). Whoever reads it sees what the SSD
// held before: a filesystem does not read what it has not written, a pod with the
// device itself may.
func (s *Stack) RefuseDiscards(ctx context.Context, e *state.Entry) {
	if !e.Raw {
		return
	}
	top, found, err := s.Top(ctx, e.ID)
	if err == nil && found {
		err = s.Blocks.RefuseDiscards(top.DevNo())
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The pod may discard blocks of its volume, and read what the SSD held before", "volume", e.ID)
	}
}

// EnsureDevice creates a device, replacing one that an interrupted call left.
func (s *Stack) EnsureDevice(ctx context.Context, name, uuid string, t devmapper.Table) (devmapper.Info, error) {
	return s.ensure(ctx, s.DM.Create, name, uuid, t)
}

// EnsureReadOnly is EnsureDevice for a device that is only read.
func (s *Stack) EnsureReadOnly(ctx context.Context, name, uuid string, t devmapper.Table) (devmapper.Info, error) {
	return s.ensure(ctx, s.DM.CreateReadOnly, name, uuid, t)
}

// ensureOf is EnsureDevice for what a pod's reads and writes pass through: only its reads, if the
// volume is one of many readers.
func (s *Stack) ensureOf(ctx context.Context, e *state.Entry, part layout.Part, t devmapper.Table) (devmapper.Info, error) {
	create := s.DM.Create
	if e.ReadOnly {
		create = s.DM.CreateReadOnly
	}
	return s.ensure(ctx, create, layout.Device(e.ID, part), layout.UUID(e.Fence, part), t)
}

type createFunc func(ctx context.Context, name, uuid string, t devmapper.Table) (devmapper.Info, error)

func (s *Stack) ensure(ctx context.Context, create createFunc, name, uuid string, t devmapper.Table) (devmapper.Info, error) {
	dev, err := create(ctx, name, uuid, t)
	if errors.Is(err, devmapper.ErrExist) {
		if err := s.DM.Remove(ctx, name); err != nil {
			return devmapper.Info{}, fmt.Errorf("replace device %s: %w", name, err)
		}
		dev, err = create(ctx, name, uuid, t)
	}
	if err != nil {
		return devmapper.Info{}, fmt.Errorf("create device %s: %w", name, err)
	}
	return dev, nil
}

// Reload swaps the table of a live device. There is no suspend of its own: resume
// suspends, swaps and resumes in one call of the kernel (do_resume in
// drivers/md/dm-ioctl.c), so that a process killed here never leaves a device
// suspended and its users hanging.
func (s *Stack) Reload(ctx context.Context, name string, t devmapper.Table) error {
	return s.ReloadBy(ctx, name, t, s.DM.Resume)
}

// ReloadBy is Reload with another way to resume.
func (s *Stack) ReloadBy(ctx context.Context, name string, t devmapper.Table, resume func(ctx context.Context, name string) error) error {
	load := s.DM.Load
	infos, err := s.DM.Info(ctx, name)
	if err != nil {
		return fmt.Errorf("load table of %s: %w", name, err)
	}
	if infos[name].ReadOnly { // it stays so: what is above must not write
		load = s.DM.LoadReadOnly
	}
	if err := load(ctx, name, t); err != nil {
		return fmt.Errorf("load table of %s: %w", name, err)
	}
	return s.SwapIn(ctx, name, resume)
}

// swapTimeout is how long a swap of tables is waited for.
const swapTimeout = 15 * time.Second

// SwapIn makes a loaded table live.
func (s *Stack) SwapIn(ctx context.Context, name string, resume func(ctx context.Context, name string) error) error {
	faultReloadLoaded.Hit()
	// Not given up with ctx: the call is short unless the device hangs.
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), swapTimeout)
	defer cancel()
	if err := resume(rctx, name); err != nil {
		return fmt.Errorf("swap table of %s: %w", name, err)
	}
	return nil
}

// RemoveDevices removes the volume's device-mapper devices from the top down.
func (s *Stack) RemoveDevices(ctx context.Context, id volume.ID) error {
	return s.Remove(ctx, id, slices.Concat(upper, []layout.Part{layout.Origin})...)
}

// RemoveUpper removes the top and data devices and leaves the origin.
func (s *Stack) RemoveUpper(ctx context.Context, id volume.ID) error {
	return s.Remove(ctx, id, upper...)
}

// RemoveBelow removes what a cache has below a top device that does not use it any more.
func (s *Stack) RemoveBelow(ctx context.Context, id volume.ID) error {
	return s.Remove(ctx, id, upper[1:]...)
}

// upper are the devices above the origin, each before those that it is on.
var upper = slices.Concat([]layout.Part{layout.Top}, layout.Levels, []layout.Part{layout.Data, layout.Source, layout.Path})

// Remove removes those of the volume's devices that exist, in the order given. One
// look finds them: most stages have nothing to remove.
func (s *Stack) Remove(ctx context.Context, id volume.ID, parts ...layout.Part) error {
	found, err := s.Parts(ctx, id)
	if err != nil {
		return err
	}
	if _, exists := found[layout.Top]; exists && slices.Contains(parts, layout.Top) {
		s.FinalCount(ctx, id)
	}
	for _, part := range parts {
		if _, exists := found[part]; !exists {
			continue
		}
		if found[layout.Source].HasLive && (part == layout.Data || part == layout.Source) {
			// Nobody's data wait for it any more: what the copy waits for may fail, or its
			// device could not be removed. Nor could the device that waits, if udev
			// reads it just when its path is lost.
			if err := s.DM.Message(ctx, layout.Device(id, layout.Source), 0, "fail_if_no_path"); err != nil {
				return err
			}
		}
		name := layout.Device(id, part)
		err := s.DM.Remove(ctx, name)
		if errors.Is(err, devmapper.ErrBusy) {
			return fmt.Errorf("%w: device %s is open: %w", volume.ErrInUse, name, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ExportedDevice makes the device that is exported. One of the same lease is kept: a
// session may be using it.
func (s *Stack) ExportedDevice(ctx context.Context, e *state.Entry, again bool, table func() (devmapper.Table, error)) (devmapper.Info, error) {
	name, uuid := layout.Device(e.ID, layout.Exported), layout.UUID(e.Fence, layout.Exported)
	if again {
		infos, err := s.DM.Info(ctx, name)
		if err != nil {
			return devmapper.Info{}, err
		}
		if dev, found := infos[name]; found && dev.HasLive && dev.UUID == uuid {
			return dev, nil
		}
	}
	t, err := table()
	if err != nil {
		return devmapper.Info{}, err
	}
	return s.EnsureDevice(ctx, name, uuid, t)
}

// Top reports the volume's top device.
func (s *Stack) Top(ctx context.Context, id volume.ID) (info devmapper.Info, found bool, err error) {
	parts, err := s.Parts(ctx, id)
	info, found = parts[layout.Top]
	return info, found && info.HasLive, err
}

// Parts are the volume's devices.
func (s *Stack) Parts(ctx context.Context, id volume.ID) (map[layout.Part]devmapper.Info, error) {
	infos, err := s.DM.Info(ctx, layout.Device(id, layout.Top)) // the others' names begin with it
	if err != nil {
		return nil, fmt.Errorf("devices of volume %s: %w", id, err)
	}
	return layout.Parts(infos, id), nil
}
