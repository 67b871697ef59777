package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// RunPaths brings back the paths of origins that work again, until ctx ends (states.md,
// Paths that fail). The kernel's multipath target has no checker: a path that failed stays
// failed until somebody says otherwise.
func (a *Attacher) RunPaths(ctx context.Context, every time.Duration) {
	passes.Repeat(ctx, every, a.TendPaths, func(err error) {
		klog.FromContext(ctx).Error(err, "Paths of volumes could not be looked at")
	})
}

// TendPaths looks once at each volume that may wait for paths. It takes no lock and writes no
// journal: whoever holds the volume's lock may be waiting for just this. Nobody is asked for
// a volume that the watch shows to be attached here.
func (a *Attacher) TendPaths(ctx context.Context) error {
	entries, err := a.Journal.List()
	problems := []error{err}
	owned := sync.OnceValue(func() map[volume.ID]volume.Volume { return a.owned(ctx) }) // most nodes have no such volume
	waiting := map[volume.ID]*state.Entry{}
	var ids []volume.ID
	for i := range entries {
		e := &entries[i]
		if e.State == state.Retained || e.State == state.Prewarmed || len(e.Source.Portals) < 2 && e.Hydration == nil {
			continue
		}
		lost, waits, err := a.stack.LostPaths(ctx, e)
		queue, told := a.stack.Queueing(e.ID)
		rec, known := owned()[e.ID]
		if e.ReadOnly && (len(lost) > 0 || waits) { // the watch shows none of what many read
			rec, known = a.readsNow(ctx, e.ID)
		}
		switch {
		case err != nil:
			problems = append(problems, err)
		case known && rec.Published && rec.Fence == e.Fence && e.Lost == nil:
			problems = append(problems, a.keepPaths(ctx, e, lost))
		case waits && (queue || !told):
			waiting[e.ID] = e
			ids = append(ids, e.ID)
		}
	}
	return errors.Join(append(problems, a.tending.Each(ctx, passes.Slow, passes.Patience, ids, func(ctx context.Context, id volume.ID) error {
		return a.endWait(ctx, waiting[id])
	}))...)
}

// readsNow is the record of a volume that this node reads as one of many; what cannot be read says
// nothing.
func (a *Attacher) readsNow(ctx context.Context, id volume.ID) (volume.Volume, bool) {
	rec, err := a.Records.Get(ctx, id)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Nobody knows whether the volume is still read here", "volume", id, "reason", err.Error())
	}
	return rec, err == nil
}

// keepPaths brings a volume that is attached here to waiting for its paths, if it was told not
// to, and tries those that have failed.
func (a *Attacher) keepPaths(ctx context.Context, e *state.Entry, lost []string) error {
	if queue, _ := a.stack.Queueing(e.ID); !queue {
		if err := a.stack.QueuePaths(ctx, e.ID); err != nil {
			return err
		}
	}
	for _, devno := range lost {
		a.tryPath(ctx, e, devno)
	}
	return nil
}

// endWait has what waits for lost paths fail if the ownership is over.
func (a *Attacher) endWait(ctx context.Context, e *state.Entry) error {
	rec, err := a.Records.Get(ctx, e.ID)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil || !pathsOver(e, rec) {
		return err
	}
	klog.FromContext(ctx).Info("Nothing waits for lost paths any more, because the ownership is over", "volume", e.ID, "generation", e.Fence.Generation)
	return a.stack.FailPaths(ctx, e.ID)
}

// pathsOver reports whether an entry's volume need not wait for lost paths: its record has a
// later owner, so that the server does not admit this one any more; or no write is on the
// SSD alone, and the record says that the volume is not attached. A record of another volume
// of the name, or one out of a backup, proves nothing: the server may still admit this node.
func pathsOver(e *state.Entry, rec volume.Volume) bool {
	return laterOwner(rec.Fence, e.Fence) || !e.MayBeDirty() && !e.Marked && rec.Fence == e.Fence && !rec.Published
}

// tryPath reads from a path that failed, and says so to the kernel if that works. A read may
// take as long as the session is waited for; until it has ended, there is no other.
func (a *Attacher) tryPath(ctx context.Context, e *state.Entry, devno string) {
	name := layout.Device(e.ID, layout.Origin)
	end, free := a.trying.TryLock(name + " " + devno)
	if !free {
		return
	}
	go func() {
		defer end()
		log := klog.FromContext(ctx).WithValues("volume", e.ID, "path", devno)
		err := readPath(a.Sysfs, devno)
		if err == nil {
			err = a.mayWrite(ctx, e)
		}
		if err != nil {
			log.V(4).Info("Path does not work yet", "reason", err.Error())
			return
		}
		if err := a.DM.Message(ctx, name, 0, "reinstate_path", devno); err != nil {
			log.Error(err, "Path works again and could not be brought back")
			return
		}
		log.Info("Path works again")
	}()
}

// mayWrite is an error unless each path of a reserved LUN is registered: everybody may read
// one, and a write that is refused is an error for the pod, no reason to try another path.
func (a *Attacher) mayWrite(ctx context.Context, e *state.Entry) error {
	if !e.Static || !e.Reserved {
		return nil
	}
	o, _, err := a.Transport.Lookup(ctx, transport.Target{Source: e.Source})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reservationLookTime)
	defer cancel()
	f, _, err := reservation.Inspect(ctx, a.paths(o), keyOf(e.Fence))
	if err == nil && !f.Registered() {
		err = fmt.Errorf("not every path is registered, or another key holds the reservation: %+v", f)
	}
	return err
}

// readPath reads the beginning of a device past the page cache, unless a reservation is being
// taken over by it (states.md, The fence of a static volume).
func readPath(sysfs, devno string) error {
	link, err := os.Readlink(filepath.Join(sysfs, "dev", "block", devno))
	if err != nil {
		return fmt.Errorf("device %s: %w", devno, err)
	}
	f, err := blockdev.OpenDirect("/dev/" + filepath.Base(link))
	if err != nil {
		return err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		_, err = f.ReadAt(blockdev.AlignedBuffer(4<<10), 0)
	}
	return errors.Join(err, f.Close())
}
