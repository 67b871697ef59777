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
	// MaxPieceBytes is the most of a chunk that one message has.
	MaxPieceBytes = 1 << 20
)

// Caches are the caches of this node that others may read.
type Caches interface {
	// OpenLease opens the cache that is leased to a node for a move. ctx ends with the
	// stream. Errors: volume.ErrNotFound, volume.ErrFenced (the cache is for another node),
	// volume.ErrUnavailable.
	OpenLease(ctx context.Context, id volume.ID, m volume.MoveID, to string) (Cache, error)
}

// Cache is a leased cache while it is read. Its methods are called one at a time.
type Cache interface {
	// ChunkSectors is the size of a chunk in sectors of 512 bytes.
	ChunkSectors() uint64
	// Blocks are the origin's blocks that the cache has, in units of a chunk, hottest
	// first, each once. As long as the lease lasts they are the same in each Cache that is
	// opened of it: a stream that broke is resumed by the place in this list.
	Blocks() []uint64
	// Places are where the cache has them, in units of a chunk: one for each, none twice.
	Places() []uint32
	// ReadChunk reads the whole chunk of Blocks()[i] into buf, which is aligned for O_DIRECT.
	ReadChunk(ctx context.Context, i int, buf []byte) error
	// Close ends the use of the cache.
	Close() error
}
