package stream

import (
	"context"
	"fmt"
	"slices"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// chunks has the source node send what comes from an entry of the map on, and gives each chunk to
// each with the number of its entry. Where the first level was there from the beginning, the
// source node is not asked for that.
func (c *copying) chunks(ctx context.Context, src volume.StreamSource, from int, each func(i int, block uint64, b []byte) error) error {
	id, m, chunk := c.entry.ID, c.entry.Hydration.Move, int(c.m.ChunkSectors*devmapper.SectorSize)
	if !c.entry.Hydration.Stream.Prewarmed {
		return c.r.Puller.Chunks(ctx, src, id, m, volume.Wanted{From: from}, c.bandwidth(), chunk, each)
	}
	hot := int(c.entry.Hydration.Stream.Hot)
	if c.numbers == nil {
		// Which numbers the chunks have is not kept: the list stays the same for as long as the
		// lease lasts.
		l, err := c.r.Puller.Map(ctx, src, id, m)
		if err != nil {
			return err
		}
		if c.numbers, c.skip, err = c.m.Numbers(l, uint64(hot)); err != nil {
			return err
		}
	}
	w := volume.Wanted{From: c.numbers[from-hot], Skip: c.skip}
	return c.r.Puller.Chunks(ctx, src, id, m, w, c.bandwidth(), chunk, func(number int, block uint64, b []byte) error {
		i, listed := slices.BinarySearch(c.numbers, number)
		if !listed {
			return fmt.Errorf("%w: chunk %d was not asked for", volume.ErrUnavailable, number)
		}
		return each(hot+i, block, b)
	})
}
