package cachestream

import (
	"context"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Audience is whom the token of a client is for.
const Audience = "nearflash-stream"

const (
	sectorSize = 512
	// chunkAlign is what the size of dm-cache's chunks is a multiple of, in sectors.
	chunkAlign = 64
	// MaxChunkBytes is the largest chunk that is sent: it is held in memory whole on both
	// sides. Caches of up to 64 TiB have smaller ones.
	MaxChunkBytes = 64 << 20
	// MaxPieceBytes is the most of chunks that one message has.
	MaxPieceBytes = 1 << 20
	// runBytes is how much is read ahead, in bytes, twice; a larger chunk is read by itself.
	runBytes = 1 << 20
)

// Caches are the caches of this node that others may read.
type Caches interface {
	// OpenLease opens the cache that is leased to a node for a move. ctx ends with the
	// stream. Errors: volume.ErrNotFound, volume.ErrFenced (the cache is for another node),
	// volume.ErrUnavailable.
	OpenLease(ctx context.Context, id volume.ID, m volume.MoveID, to string) (Cache, error)
}

// CachesOf are the caches that open opens; its errors are those of OpenLease.
func CachesOf[C Cache](open func(ctx context.Context, id volume.ID, m volume.MoveID, to string) (C, error)) Caches {
	return opener[C](open)
}

type opener[C Cache] func(ctx context.Context, id volume.ID, m volume.MoveID, to string) (C, error)

// OpenLease implements Caches.
func (o opener[C]) OpenLease(ctx context.Context, id volume.ID, m volume.MoveID, to string) (Cache, error) {
	c, err := o(ctx, id, m, to)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Cache is a leased cache while it is read. Of its methods only ReadChunks is called several times at a
// time.
type Cache interface {
	// ChunkSectors is the size of a chunk in sectors of 512 bytes.
	ChunkSectors() uint64
	// Blocks are the origin's blocks that the cache has, in units of a chunk, hottest
	// first, each once. As long as the lease lasts they are the same in each Cache that is
	// opened of it: a stream that broke is resumed by the place in this list.
	Blocks() []uint64
	// Places are where the cache has them, in units of a chunk: one for each, none twice.
	Places() []uint32
	// ReadChunks reads whole chunks from Blocks()[i] on into buf, which is aligned for O_DIRECT and
	// has room for at least one: as many of them as lie side by side. It returns how many. With an
	// error nothing of buf is to be believed.
	ReadChunks(ctx context.Context, i int, buf []byte) (int, error)
	// Close ends the use of the cache.
	Close() error
}
