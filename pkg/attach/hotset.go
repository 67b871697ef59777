package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// hotSetBytes bounds one volume's hot set.
const hotSetBytes = 64 << 10

const (
	// hotSetRest is how long a volume has left the node when its hot set is taken.
	hotSetRest = 20 * time.Second
	// hotSetFirst is how long it has been attached when its first one is.
	hotSetFirst = 2 * time.Minute
)

// loadHotSet returns the volume's hot set. Errors: ErrNotFound.
func (a *Attacher) loadHotSet(ctx context.Context, req volume.StageRequest) (*cachemap.HotSet, error) {
	if a.HotSets == nil {
		return nil, volume.ErrNotFound
	}
	stored, err := a.HotSets.Load(ctx, req.ID, req.Publication.Fence.UID)
	if err != nil {
		return nil, err
	}
	h, err := cachemap.DecodeHotSet(stored.Blocks)
	if err != nil {
		return nil, fmt.Errorf("hot set of volume %s: %w", req.ID, err)
	}
	return &h, nil
}

// RecordHotSets stores the hot sets that are due: of volumes that have left the
// node, and now and then of attached ones. One that cannot be stored is tried again
// later; it is a hint.
func (a *Attacher) RecordHotSets(ctx context.Context) {
	if a.HotSets == nil || a.Tools == nil || a.Warm.Dir == "" {
		return
	}
	entries, _ := a.Journal.List() // Repair has said what cannot be read
	var due []volume.ID
	for i := range entries {
		if a.hotSetDue(&entries[i]) {
			due = append(due, entries[i].ID)
		}
	}
	// What it took is logged by the volume.
	_ = a.hotSetting.Each(ctx, passes.Slow, passes.Patience, due, func(ctx context.Context, id volume.ID) error {
		if err := a.recordHotSet(ctx, id); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Hot set was not recorded", "volume", id)
		}
		return nil
	})
}

// hotSetDue reports whether a volume's hot set is to be taken now. That of an attached
// volume is taken for the case that its node is lost; one of an earlier boot is repair's.
func (a *Attacher) hotSetDue(e *state.Entry) bool {
	switch {
	case !e.Cached() || e.Hydration != nil:
		return false
	case e.State == state.Retained:
		// Not at once: the next owner may be asking for the retained cache just now.
		return e.HotSetDue && e.Exported == nil && a.Now().Sub(e.UpdatedAt) > hotSetRest
	}
	return e.State == state.Staged && e.Boot == a.Boot && a.Now().Sub(e.HotSetAt) > a.Warm.HotSetEvery
}

func (a *Attacher) recordHotSet(ctx context.Context, id volume.ID) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return nil
	}
	defer unlock()
	e, err := a.load(id)
	if err != nil || e == nil || !a.hotSetDue(e) {
		return err
	}
	m, err := a.copyMap(ctx, e)
	if err != nil {
		// Of an attached volume the copy may be torn; the next one is as good later.
		e.HotSetDue, e.HotSetAt = false, a.Now().UTC()
		return errors.Join(err, a.save(ctx, e, e.State))
	}
	err = a.HotSets.Store(ctx, id, e.Fence.UID, volume.HotSet{Blocks: cachemap.EncodeHotSet(m, hotSetBytes), Recorded: a.Now()})
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	e.HotSetDue, e.HotSetAt = false, a.Now().UTC()
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Hot set recorded", "volume", id, "chunks", len(m.Entries))
	return nil
}

// copyMap reads the map from a copy of the metadata, which may be in use: then the
// copy may be torn, and the tool says so or the list is a little wrong.
func (a *Attacher) copyMap(ctx context.Context, e *state.Entry) (cachemap.Map, error) {
	c, err := a.ssd.Find(ctx, e.ID)
	if err != nil {
		return cachemap.Map{}, err
	}
	if !c.Facts.Whole {
		return cachemap.Map{}, fmt.Errorf("%w: cache of volume %s", volume.ErrNotFound, e.ID)
	}
	return ReadMap(ctx, a.Tools.Dump, c.Meta.DevPath(), filepath.Join(a.Warm.Dir, string(e.ID)))
}

// ReadMap reads the map of a cache from a copy of its metadata, for which it makes
// files whose names begin with base. A cache that was never stopped cleanly is read
// too.
func ReadMap(ctx context.Context, dump func(ctx context.Context, device, file string) error, metadataDevice, base string) (m cachemap.Map, err error) {
	raw, text := base+".raw", base+".hot"
	defer func() { err = errors.Join(err, removeFiles(raw, text)) }()
	if err := copyDevice(ctx, metadataDevice, raw); err != nil {
		return m, err
	}
	if err := devmapper.AddHints(raw); err != nil {
		return m, err
	}
	if err := dump(ctx, raw, text); err != nil {
		return m, err
	}
	f, err := os.Open(text)
	if err != nil {
		return m, err
	}
	defer func() { _ = f.Close() }()
	return cachemap.Read(f)
}

func removeFiles(paths ...string) error {
	var errs []error
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// copyDevice copies a device past the page cache, in which the kernel's own writes
// do not show.
func copyDevice(ctx context.Context, device, file string) error {
	return copyHead(ctx, device, file, math.MaxInt64)
}

// copyHead copies the first n bytes of a device, a multiple of 4096.
func copyHead(ctx context.Context, device, file string, n int64) error {
	in, err := blockdev.OpenDirect(device)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	buf := blockdev.AlignedBuffer(1 << 20)
	for err == nil && n > 0 && ctx.Err() == nil {
		var got int
		if got, err = in.Read(buf[:min(n, int64(len(buf)))]); got > 0 {
			_, werr := out.Write(buf[:got])
			err, n = errors.Join(err, werr), n-int64(got)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err = errors.Join(err, ctx.Err(), out.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", device, err)
	}
	return nil
}
