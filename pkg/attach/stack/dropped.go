package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// SetFlushes has the live top device of a cache pass flushes on, or end them (states.md, Dropped
// flushes). It holds until the device's next table.
func (s *Stack) SetFlushes(ctx context.Context, id volume.ID, pass bool) error {
	top, found, err := s.Top(ctx, id)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w: volume %s has no device whose flushes could be passed on or dropped", volume.ErrUnavailable, id)
	}
	return s.Blocks.SetFlushes(top.DevNo(), pass)
}

// DropsFlushes reports whether a live device ends flushes. What cannot be read drops none that anybody
// has asked it to drop: a kernel without the attribute has no way to.
func (s *Stack) DropsFlushes(dev devmapper.Info) (bool, error) {
	passes, err := s.Blocks.PassesFlushes(dev.DevNo())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && !passes, err
}

// syncPatience is how long a flush through a cache is waited for.
const syncPatience = 30 * time.Second

// SyncTop flushes the SSD and the origin through a cache, and commits its map.
func (s *Stack) SyncTop(ctx context.Context, id volume.ID, fl *Flushes) error {
	top, found, err := s.Top(ctx, id)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w: volume %s has no device to flush", volume.ErrUnavailable, id)
	}
	fctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	switch done, err := fl.Run(fctx, id, func() error { return s.SyncDevice(top.DevPath()) }); {
	case !done:
		return fmt.Errorf("%w: flush volume %s: SSD or storage server have not answered yet", volume.ErrBusy, id)
	case err != nil:
		return fmt.Errorf("%w: flush volume %s: %w", volume.ErrUnavailable, id, err)
	}
	return nil
}
