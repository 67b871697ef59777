package devmappertest

import (
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// counted: reads are counted by area, until they are cleared or the device is longer.
func (c *suite) counted() {
	ctx := c.Context()
	_, err := c.Client.ReadAreas(ctx, top)
	c.Want("areas of no device", err, devmapper.ErrNotExist)
	c.Want("count reads of no device", c.Client.TrackReads(ctx, top, chunk), devmapper.ErrNotExist)
	info := c.create(top, devmapper.LinearTable(originSize/2, c.Origin))
	_, err = c.Client.ReadAreas(ctx, top)
	c.Want("areas before they are counted", err, devmapper.ErrNotExist)
	c.Want("clear before they are counted", c.Client.ClearReads(ctx, top), devmapper.ErrNotExist)
	c.Must("count", c.Client.TrackReads(ctx, top, chunk))
	areas := originSize / 2 / chunk
	read := func(area, times int) {
		c.with(info.DevPath(), func(f blockdev.File) {
			for range times {
				_, err := f.ReadAt(page(0), int64(area)*chunk*sector)
				c.Must("read", err)
			}
		})
	}
	// Where udev looks, at the beginning and the end, there may be more.
	want := func(what string, few, many uint64) {
		c.Helper()
		r, err := c.Client.ReadAreas(ctx, top)
		c.Must("areas "+what, err)
		if len(r.Counts) != areas || r.AreaSectors != chunk || r.Counts[40] != few || r.Counts[50] != many || r.Counts[60] != 0 {
			c.Fatalf("%s: %d areas of %d sectors with %v, want %d reads of number 40 and %d of number 50", what, len(r.Counts), r.AreaSectors, r.Counts, few, many)
		}
	}
	read(40, 1)
	read(50, 3)
	want("after reads", 1, 3)
	c.with(info.DevPath(), func(f blockdev.File) {
		before, err := c.Client.ReadAreas(ctx, top)
		c.Must("areas before a write", err)
		_, err = f.WriteAt(page(0), 40*chunk*sector)
		c.Must("write", err)
		// udev looks at what was written once it is closed, which is later.
		if r, err := c.Client.ReadAreas(ctx, top); err != nil || r.Writes != before.Writes+1 || r.WriteSectors != before.WriteSectors+uint64(len(page(0)))/sector || before.ReadSectors < 4*uint64(len(page(0)))/sector {
			c.Fatalf("%d sectors read, %d written by %d more, %v", before.ReadSectors, r.WriteSectors-before.WriteSectors, r.Writes-before.Writes, err)
		}
	})
	c.Must("count again", c.Client.TrackReads(ctx, top, chunk))
	c.Must("load", c.Client.Load(ctx, top, devmapper.LinearTable(originSize/2, c.Origin)))
	c.Must("resume", c.Client.Resume(ctx, top))
	read(40, 1)
	want("after a swap of the table", 2, 3)
	c.Must("clear", c.Client.ClearReads(ctx, top))
	read(50, 1)
	want("after they were cleared", 0, 1)
	c.Must("load", c.Client.Load(ctx, top, c.linear()))
	c.Must("resume", c.Client.Resume(ctx, top))
	c.Must("count in the longer one", c.Client.TrackReads(ctx, top, chunk))
	areas *= 2
	want("of the longer device", 0, 0)
}
