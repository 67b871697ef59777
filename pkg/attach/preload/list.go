package preload

import (
	"context"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/extents"
	"github.com/nearflash/nearflash/pkg/volume"
)

// list are the chunks of a volume that are to be cached.
type list struct {
	// chunk is the size of one in bytes, blocks how many the volume has that can be cached, and room
	// how many the cache has.
	chunk, blocks, room uint64
	named               volume.Bits
	chunks              []uint64
	// longer is true if there was more than the cache has room for.
	longer bool
}

func newList(chunkBytes, originBytes, room uint64) *list {
	blocks := originBytes / chunkBytes // one that reaches over the end is never cached
	return &list{chunk: chunkBytes, blocks: blocks, room: room, named: volume.NewBits(blocks)}
}

// add adds the chunks of an extent. It ends with extents.ErrStop when there is no more room.
func (l *list) add(x extents.Extent) error {
	if x.Length == 0 {
		return nil
	}
	last := (x.Start + x.Length - 1) / l.chunk
	for b := x.Start / l.chunk; b <= last && b < l.blocks; b++ {
		if l.named.Has(b) {
			continue
		}
		if uint64(len(l.chunks)) >= l.room {
			l.longer = true
			return extents.ErrStop
		}
		l.named.Set(b)
		l.chunks = append(l.chunks, b)
	}
	return nil
}

// missing are the chunks of the list that a map does not have, in the list's order.
func (l *list) missing(m cachemap.Map) []uint64 {
	there := volume.NewBits(l.blocks)
	for _, e := range m.Entries {
		if e.Origin < l.blocks {
			there.Set(e.Origin)
		}
	}
	var out []uint64
	for _, b := range l.chunks {
		if !there.Has(b) {
			out = append(out, b)
		}
	}
	return out
}

// everything lists all of a volume, as far as there is room.
func (l *list) everything(ctx context.Context) error {
	for b := uint64(0); b < l.blocks && !l.longer; b++ {
		if err := l.add(extents.Extent{Start: b * l.chunk, Length: l.chunk}); err != nil {
			return ctx.Err()
		}
	}
	return ctx.Err()
}
