package stack

import (
	"context"
	"slices"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// HydrationIsWhole reports whether the hydration of an attached volume has copied everything:
// the cache is whole then, whatever is still to be cleared away.
func (s *Stack) HydrationIsWhole(ctx context.Context, e *state.Entry) (bool, error) {
	if e.Hydration.Whole {
		return true, nil
	}
	infos, err := s.DM.Info(ctx, layout.Device(e.ID, layout.Data))
	if err != nil {
		return false, err
	}
	if !infos[layout.Device(e.ID, layout.Data)].HasLive {
		return false, nil // taken down, or never up; what had been copied is not known
	}
	st, isClone, err := s.DM.CloneStatus(ctx, layout.Device(e.ID, layout.Data))
	return err == nil && (!isClone || st.Complete()), err
}

// OnOrigin reports whether the path leads to the origin remap table. It looks for the devices if
// infos is nil.
func (s *Stack) OnOrigin(ctx context.Context, e *state.Entry, infos map[string]devmapper.Info) (_ bool, err error) {
	if infos == nil {
		if infos, err = s.DM.Info(ctx, layout.Device(e.ID, layout.Top)); err != nil {
			return false, err
		}
	}
	if _, waits := infos[layout.Device(e.ID, layout.Source)]; !waits {
		return true, nil
	}
	// Not the table: it may have a million lines.
	below, err := s.DM.Deps(ctx, layout.Device(e.ID, layout.Path))
	if err != nil {
		return false, err
	}
	// A remap table of nothing rests on nothing.
	return len(below) == 0 || slices.Contains(below, infos[layout.Device(e.ID, layout.Origin)].DevNo()), nil
}

// DeviceSectors is the length of a device by its live table.
func (s *Stack) DeviceSectors(ctx context.Context, name string) (uint64, error) {
	t, err := s.DM.Table(ctx, name)
	if err != nil {
		return 0, err
	}
	return t.Sectors(), nil
}
