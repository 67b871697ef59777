package attach

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/attach/stream"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Puller gets the cache of another node.
type Puller = stream.Puller

// errNotReady: a stage without the stream, or the preload, would be over by now.
var errNotReady = errors.New("the map of the cache was not ready when the cache was needed")

// Streams leads the streams of this node to their end.
func (a *Attacher) Streams() *stream.Runner { return a.streams }

// streamProblem says why no cache can be filled by a stream, or "".
func (a *Attacher) streamProblem(ctx context.Context) string {
	if s := a.warmProblemConfigured(); s != "" {
		return s
	}
	if a.StreamProblem != nil {
		return a.StreamProblem(ctx)
	}
	return ""
}

// importStream gets the lease of another node's cache, and the list of its blocks.
func (a *Attacher) importStream(ctx context.Context, s *staging, w *warmPlan) error {
	if a.Stream == nil {
		return fmt.Errorf("%w: streams are not configured", volume.ErrUnavailable)
	}
	lease, err := a.beginLease(ctx, s, w, func(h *state.Hydration, l *volume.Lease) error {
		if l.Stream == nil {
			return fmt.Errorf("%w: the other node's answer names no stream", volume.ErrUnavailable)
		}
		h.Stream.Source = l.Stream
		return nil
	})
	if err != nil {
		return err
	}
	faultStreamLeased.Hit()
	if a.prestages.wasLate(s.entry.ID, s.entry.Fence) {
		return errNotReady // of no use: what the stage has by now is all that it can have
	}
	l, err := a.Stream.Map(ctx, *lease.Stream, s.entry.ID, s.entry.Hydration.Move)
	switch {
	case err != nil:
		return err
	case l.ChunkSectors != lease.ChunkSectors:
		return fmt.Errorf("%w: the other node sends chunks of %d sectors, it has said %d", volume.ErrUnavailable, l.ChunkSectors, lease.ChunkSectors)
	case len(l.Blocks) == 0:
		return fmt.Errorf("%w: the other node's cache is empty", volume.ErrUnavailable)
	}
	s.seed.list = &l
	return nil
}

// streamGeometry is the map of a cache that is filled with the listed blocks, and its
// geometry: chunks of the source's size, in as much room as the volume is to have.
func (a *Attacher) streamGeometry(s *staging, g *geometry, unit int64, blocks []uint64, chunkSectors uint64) (*cachemap.Map, error) {
	e := s.entry
	room := uint64(g.dataBytes) / sectorSize / chunkSectors
	if room == 0 || room > devmapper.MaxCacheBlocks {
		return nil, fmt.Errorf("%w: a cache of %d bytes cannot have chunks of %d sectors", volume.ErrUnavailable, g.dataBytes, chunkSectors)
	}
	m, err := cachemap.Streamed(blocks, chunkSectors, room, s.origin.Sectors)
	if err != nil {
		return nil, err
	}
	if chunkSectors != g.chunkSectors {
		g.chunkSectors, g.metaBytes = chunkSectors, ssd.RoundUp(devmapper.MetadataBytes(room), unit)
	}
	return &m, a.streamOver(e, &m)
}

// streamOver has the entry and its file say that a stream is to fill an ordinary map.
func (a *Attacher) streamOver(e *state.Entry, m *cachemap.Map) error {
	chunks, h := uint64(len(m.Entries)), e.Hydration.Stream
	h.Chunks, h.Hot, h.Prewarmed = chunks, cachemap.HotChunks(chunks), false
	return a.writeMap(e.ID, *m)
}

// restoreLevels writes the maps of both levels, on devices of their own. The pod does not wait for
// large ones on a slow node: the error is errNotReady then.
func (a *Attacher) restoreLevels(ctx context.Context, s *staging, m cachemap.Map) error {
	e := s.entry
	hot, rest, err := a.stack.LevelMaps(ctx, e, s.cache.Hydration)
	if err != nil {
		return err
	}
	if !e.Hydration.Stream.Prewarmed { // what is here already is worth the wait
		var cancel context.CancelFunc
		ctx, cancel = a.whileWorthIt(ctx, s)
		defer cancel()
	}
	first, others := m.Ordered().Split(e.Hydration.Stream.Hot, stack.HotBlocks(e))
	var both errgroup.Group
	both.Go(func() error { return a.restoreMap(ctx, e.ID, layout.HotMeta, first, hot.DevPath()) })
	both.Go(func() error { return a.restoreMap(ctx, e.ID, layout.RestMeta, others, rest.DevPath()) })
	if err := s.beside(both.Wait); err != nil {
		if errors.Is(context.Cause(ctx), errNotReady) {
			return fmt.Errorf("%w: %w", errNotReady, err)
		}
		return err
	}
	faultStreamRestored.Hit()
	return nil
}

// whileWorthIt ends with errNotReady when the pod has waited enough for the maps of a new cache: a stage
// without it would be over soon after the origin is connected.
func (a *Attacher) whileWorthIt(ctx context.Context, s *staging) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.connected:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(min(max(time.Since(s.asked), a.Warm.MapsLeast), a.Warm.MapsTimeout)):
			end(errNotReady)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil) }
}

// restoreMap writes a map to metadata that are not in use.
func (a *Attacher) restoreMap(ctx context.Context, id volume.ID, p layout.Part, m cachemap.Map, device string) (err error) {
	file := filepath.Join(a.Warm.Dir, string(id)+"."+string(p)+".xml")
	defer func() { err = errors.Join(err, cachetools.RemoveFiles(file)) }()
	if err := cachetools.WriteFile(file, m); err != nil {
		return err
	}
	return a.Tools.Restore(ctx, file, device)
}

// settleStream ends a stream under the volume's lock, so that there is one map, or none.
func (a *Attacher) settleStream(ctx context.Context, e *state.Entry) error {
	err := a.streams.Settle(ctx, e, "the volume left the node before everything was copied")
	if err == nil || !a.shutOut(ctx, e) {
		return err
	}
	// The server may never let the node in again, and no write is on the SSD alone.
	if failErr := a.stack.FailPaths(ctx, e.ID); failErr != nil {
		return errors.Join(err, failErr)
	}
	return a.discard(ctx, e)
}

// uncacheStream has a volume go on without the cache that a stream was filling. Nothing in
// it is the only copy of anything.
func (a *Attacher) uncacheStream(ctx context.Context, e *state.Entry, why string) error {
	klog.FromContext(ctx).Info("Stream ends, and with it the cache", "volume", e.ID, "reason", why)
	l, err := a.stack.Levels(ctx, e)
	if err != nil {
		return err
	}
	st, _, err := a.stack.LevelStatus(ctx, e)
	if err != nil {
		return err
	}
	if !st.Fail && st.Dirty > 0 {
		// A level whose map was loaded as dirty: its policy writes that to the origin.
		return fmt.Errorf("%w: the cache of volume %s has %d dirty blocks, it cannot be taken away", volume.ErrUnavailable, e.ID, st.Dirty)
	}
	origin := l.OriginOf()
	if origin == "" {
		return fmt.Errorf("%w: the origin below the cache of volume %s is not known", volume.ErrUnavailable, e.ID)
	}
	a.stack.FinalCount(ctx, e.ID)
	// The journal must deny the cache before the pod can write past it (I3).
	e.Deny()
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultStreamDenied.Hit()
	if err := a.stack.Bypass(ctx, e, l.Top.Sectors(), origin); err != nil {
		return err
	}
	return a.sweepBecause(ctx, e, why)
}

// ReadLevel implements stream.Host.
func (h warmHost) ReadLevel(ctx context.Context, id volume.ID, device string) (*cachemap.Map, error) {
	m, err := h.readInUse(ctx, device, filepath.Join(h.Warm.Dir, string(id)+".level"))
	return &m, err
}

// readInUse reads the map of metadata that are in use. What changes meanwhile may be torn.
func (a *Attacher) readInUse(ctx context.Context, device, base string) (cachemap.Map, error) {
	if a.ReadInUse != nil {
		return a.ReadInUse(ctx, device, base)
	}
	return cachetools.ReadMap(ctx, a.Tools.Dump, device, base)
}

// RestoreMap implements stream.Host.
func (h warmHost) RestoreMap(ctx context.Context, id volume.ID, m cachemap.Map, device string) error {
	return h.restoreMap(ctx, id, layout.Top, m, device)
}

// Uncache implements stream.Host.
func (h warmHost) Uncache(ctx context.Context, e *state.Entry, why string) error {
	return h.uncacheStream(ctx, e, why)
}
