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

// assembly takes one chunk after the other.
type assembly struct {
	// buf is for the chunk with the number next, which has so many bytes.
	buf    []byte
	next   int
	wanted volume.Wanted
	// count is how many chunks are announced, -1 before.
	count int
}

// begin awaits another stream.
func (a *assembly) begin() { a.count = -1 }

// take takes the next message, and calls each for each chunk that follows it, with its number and block
// of the origin.
func (a *assembly) take(r *streampb.ChunksReply, in *inbound, each func(i int, block uint64) error) error {
	g, c := r.GetGeometry(), r.GetChunks()
	switch {
	case a.count < 0:
		return a.geometry(g, c != nil)
	case g != nil || c == nil:
		return broken("a message without chunks, or with a geometry")
	}
	n := len(c.GetNumbers())
	if n == 0 || n > max(MaxPieceBytes/len(a.buf), 1) || len(c.GetBlocks()) != n || len(c.GetCachePlaces()) != n || len(c.GetCrc32C()) != n {
		return broken("%d numbers, %d blocks, %d places and %d checksums of chunks of %d bytes",
			n, len(c.GetBlocks()), len(c.GetCachePlaces()), len(c.GetCrc32C()), len(a.buf))
	}
	for k, number := range c.GetNumbers() {
		switch {
		case a.next >= a.count:
			return broken("more than the %d chunks that were announced", a.count)
		case int64(number) != int64(a.next):
			return broken("chunk %d, where chunk %d follows", number, a.next)
		case elsewhere(a.wanted.Places, a.next, c.GetCachePlaces()[k]):
			return fmt.Errorf("%w: chunk %d comes from another place of the cache than the list has said", volume.ErrUnavailable, a.next)
		}
		if err := in.whole(a.buf); err != nil {
			return err
		}
		if crc32.Checksum(a.buf, castagnoli) != c.GetCrc32C()[k] {
			return broken("the checksum of chunk %d is wrong", a.next)
		}
		if err := each(a.next, c.GetBlocks()[k]); err != nil {
			return err
		}
		a.next = wantedFrom(a.wanted.Skip, a.next+1)
	}
	return nil
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

// end says what is missing.
func (a *assembly) end() error {
	if a.next != a.count {
		return broken("it ends at chunk %d of %d", a.next, a.count)
	}
	return nil
}
