package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/volume"
)

// preloads reports whether a new cache of a volume is to be filled with all that it has room for,
// and there is anything to fill it with (states.md, Preload).
func preloads(rec volume.Volume) bool {
	w := rec.Spec.WarmStart
	return w.Preload && w.From != volume.WarmOff && rec.Filesystem == volume.FormatDone
}

// originRequest is what the owner asks of a hydration from the origin.
func (a *Attacher) originRequest(rec volume.Volume, f volume.Fence, h *state.Hydration) volume.MoveRequest {
	r := a.moveRequest(rec, f, nil)
	if h.Preload {
		r.Method = volume.MethodPreload
	}
	return r
}

// streamedFromOrigin is the map of a stream that fills a cache from the origin with the blocks of m,
// which has the hottest first. What a preload has added to them keeps the lowest hint: where it lies in
// the order says nothing of its heat.
func streamedFromOrigin(m cachemap.Map, preload bool, originSectors uint64) (cachemap.Map, error) {
	blocks, _ := m.Hottest()
	ordered, err := cachemap.Streamed(blocks, m.ChunkSectors, m.CacheBlocks, originSectors)
	if err != nil || !preload {
		return ordered, err
	}
	for i := range ordered.Entries {
		if m.Entries[i].Level == 0 {
			ordered.Entries[i].Level = 0
		}
	}
	return ordered, nil
}

// restoreClone writes the map of a hydration by clone to the cache's metadata. The map of a whole
// cache may be a large one: the pod does not wait for it longer than for those of a stream. The
// error is errNotReady then.
func (a *Attacher) restoreClone(ctx context.Context, s *staging) error {
	e := s.entry
	if e.Hydration.Preload {
		var end context.CancelFunc
		ctx, end = a.whileWorthIt(ctx, s)
		defer end()
	}
	if err := a.Tools.Restore(ctx, a.mapFile(e.ID), s.cache.Meta.DevPath()); err != nil {
		if errors.Is(context.Cause(ctx), errNotReady) {
			return fmt.Errorf("%w: %w", errNotReady, err)
		}
		return fmt.Errorf("map of volume %s: %w", e.ID, err)
	}
	faultHydrationRestored.Hit()
	return nil
}
