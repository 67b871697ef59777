package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// flush proves that the origin has everything (I2) and leads to Flushed.
func (a *Attacher) flush(ctx context.Context, e *state.Entry) error {
	if e.State != state.Flushing {
		if err := a.save(ctx, e, state.Flushing); err != nil {
			return err
		}
	}
	faultUnstageFlushing.Hit()
	st, err := a.cacheStatus(ctx, e.ID)
	if err != nil {
		return err
	}
	if st.Fail && !e.MayBeDirty() {
		// Nothing can be lost with a failed writethrough cache.
		return a.discard(ctx, e)
	}
	if st.Fail {
		return fmt.Errorf("%w: the cache of volume %s has failed with unflushed writes on it", volume.ErrUnavailable, e.ID)
	}
	if (st.Dirty > 0 || e.Mode == volume.ModeWriteback) && !bugNoFlush.On() {
		// Also when nothing is dirty now: a late writer's block must not become
		// dirty between this proof and the removal of the device.
		if err := a.swapPolicy(ctx, e, true); err != nil {
			return err
		}
		faultUnstageCleaner.Hit()
		if err := a.awaitClean(ctx, e); err != nil {
			return err
		}
	}
	faultUnstageCleaned.Hit()
	if err := a.flushOrigin(ctx, e); err != nil {
		if !a.shutOut(ctx, e) {
			return err
		}
		if err := a.failPaths(ctx, e.ID); err != nil {
			return err
		}
		return a.discard(ctx, e)
	}
	e.Clean, e.Full = true, st.CacheUsed >= st.CacheTotal
	if e.Doubt = a.doubt(ctx, e); e.Doubt != "" {
		return a.discard(ctx, e)
	}
	if err := a.save(ctx, e, state.Flushed); err != nil {
		return err
	}
	faultUnstageFlushed.Hit()
	return nil
}

func (a *Attacher) cacheStatus(ctx context.Context, id volume.ID) (devmapper.CacheStatus, error) {
	// Many volumes may be flushed at the same time, and each looks a few times a second.
	st, found, err := a.DM.Status(ctx, layout.Device(id, layout.Top))
	if err != nil && !errors.Is(err, devmapper.ErrNotExist) {
		return devmapper.CacheStatus{}, err
	}
	if !found {
		return st, fmt.Errorf("%w: device %s is not an active cache", volume.ErrUnavailable, layout.Device(id, layout.Top))
	}
	return st, nil
}

// awaitClean polls until no block is dirty. It ends with ErrBusy shortly before
// the caller's deadline; the cleaner goes on, and the next call continues.
func (a *Attacher) awaitClean(ctx context.Context, e *state.Entry) error {
	tick := time.NewTicker(a.PollInterval)
	defer tick.Stop()
	for {
		st, err := a.cacheStatus(ctx, e.ID)
		if err != nil {
			return err
		}
		if st.Fail {
			return fmt.Errorf("%w: the cache of volume %s failed during its flush", volume.ErrUnavailable, e.ID)
		}
		if st.Dirty == 0 {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 4*a.PollInterval {
			return fmt.Errorf("%w: volume %s is being flushed, %d of %d cache blocks are still dirty", volume.ErrBusy, e.ID, st.Dirty, st.CacheTotal)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: volume %s is being flushed: %w", volume.ErrBusy, e.ID, ctx.Err())
		case <-tick.C:
		}
	}
}

// flushOrigin empties the storage server's volatile write cache. Blocks that
// dm-cache wrote back went there without a flush of their own, so that without
// this step a clean cache would not prove durable data (I2).
func (a *Attacher) flushOrigin(ctx context.Context, e *state.Entry) error {
	o, err := a.lookupOrigin(ctx, e.ID, e.Source)
	if err != nil {
		return err
	}
	patience := originFlushTimeout
	if end, ok := ctx.Deadline(); ok { // the caller has something to decide then
		patience = min(patience, time.Until(end)/2)
	}
	fctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch done, err := a.flushes.run(fctx, e.ID, func() error { return a.syncDevice(o.Path) }); {
	case !done:
		return fmt.Errorf("%w: flush origin %s: the storage server has not answered yet", volume.ErrBusy, o.Path)
	case err != nil:
		return fmt.Errorf("%w: flush origin %s: %w", volume.ErrUnavailable, o.Path, err)
	}
	return nil
}

// originFlushTimeout is how long a flush of the storage server's memory is waited for. It
// goes on beside that, and the next request for one waits for it first.
const originFlushTimeout = 30 * time.Second

func (a *Attacher) syncDevice(path string) error {
	f, err := a.Blocks.Open(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// flushes are the flushes of one kind of device that are under way. The zero value is ready.
type flushes struct {
	mu sync.Mutex
	m  map[volume.ID]chan struct{}
}

// run flushes, and tells whether that has ended before ctx. A flush that waits for lost paths,
// or for an SSD that does not answer, cannot be ended, and proves nothing of what was written
// after its beginning.
func (f *flushes) run(ctx context.Context, id volume.ID, flush func() error) (done bool, err error) {
	for {
		before, mine := f.begin(id, flush)
		select {
		case <-ctx.Done():
			return false, nil
		case <-before:
		case err := <-mine:
			return true, err
		}
	}
}

// begin starts a flush, whose end mine receives. While an earlier one of the volume is under
// way it starts none, and before is closed at the end of that.
func (f *flushes) begin(id volume.ID, flush func() error) (before <-chan struct{}, mine <-chan error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if running := f.m[id]; running != nil {
		return running, nil
	}
	if f.m == nil {
		f.m = map[volume.ID]chan struct{}{}
	}
	ended, result := make(chan struct{}), make(chan error, 1)
	f.m[id] = ended
	go func() {
		err := flush()
		f.mu.Lock()
		delete(f.m, id)
		f.mu.Unlock()
		result <- err
		close(ended)
	}()
	return nil, result
}

// freeReaders answers a device that is open. Whoever has it open may wait for paths that
// never come back, as udev does, which looks at a device whose paths have failed; while this
// ownership may go on, that is waited for.
func (a *Attacher) freeReaders(ctx context.Context, e *state.Entry, busy error) error {
	if !errors.Is(busy, volume.ErrInUse) || e.MayBeDirty() {
		return nil
	}
	// The time of the call went to the device.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	if over, err := a.abandoned(ctx, e); err != nil || !over {
		return err
	}
	return a.failPaths(ctx, e.ID)
}

// freeTimeout bounds the look at the record, and the message, after a device was open.
const freeTimeout = 5 * time.Second

// removeEarlier removes the devices of an earlier stay. Who has one of them open may wait
// for the paths of an ownership that is over, which nobody else would end.
func (a *Attacher) removeEarlier(ctx context.Context, s *staging) error {
	err := a.removeDevices(ctx, s.req.ID)
	if !errors.Is(err, volume.ErrInUse) || s.entry == nil || !laterOwner(s.req.Publication.Fence, s.entry.Fence) {
		return err
	}
	if failErr := a.failPaths(ctx, s.req.ID); failErr != nil {
		return errors.Join(err, failErr)
	}
	return a.removeDevices(ctx, s.req.ID)
}

// failPaths has what waits for lost paths fail: of an origin, and of the peer that a hydration
// copies from, which waits for the origin once that has taken the peer's place. Nobody would
// end it, and it keeps the devices open. If one of them waits, both are told.
func (a *Attacher) failPaths(ctx context.Context, id volume.ID) error {
	wait := false
	for _, part := range pathParts {
		waits, err := a.waitsForPaths(ctx, layout.Device(id, part))
		if err != nil {
			return err
		}
		wait = wait || waits
	}
	if !wait {
		return nil
	}
	return a.tellPaths(ctx, id, false)
}

// queuePaths takes that back, for a volume that goes on.
func (a *Attacher) queuePaths(ctx context.Context, id volume.ID) error {
	return a.tellPaths(ctx, id, true)
}

// pathParts are the devices that may wait for paths.
var pathParts = []layout.Part{layout.Origin, layout.Source}

// tellPaths tells each device over paths what to do with I/O while it has none. One at a time
// does that for a volume: what is remembered is what was said last.
func (a *Attacher) tellPaths(ctx context.Context, id volume.ID, queue bool) error {
	end, free := a.telling.TryLock(string(id))
	if !free {
		return fmt.Errorf("%w: the devices over the paths of volume %s are being changed", volume.ErrBusy, id)
	}
	defer end()
	word := "fail_if_no_path"
	if queue {
		word = "queue_if_no_path"
	}
	for _, part := range pathParts {
		multipath, err := a.isMultipath(ctx, layout.Device(id, part))
		if err == nil && multipath {
			err = a.DM.Message(ctx, layout.Device(id, part), 0, word)
		}
		if err != nil {
			a.queueing.Delete(id) // not known: told again, or taken back
			return err
		}
	}
	a.queueing.Store(id, queue)
	return nil
}

// waitsForPaths tells whether a device is a multipath device without any path.
func (a *Attacher) waitsForPaths(ctx context.Context, name string) (bool, error) {
	multipath, err := a.isMultipath(ctx, name)
	if err != nil || !multipath {
		return false, err
	}
	s, err := a.DM.MultipathStatus(ctx, name)
	return err != nil || !s.HasPath(), nil
}

func (a *Attacher) isMultipath(ctx context.Context, name string) (bool, error) {
	table, err := a.DM.Table(ctx, name)
	if errors.Is(err, devmapper.ErrNotExist) {
		return false, nil
	}
	// By its name: what else the kernel prints of it may be more than the type knows.
	return err == nil && len(table) > 0 && table[0].Target.Type() == (devmapper.MultipathTarget{}).Type(), err
}
