package stack

import (
	"context"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// GrowTop lengthens the table of the top device, cached or not. dm-cache takes
// a longer origin by a reload with the same metadata.
func (s *Stack) GrowTop(ctx context.Context, e *state.Entry, o Origin) error {
	if e.Cached() {
		s.FinalCount(ctx, e.ID)
		if s.Heat != nil {
			s.Heat.Add(ctx, e) // the longer device is counted anew
		}
	}
	err := s.GrowDevice(ctx, layout.Device(e.ID, layout.Top), o.Sectors, func(t devmapper.Table) devmapper.Table {
		t[0].Length = o.Sectors
		return t
	})
	switch {
	case err != nil:
		return err
	case e.Cached():
		s.RefuseDiscards(ctx, e)
		s.BeginCounting(ctx, e) // saved by the caller
	case s.Heat != nil:
		s.Heat.Begin(ctx, e)
	}
	return nil
}

// GrowDevice reloads a device that is shorter than sectors. A device is never
// shortened: a filesystem may reach to its end.
func (s *Stack) GrowDevice(ctx context.Context, name string, sectors uint64, change func(devmapper.Table) devmapper.Table) error {
	t, err := s.DM.Table(ctx, name)
	if err != nil {
		return err
	}
	if len(t) != 1 {
		return fmt.Errorf("device %s has %d targets, expected one", name, len(t))
	}
	if t[0].Length >= sectors {
		return nil
	}
	return s.Reload(ctx, name, change(t))
}
