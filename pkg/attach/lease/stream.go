package lease

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// maps are the lists of caches that are streamed, by their moves: reading one takes seconds,
// and a retained cache does not change.
type maps struct {
	// reading is held while one is read: files are made for that.
	reading sync.Mutex
	mu      sync.Mutex
	m       map[volume.MoveID]list
	// ended are those of leases that are about to end: nothing of them is opened any more.
	ended map[volume.MoveID]bool
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
type list struct{ origin, cache []uint64 }

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
	// offset is where the data begin in the exported device, in bytes.
	offset int64
}

// ChunkSectors is the size of a chunk.
func (s *Streamed) ChunkSectors() uint64 { return s.chunkSectors }

// Blocks are the blocks of the origin that the cache holds, hottest first.
func (s *Streamed) Blocks() []uint64 { return s.list.origin }

// ReadChunks reads chunks from a number of that list on into an aligned buffer: as many as it has room
// for and the cache has side by side, at least one. It returns how many.
func (s *Streamed) ReadChunks(_ context.Context, i int, buf []byte) (int, error) {
	chunk := int(s.chunkSectors) * devmapper.SectorSize
	if i < 0 || i >= len(s.list.cache) || len(buf) < chunk {
		return 0, fmt.Errorf("%w: chunk %d of %d into %d bytes", volume.ErrInvalid, i, len(s.list.cache), len(buf))
	}
	n := 1
	for n < len(buf)/chunk && i+n < len(s.list.cache) && s.list.cache[i+n] == s.list.cache[i]+uint64(n) {
		n++
	}
	_, err := s.dev.ReadAt(buf[:n*chunk], s.offset+int64(s.list.cache[i]*s.chunkSectors)*devmapper.SectorSize)
	return n, err
}

// Close lets the device go.
func (s *Streamed) Close() error { return s.dev.Close() }

// OpenStream opens the cache that this node streams to another one in a move. It is read
// through the exported device, which shows nothing but mapped chunks.
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
	c, err := l.SSD.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	if !c.Facts.Whole {
		return nil, fmt.Errorf("%w: the cache of volume %s is not whole on the SSD", volume.ErrUnavailable, id)
	}
	out := &Streamed{chunkSectors: e.ChunkSectors, offset: c.Meta.SizeBytes}
	if out.list, err = l.listOf(ctx, e, c); err != nil {
		return nil, err
	}
	infos, err := l.Stack.Parts(ctx, id)
	if err != nil {
		return nil, err
	}
	dev, found := infos[layout.Exported]
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

// listOf is what a leased cache holds. It is read once: as long as the lease lasts it does not
// change.
func (l *Lessor) listOf(ctx context.Context, e *state.Entry, c ssd.Cache) (list, error) {
	l.maps.reading.Lock()
	defer l.maps.reading.Unlock()
	if known, ok := l.maps.get(*e.Exported); ok {
		return known, nil
	}
	// The exported device has the metadata open.
	read, err := l.ReadInUse(ctx, c.Meta.DevPath(), filepath.Join(l.Dir, string(e.ID)+".sent"))
	if err != nil {
		return list{}, fmt.Errorf("%w: map of volume %s: %w", volume.ErrUnavailable, e.ID, err)
	}
	if read.ChunkSectors != e.ChunkSectors || read.Dirty > 0 {
		return list{}, fmt.Errorf("%w: the map of volume %s has %d dirty chunks of %d sectors, the journal says %d",
			volume.ErrUnavailable, e.ID, read.Dirty, read.ChunkSectors, e.ChunkSectors)
	}
	var out list
	out.origin, out.cache = read.Hottest()
	l.maps.put(*e.Exported, out)
	return out, nil
}
