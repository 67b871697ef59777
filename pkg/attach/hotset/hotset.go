// Package hotset stores the lists of the blocks that volumes read most, from which a cache
// is filled where no other node exports one (states.md, The warm move).
package hotset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// MaxBytes is the most that one volume's hot set has.
const MaxBytes = 64 << 10

const (
	// rest is how long a volume has left the node when its hot set is taken.
	rest = 20 * time.Second
	// First is how long it has been attached when its first one is.
	First = 2 * time.Minute
)

// Host is the node whose volumes are listed.
type Host interface {
	state.Journal
	// TryLock takes a volume's lock, unless somebody works on it.
	TryLock(id volume.ID) (unlock func(), ok bool)
}

// Heat is how often the parts of volumes are read.
type Heat interface {
	// Add adds what was counted since to what is kept; Of is what is kept, none if nothing is.
	Add(ctx context.Context, e *state.Entry)
	Of(ctx context.Context, e *state.Entry) cachemap.Heat
}

// Recorder records the hot sets of a node's volumes.
type Recorder struct {
	Host Host
	SSD  *ssd.Group
	// Store keeps them, and Read reads the map of metadata that may be in use, for which it makes
	// files whose names begin with base. Without one of them, or without Dir, a folder for maps,
	// nothing is recorded.
	Store volume.HotSets
	Read  func(ctx context.Context, device, base string) (cachemap.Map, error)
	Dir   string
	// Boot is the kernel's boot id.
	Boot string
	// Heat orders the blocks; nil leaves that to the levels of smq.
	Heat Heat
	// Every is the pause between two hot sets of an attached volume.
	Every time.Duration
	// Bytes is the most that one has; 0 is MaxBytes.
	Bytes int
	Now   func() time.Time

	work passes.Workers
}

// Load returns the volume's hot set. Errors: ErrNotFound.
func (r *Recorder) Load(ctx context.Context, req volume.StageRequest) (*cachemap.HotSet, error) {
	if r.Store == nil {
		return nil, volume.ErrNotFound
	}
	stored, err := r.Store.Load(ctx, req.ID, req.Publication.Fence.UID)
	if err != nil {
		return nil, err
	}
	h, err := cachemap.DecodeHotSet(stored.Blocks)
	if err != nil {
		return nil, fmt.Errorf("hot set of volume %s: %w", req.ID, err)
	}
	return &h, nil
}

// Pass stores the hot sets that are due: of volumes that have left the
// node, and now and then of attached ones. One that cannot be stored is tried again
// later; it is a hint.
func (r *Recorder) Pass(ctx context.Context) {
	if r.Store == nil || r.Read == nil || r.Dir == "" {
		return
	}
	entries, _ := r.Host.Entries() // Repair has said what cannot be read
	var ids []volume.ID
	for i := range entries {
		if r.due(&entries[i]) {
			ids = append(ids, entries[i].ID)
		}
	}
	// What it took is logged by the volume.
	_ = r.work.Each(ctx, passes.Slow, passes.Patience, ids, func(ctx context.Context, id volume.ID) error {
		if err := r.record(ctx, id); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Hot set was not recorded", "volume", id)
		}
		return nil
	})
}

// due reports whether a volume's hot set is to be taken now. That of an attached
// volume is taken for the case that its node is lost; one of an earlier boot is repair's.
func (r *Recorder) due(e *state.Entry) bool {
	switch {
	case !e.Cached() || e.Hydration != nil:
		return false
	case e.State == state.Retained:
		// Not at once: the next owner may be asking for the retained cache just now.
		return e.HotSetDue && e.Exported == nil && r.Now().Sub(e.UpdatedAt) > rest
	}
	return e.State == state.Staged && e.Boot == r.Boot && r.Now().Sub(e.HotSetAt) > r.Every
}

func (r *Recorder) record(ctx context.Context, id volume.ID) error {
	unlock, ok := r.Host.TryLock(id)
	if !ok {
		return nil
	}
	defer unlock()
	e, err := r.Host.Entry(id)
	if err != nil || e == nil || !r.due(e) {
		return err
	}
	m, err := r.copyMap(ctx, e)
	if err != nil {
		// Of an attached volume the copy may be torn; the next one is as good later.
		e.HotSetDue, e.HotSetAt = false, r.Now().UTC()
		return errors.Join(err, r.Host.Save(ctx, e, e.State))
	}
	err = r.Store.Store(ctx, id, e.Fence.UID, volume.HotSet{Blocks: cachemap.EncodeHotSet(r.ordered(ctx, e, m), cmp.Or(r.Bytes, MaxBytes)), Recorded: r.Now()})
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	e.HotSetDue, e.HotSetAt = false, r.Now().UTC()
	if err := r.Host.Save(ctx, e, e.State); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Hot set recorded", "volume", id, "chunks", len(m.Entries))
	return nil
}

// ordered is the map in the order of heat, as far as that is known. That of an attached volume
// is brought up to date before.
func (r *Recorder) ordered(ctx context.Context, e *state.Entry, m cachemap.Map) cachemap.Map {
	if r.Heat == nil {
		return m
	}
	if e.State == state.Staged {
		r.Heat.Add(ctx, e)
	}
	return m.ByHeat(r.Heat.Of(ctx, e))
}

// copyMap reads the map from a copy of the metadata, which may be in use: then the
// copy may be torn, and the tool says so or the list is a little wrong.
func (r *Recorder) copyMap(ctx context.Context, e *state.Entry) (cachemap.Map, error) {
	c, err := r.SSD.Find(ctx, e.ID)
	if err != nil {
		return cachemap.Map{}, err
	}
	if !c.Facts.Whole {
		return cachemap.Map{}, fmt.Errorf("%w: cache of volume %s", volume.ErrNotFound, e.ID)
	}
	return r.Read(ctx, c.Meta.DevPath(), filepath.Join(r.Dir, string(e.ID)))
}
