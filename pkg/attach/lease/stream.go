package lease

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// mapTries is how often the map of a cache in use is read before it is given up: a copy of
	// metadata that change meanwhile may be torn. mapPause is the pause between two.
	mapTries = 5
	mapPause = 250 * time.Millisecond
	// mapsAtOnce is how many maps are read at the same time, fewer of large caches: together
	// they have as many chunks as the largest that is sent. A node that is drained is asked for
	// many, and who waits for long begins cold.
	mapsAtOnce = 4
)

// maps are the lists of caches that are streamed, by their moves: reading one takes seconds,
// and a stream that broke goes on by the same list.
type maps struct {
	// reading has the volumes whose maps are read: files are made for that.
	reading keylock.Queue
	mu      sync.Mutex
	// room is how many chunks may be read at once.
	room *semaphore.Weighted
	m    map[volume.MoveID]list
	// ended are those of leases that are about to end: nothing of them is opened any more.
	ended map[volume.MoveID]bool
}

// enter waits until a map of so many chunks may be read.
func (s *maps) enter(ctx context.Context, chunks int64) (leave func(), err error) {
	s.mu.Lock()
	if s.room == nil {
		s.room = semaphore.NewWeighted(volume.MaxExportedChunks)
	}
	s.mu.Unlock()
	weight := min(max(chunks, volume.MaxExportedChunks/mapsAtOnce), volume.MaxExportedChunks)
	if err := s.room.Acquire(ctx, weight); err != nil {
		return nil, err
	}
	return func() { s.room.Release(weight) }, nil
}

func (s *maps) end(m volume.MoveID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = map[volume.MoveID]bool{}
	}
	s.ended[m] = true
}

func (s *maps) over(m volume.MoveID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[m]
}

// list are the blocks of the origin that a cache holds, hottest first, and where.
type list struct {
	origin []uint64
	cache  []uint32
}

func (s *maps) get(m volume.MoveID) (list, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.m[m]
	return l, ok
}

func (s *maps) put(m volume.MoveID, l list) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[volume.MoveID]list{}
	}
	s.m[m] = l
}

func (s *maps) drop(m volume.MoveID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, m)
	delete(s.ended, m)
}

// Streamed is a cache as one other node may read it.
type Streamed struct {
	chunkSectors uint64
	list         list
	dev          blockdev.File
	// offset is where the data begin in the device, in bytes.
	offset int64
	// asRead is true if the device is that which pods read: it has blocks of the origin at their own
	// places. What the cache has in a place may be another block by now.
	asRead bool
}

// at is where a chunk of the list lies in the device, in chunks.
func (s *Streamed) at(i int) uint64 {
	if s.asRead {
		return s.list.origin[i]
	}
	return uint64(s.list.cache[i])
}

// ChunkSectors is the size of a chunk.
func (s *Streamed) ChunkSectors() uint64 { return s.chunkSectors }

// Blocks are the blocks of the origin that the cache holds, hottest first.
func (s *Streamed) Blocks() []uint64 { return s.list.origin }

// Places are where the cache has them.
func (s *Streamed) Places() []uint32 { return s.list.cache }

// ReadChunks reads chunks from a number of that list on into an aligned buffer: as many as it has room
// for and the device has side by side, at least one. It returns how many; none if one of them cannot
// be read. It may be called several times at a time.
func (s *Streamed) ReadChunks(_ context.Context, i int, buf []byte) (int, error) {
	chunk := int(s.chunkSectors) * devmapper.SectorSize
	if i < 0 || i >= len(s.list.cache) || len(buf) < chunk {
		return 0, fmt.Errorf("%w: chunk %d of %d into %d bytes", volume.ErrInvalid, i, len(s.list.cache), len(buf))
	}
	n := 1
	for n < len(buf)/chunk && i+n < len(s.list.cache) && s.at(i+n) == s.at(i)+uint64(n) {
		n++
	}
	if _, err := s.dev.ReadAt(buf[:n*chunk], s.offset+int64(s.at(i)*s.chunkSectors)*devmapper.SectorSize); err != nil {
		return 0, err
	}
	return n, nil
}

// Close lets the device go.
func (s *Streamed) Close() error { return s.dev.Close() }

// OpenStream opens the cache that this node streams to another one in a move. A retained one is
// read through the exported device, which shows nothing but mapped chunks; one in use through its
// data device, while it lasts, or where many read the volume through the device that pods read.
// Errors: ErrNotFound (no such lease), ErrFenced (it is another node's), ErrUnavailable.
func (l *Lessor) OpenStream(ctx context.Context, id volume.ID, m volume.MoveID, to string) (*Streamed, error) {
	e, err := l.Host.Entry(id)
	if err != nil {
		return nil, err
	}
	switch {
	case e == nil || e.Exported == nil || *e.Exported != m || e.Boot != l.Boot || l.maps.over(m):
		return nil, fmt.Errorf("%w: volume %s is not streamed in move %s", volume.ErrNotFound, id, m.Name)
	case e.StreamedTo == "" || e.StreamedTo != to:
		return nil, fmt.Errorf("%w: the cache of volume %s is not for node %q", volume.ErrFenced, id, to)
	}
	c, err := l.SSD.Inspect(ctx, l.SSD.Pool.View().VG, id)
	if err != nil {
		return nil, err
	}
	if !c.Facts.Whole {
		return nil, fmt.Errorf("%w: the cache of volume %s is not whole on the SSD", volume.ErrUnavailable, id)
	}
	out, part := &Streamed{chunkSectors: e.ChunkSectors, offset: c.Meta.SizeBytes}, layout.Exported
	switch {
	case e.State == state.Staged && e.ReadOnly:
		out.offset, out.asRead, part = 0, true, layout.Top
	case e.State == state.Staged:
		out.offset, part = 0, layout.Data
	}
	if out.list, err = l.listOf(ctx, e, c); err != nil {
		return nil, err
	}
	infos, err := l.Stack.Parts(ctx, id)
	if err != nil {
		return nil, err
	}
	dev, found := infos[part]
	if !found {
		return nil, fmt.Errorf("%w: the lease of volume %s has ended", volume.ErrNotFound, id)
	}
	if out.dev, err = l.Open(dev.DevPath(), unix.O_RDONLY|unix.O_DIRECT); err != nil {
		return nil, fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	// What was opened may be the device of the next lease.
	if now, err := l.Host.Entry(id); err != nil || now == nil || now.Exported == nil || *now.Exported != m || l.maps.over(m) {
		return nil, errors.Join(fmt.Errorf("%w: the lease of volume %s has ended", volume.ErrNotFound, id), err, out.dev.Close())
	}
	return out, nil
}

// listOf is what a leased cache holds. It is read once: as long as the lease lasts, and this
// process, it does not change.
func (l *Lessor) listOf(ctx context.Context, e *state.Entry, c ssd.Cache) (list, error) {
	unlock, err := l.maps.reading.Lock(ctx, string(e.ID))
	if err != nil {
		return list{}, fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	defer unlock()
	if known, ok := l.maps.get(*e.Exported); ok {
		return known, nil
	}
	leave, err := l.maps.enter(ctx, c.Data.SizeBytes/(int64(max(e.ChunkSectors, 1))*devmapper.SectorSize))
	if err != nil {
		return list{}, fmt.Errorf("%w: maps of other volumes are being read: %w", volume.ErrUnavailable, err)
	}
	defer leave()
	read, err := l.mapInUse(ctx, e, c)
	if err != nil {
		return list{}, fmt.Errorf("%w: map of volume %s: %w", volume.ErrUnavailable, e.ID, err)
	}
	// A cache in use: the kernel wrote down what is dirty when its table was last suspended
	// (sync_metadata in dm-cache-target.c). What became dirty since is sent, and flushed before the
	// volume leaves; whatever was written by then, the node does not use (states.md, A prewarmed node).
	read = read.Clean()
	if l.Heat != nil {
		read = read.ByHeat(l.Heat.Of(ctx, e))
	}
	origin, cache := read.Hottest()
	out := list{origin: origin, cache: make([]uint32, len(cache))}
	for i, at := range cache {
		out.cache[i] = uint32(at)
	}
	l.maps.put(*e.Exported, out)
	return out, nil
}

// mapInUse reads the map of a cache whose metadata a device has open. That of a cache in use
// changes, and a copy that is torn is taken again.
func (l *Lessor) mapInUse(ctx context.Context, e *state.Entry, c ssd.Cache) (m cachemap.Map, err error) {
	live := e.State == state.Staged
	for try := 1; ; try++ {
		m, err = l.ReadInUse(ctx, c.Meta.DevPath(), filepath.Join(l.Dir, string(e.ID)+".sent"))
		if err == nil {
			err = sendable(m, e.ChunkSectors, c.Data.SizeBytes, live)
		}
		if err == nil || !live || try == mapTries {
			return m, err
		}
		klog.FromContext(ctx).V(2).Info("Map of a cache in use is read again", "volume", e.ID, "reason", err.Error())
		select {
		case <-ctx.Done():
			return m, ctx.Err()
		case <-time.After(mapPause):
		}
	}
}

// sendable is an error for a map that is none of a cache with those chunks and data.
func sendable(m cachemap.Map, chunkSectors uint64, dataBytes int64, live bool) error {
	switch {
	case m.ChunkSectors != chunkSectors:
		return fmt.Errorf("it has chunks of %d sectors, the journal says %d", m.ChunkSectors, chunkSectors)
	case m.Dirty > 0 && !live:
		return fmt.Errorf("it has %d dirty chunks", m.Dirty)
	case m.End() > uint64(dataBytes)/devmapper.SectorSize:
		return fmt.Errorf("it has chunks up to sector %d of %d bytes of data", m.End(), dataBytes)
	case m.End()/chunkSectors > volume.MaxExportedChunks:
		return fmt.Errorf("it has chunks up to number %d; at most %d are sent", m.End()/chunkSectors, volume.MaxExportedChunks)
	}
	return nil
}
