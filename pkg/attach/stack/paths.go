package stack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// CacheStatus is what the kernel says of a cache in use. Errors: volume.ErrUnavailable if
// there is none.
func (s *Stack) CacheStatus(ctx context.Context, id volume.ID) (devmapper.CacheStatus, error) {
	// Many volumes may be flushed at the same time, and each looks a few times a second.
	st, found, err := s.DM.Status(ctx, layout.Device(id, layout.Top))
	if err != nil && !errors.Is(err, devmapper.ErrNotExist) {
		return devmapper.CacheStatus{}, err
	}
	if !found {
		return st, fmt.Errorf("%w: device %s is not an active cache", volume.ErrUnavailable, layout.Device(id, layout.Top))
	}
	return st, nil
}

// AwaitClean polls until no block is dirty. It ends with ErrBusy shortly before
// the caller's deadline; the cleaner goes on, and the next call continues.
func (s *Stack) AwaitClean(ctx context.Context, e *state.Entry) error {
	tick := time.NewTicker(s.PollInterval)
	defer tick.Stop()
	for {
		st, err := s.CacheStatus(ctx, e.ID)
		if err != nil {
			return err
		}
		if st.Fail {
			return fmt.Errorf("%w: the cache of volume %s failed during its flush", volume.ErrUnavailable, e.ID)
		}
		if st.Dirty == 0 {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 4*s.PollInterval {
			return fmt.Errorf("%w: volume %s is being flushed, %d of %d cache blocks are still dirty", volume.ErrBusy, e.ID, st.Dirty, st.CacheTotal)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: volume %s is being flushed: %w", volume.ErrBusy, e.ID, ctx.Err())
		case <-tick.C:
		}
	}
}

// SyncDevice has a block device write what it holds back, and all that it has below.
func (s *Stack) SyncDevice(path string) error {
	return blockdev.Sync(s.Blocks, path)
}

// FailPaths has what waits for lost paths fail: of an origin, and of the peer that a hydration
// copies from, which waits for the origin once that has taken the peer's place. Nobody would
// end it, and it keeps the devices open. If one of them waits, both are told.
func (s *Stack) FailPaths(ctx context.Context, id volume.ID) error {
	wait := false
	for _, part := range PathParts {
		waits, err := s.WaitsForPaths(ctx, layout.Device(id, part))
		if err != nil {
			return err
		}
		wait = wait || waits
	}
	if !wait {
		return nil
	}
	return s.setQueueing(ctx, id, false)
}

// QueuePaths takes that back, for a volume that goes on.
func (s *Stack) QueuePaths(ctx context.Context, id volume.ID) error {
	return s.setQueueing(ctx, id, true)
}

// PathParts are the devices that may wait for paths.
var PathParts = []layout.Part{layout.Origin, layout.Source}

// setQueueing tells each device over paths what to do with I/O while it has none. One at a time
// does that for a volume: what is remembered is what was said last.
func (s *Stack) setQueueing(ctx context.Context, id volume.ID, queue bool) error {
	end, free := s.telling.TryLock(string(id))
	if !free {
		return fmt.Errorf("%w: the devices over the paths of volume %s are being changed", volume.ErrBusy, id)
	}
	defer end()
	word := "fail_if_no_path"
	if queue {
		word = "queue_if_no_path"
	}
	for _, part := range PathParts {
		multipath, err := s.isMultipath(ctx, layout.Device(id, part))
		if err == nil && multipath {
			err = s.DM.Message(ctx, layout.Device(id, part), 0, word)
		}
		if err != nil {
			s.queueing.Delete(id) // not known: told again, or taken back
			return err
		}
	}
	s.queueing.Store(id, queue)
	return nil
}

// WaitsForPaths reports whether a device is a multipath device without any path.
func (s *Stack) WaitsForPaths(ctx context.Context, name string) (bool, error) {
	multipath, err := s.isMultipath(ctx, name)
	if err != nil || !multipath {
		return false, err
	}
	st, err := s.DM.MultipathStatus(ctx, name)
	return err != nil || !st.HasPath(), nil
}

func (s *Stack) isMultipath(ctx context.Context, name string) (bool, error) {
	table, err := s.DM.Table(ctx, name)
	if errors.Is(err, devmapper.ErrNotExist) {
		return false, nil
	}
	// By its name: what else the kernel prints of it may be more than the type knows.
	return err == nil && len(table) > 0 && table[0].Target.Type() == (devmapper.MultipathTarget{}).Type(), err
}

// LostPaths returns the origin's paths that have failed, and whether origin or source have
// none that works. What a hydration copies from is brought back by the hydration's own steps.
func (s *Stack) LostPaths(ctx context.Context, e *state.Entry) (lost []string, waits bool, err error) {
	for _, part := range PathParts {
		st, err := s.DM.MultipathStatus(ctx, layout.Device(e.ID, part))
		if errors.Is(err, devmapper.ErrNotExist) || errors.Is(err, devmapper.ErrParse) {
			continue // none, or over one path
		}
		if err != nil {
			return nil, false, err
		}
		waits = waits || !st.HasPath()
		for _, p := range st.Paths {
			if !p.Active && part == layout.Origin {
				lost = append(lost, p.Device)
			}
		}
	}
	return lost, waits, nil
}

// Queueing is what was last said of what waits for a volume's paths: to go on waiting, or to
// fail. Nothing is known if this process has said neither.
func (s *Stack) Queueing(id volume.ID) (queue, known bool) {
	told, known := s.queueing.Load(id)
	return known && told.(bool), known
}
