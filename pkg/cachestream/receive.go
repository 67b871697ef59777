package cachestream

import (
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/volume"
)

// list is a list of blocks while it is received.
type list struct {
	chunkSectors uint64
	// count is how many blocks are announced.
	count  int
	blocks []uint64
	places []uint32
}

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, args...))
}

// add takes the next part.
func (l *list) add(r *streampb.MapReply) error {
	if g := r.GetGeometry(); l.chunkSectors == 0 {
		if err := checkGeometry(g.GetChunkSectors(), uint64(g.GetChunks())); err != nil {
			return broken("%v", err)
		}
		l.chunkSectors, l.count = g.GetChunkSectors(), int(g.GetChunks())
	} else if g != nil || len(r.GetBlocks()) == 0 {
		return broken("a part of the list without blocks, or with a geometry")
	}
	if len(r.GetBlocks()) > l.count-len(l.blocks) {
		return broken("more than the %d blocks that were announced", l.count)
	}
	for _, b := range r.GetBlocks() {
		if b > math.MaxInt64/sectorSize/l.chunkSectors-1 {
			return broken("block %d is beyond every device", b)
		}
	}
	if len(r.GetPlaces()) != len(r.GetBlocks()) {
		return broken("%d places of %d blocks", len(r.GetPlaces()), len(r.GetBlocks()))
	}
	l.blocks, l.places = append(l.blocks, r.GetBlocks()...), append(l.places, r.GetPlaces()...)
	return nil
}

// end says what is wrong with the whole list.
func (l *list) end() error {
	if l.chunkSectors == 0 || len(l.blocks) != l.count {
		return broken("%d blocks of the %d that were announced", len(l.blocks), l.count)
	}
	sorted := slices.Sorted(slices.Values(l.blocks))
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return broken("block %d is listed twice", sorted[i])
		}
	}
	return checkPlaces(l.places)
}

// assembly puts one chunk after the other together.
type assembly struct {
	// buf is the chunk with the number next; filled bytes of it are there.
	buf          []byte
	next, filled int
	wanted       volume.Wanted
	block        uint64
	// count is how many chunks are announced, -1 before.
	count int
}

// begin forgets what a stream has sent of a chunk, and awaits another stream.
func (a *assembly) begin() { a.filled, a.count = 0, -1 }

// take takes the next message, and calls whole for each chunk that is there with it.
func (a *assembly) take(r *streampb.ChunksReply, whole func() error) error {
	p, c := r.GetPiece(), r.GetChunks()
	switch g := r.GetGeometry(); {
	case a.count < 0:
		return a.geometry(g, p != nil || c != nil)
	case g != nil || (p == nil) == (c == nil):
		return broken("a message without a piece, with one and chunks too, or with a geometry")
	case p != nil:
		return a.takePiece(p, whole)
	}
	return a.takeChunks(c, whole)
}

func (a *assembly) takePiece(p *streampb.Piece, whole func() error) error {
	there, err := a.add(p)
	if err != nil || !there {
		return err
	}
	return whole()
}

// takeChunks takes several whole chunks.
func (a *assembly) takeChunks(c *streampb.Chunks, whole func() error) error {
	n, data := len(c.GetNumbers()), c.GetData()
	if n == 0 || len(c.GetBlocks()) != n || len(c.GetCachePlaces()) != n || len(c.GetCrc32C()) != n || a.filled > 0 || len(data) > MaxPieceBytes || len(data) != n*len(a.buf) {
		return broken("%d numbers, %d blocks, %d places and %d checksums of %d bytes of chunks, behind %d bytes of one",
			n, len(c.GetBlocks()), len(c.GetCachePlaces()), len(c.GetCrc32C()), len(data), a.filled)
	}
	for i := range n {
		p := &streampb.Piece{
			Chunk: c.GetNumbers()[i], Block: c.GetBlocks()[i], CachePlace: c.GetCachePlaces()[i], Crc32C: c.GetCrc32C()[i],
			Data: data[i*len(a.buf) : (i+1)*len(a.buf)],
		}
		if err := a.takePiece(p, whole); err != nil {
			return err
		}
	}
	return nil
}

// add takes the next piece, and reports whether the chunk is whole.
func (a *assembly) add(p *streampb.Piece) (whole bool, err error) {
	data := p.GetData()
	switch {
	case a.next >= a.count:
		return false, broken("more than the %d chunks that were announced", a.count)
	case int64(p.GetChunk()) != int64(a.next) || int64(p.GetOffset()) != int64(a.filled):
		return false, broken("chunk %d at byte %d, where chunk %d at byte %d follows", p.GetChunk(), p.GetOffset(), a.next, a.filled)
	case a.filled > 0 && p.GetBlock() != a.block:
		return false, broken("a chunk of the blocks %d and %d", a.block, p.GetBlock())
	case elsewhere(a.wanted.Places, a.next, p):
		return false, fmt.Errorf("%w: chunk %d comes from another place of the cache than the list has said", volume.ErrUnavailable, a.next)
	case len(data) == 0 || len(data)%sectorSize != 0 || len(data) > MaxPieceBytes || len(data) > len(a.buf)-a.filled:
		return false, broken("a piece of %d bytes", len(data))
	case crc32.Checksum(data, castagnoli) != p.GetCrc32C():
		return false, broken("the checksum of chunk %d at byte %d is wrong", a.next, a.filled)
	}
	a.block = p.GetBlock()
	a.filled += copy(a.buf[a.filled:], data)
	return a.filled == len(a.buf), nil
}

func (a *assembly) geometry(g *streampb.Geometry, more bool) error {
	if err := checkGeometry(g.GetChunkSectors(), uint64(g.GetChunks())); err != nil {
		return broken("%v", err)
	}
	if more || g.GetChunkSectors()*sectorSize != uint64(len(a.buf)) || int64(g.GetChunks()) < int64(a.next) {
		return broken("%d chunks of %d sectors, where chunk %d of %d bytes is expected", g.GetChunks(), g.GetChunkSectors(), a.next, len(a.buf))
	}
	a.count = int(g.GetChunks())
	return nil
}

// taken goes on to the next chunk.
func (a *assembly) taken() { a.next, a.filled = wantedFrom(a.wanted.Skip, a.next+1), 0 }

// end says what is missing.
func (a *assembly) end() error {
	if a.next != a.count {
		return broken("it ends at chunk %d of %d", a.next, a.count)
	}
	return nil
}
