package devmappertest

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// The targets of moves.

// clone is the table of one that begins without a copy in the background, from the origin
// to the data device.
func (c *suite) clone() devmapper.Table {
	t := devmapper.CloneTarget{
		Metadata: c.Metadata, Destination: c.Data, Source: c.Origin, RegionSectors: chunk, NoHydration: true, NoDiscardPassdown: true,
	}
	return devmapper.Table{{Length: dataSize, Target: t}}
}

func (c *suite) cloneStatus() devmapper.CloneStatus {
	c.Helper()
	all, err := c.Client.CloneStatusAll(c.Context())
	c.Must("status of clones", err)
	s, found := all[top]
	if !found {
		c.Fatalf("%s is no clone", top)
	}
	one, found, err := c.Client.CloneStatus(c.Context(), top)
	c.Must("status of one clone", err)
	if !found || one.Regions != s.Regions || one.RegionSectors != s.RegionSectors || one.Sectors != s.Sectors {
		c.Fatalf("alone the clone has %+v, among all %+v", one, s)
	}
	return s
}

// byteOf is what a device has in the middle of a region.
func (c *suite) byteOf(path string, region int64) byte {
	c.Helper()
	got := page(0)
	c.with(path, func(f blockdev.File) {
		_, err := f.ReadAt(got, region*chunk*sector+bufBytes)
		c.Must("read", err)
	})
	if !bytes.Equal(got, page(got[0])) {
		c.Errorf("%s has several values in one page", path)
	}
	return got[0]
}

func (c *suite) writeAt(path string, region int64, b byte) {
	c.Helper()
	c.with(path, func(f blockdev.File) {
		_, err := f.WriteAt(page(b), region*chunk*sector+bufBytes)
		c.Must("write", err)
		c.Must("sync", f.Sync())
	})
}

// cloned: a region is read from the source until it is at the destination, where it gets
// when it is written to, discarded or copied. What is there is there after a stop too.
func (c *suite) cloned() {
	if c.NoClone {
		c.Skip("this kernel has no clone")
	}
	ctx := c.Context()
	source, dest := c.create("nf-conform-other", c.linear()), c.create("nf-conform-upper", devmapper.LinearTable(dataSize, c.Data))
	for region := range int64(3) {
		c.writeAt(source.DevPath(), region, 10+byte(region))
		c.writeAt(dest.DevPath(), region, 20+byte(region))
	}
	info := c.create(top, c.clone())
	if s := c.cloneStatus(); s.Hydrated != 0 || s.Regions != dataSize/chunk || s.RegionSectors != chunk || s.HydrationEnabled() || s.Fail {
		c.Errorf("status %+v", s)
	}
	want := func(when string, values ...byte) {
		c.Helper()
		for region, b := range values {
			if got := c.byteOf(info.DevPath(), int64(region)); got != b {
				c.Errorf("%s, region %d has %d, want %d", when, region, got, b)
			}
		}
	}
	want("at first", 10, 11, 12)
	// A part of a region is written: the rest of it is copied.
	c.with(info.DevPath(), func(f blockdev.File) {
		_, err := f.WriteAt(page(1), chunk*sector)
		c.Must("write", err)
		c.Must("sync", f.Sync())
	})
	c.Must("discard", c.Discard(info.DevPath(), [][2]uint64{{2 * chunk * sector, chunk * sector}}))
	if s := c.cloneStatus(); s.Hydrated != 2 {
		c.Errorf("%d regions are copied, 2 have been written to or discarded", s.Hydrated)
	}
	want("a region was written to, another one discarded", 10, 11, 22)
	if got := c.byteOf(source.DevPath(), 1); got != 11 {
		c.Errorf("the source has %d", got)
	}
	// What a commit has said is true after a stop.
	c.Must("remove", c.Client.Remove(ctx, top))
	info = c.create(top, c.clone())
	if s := c.cloneStatus(); s.Hydrated != 2 {
		c.Errorf("%d regions are copied, 2 were", s.Hydrated)
	}
	want("after a stop", 10, 11, 22)
	c.Want("a message that is none", c.Client.Message(ctx, top, 0, "nosuch", "1"), devmapper.ErrInvalid)
	c.Must("threshold", c.Client.Message(ctx, top, 0, "hydration_threshold", "2"))
	c.Must("discard most", c.Discard(info.DevPath(), [][2]uint64{{8 * chunk * sector, (dataSize - 8*chunk) * sector}}))
	c.Must("copy", c.Client.Message(ctx, top, 0, "enable_hydration"))
	c.soon("the end of the copy", func() bool { return c.cloneStatus().Complete() })
	c.Must("rest", c.Client.Message(ctx, top, 0, "disable_hydration"))
	if c.cloneStatus().HydrationEnabled() {
		c.Error("the copy goes on")
	}
	// Then the destination alone is as good.
	c.Must("load", c.Client.Load(ctx, top, devmapper.LinearTable(dataSize, c.Data)))
	c.Must("resume", c.Client.Resume(ctx, top))
	want("at the destination", 10, 11, 22)
}

// multipathed: I/O waits for a path, or fails, as it was told last.
func (c *suite) multipathed() {
	ctx := c.Context()
	lower := c.create(top, c.linear())
	c.write(lower, 1)
	const upper = "nf-conform-upper"
	target := devmapper.MultipathTarget{QueueIfNoPath: true, Bio: true, Paths: []string{lower.DevNo()}}
	info := c.create(upper, devmapper.Table{{Length: originSize, Target: target}})
	table, err := c.Client.Table(ctx, upper)
	c.Must("table", err)
	if len(table) != 1 || table[0].Target.Type() != target.Type() {
		c.Errorf("table %v", table)
	}
	tell := func(words ...string) {
		c.Helper()
		c.Must(words[0], c.Client.Message(ctx, upper, 0, words...))
	}
	hasPath := func(want bool) {
		c.Helper()
		s, err := c.Client.MultipathStatus(ctx, upper)
		c.Must("status", err)
		if len(s.Paths) != 1 || s.Paths[0].Device != lower.DevNo() || s.HasPath() != want {
			c.Errorf("status %+v, want a path: %t", s, want)
		}
	}
	_, err = c.Client.MultipathStatus(ctx, top)
	c.Want("status of another target", err, devmapper.ErrParse)
	c.Want("a message that is none", c.Client.Message(ctx, upper, 0, "nosuch"), devmapper.ErrInvalid)
	hasPath(true)
	c.wantByte(info, 1)
	f, err := c.Open(info.DevPath())
	c.Must("open", err)
	defer func() {
		c.Must("close", f.Close())
		c.Must("remove", c.Client.Remove(ctx, upper))
	}()
	read := func() error {
		_, err := f.ReadAt(page(0), 0)
		return err
	}
	tell("fail_path", lower.DevNo())
	hasPath(false)
	waiting := make(chan error, 1)
	go func() { waiting <- read() }()
	tell("reinstate_path", lower.DevNo())
	c.Must("read what waited", <-waiting)
	// An error below loses the path, and what waits can be told to fail.
	c.Must("load", c.Client.Load(ctx, top, devmapper.Table{{Length: originSize, Target: devmapper.ErrorTarget{}}}))
	c.Must("resume", c.Client.Resume(ctx, top))
	go func() { waiting <- read() }()
	c.soon("the loss of the path", func() bool {
		s, err := c.Client.MultipathStatus(ctx, upper)
		c.Must("status", err)
		return !s.HasPath()
	})
	tell("fail_if_no_path")
	c.Want("read without a path", <-waiting, unix.EIO)
	tell("queue_if_no_path")
	c.Must("load", c.Client.Load(ctx, top, c.linear()))
	c.Must("resume", c.Client.Resume(ctx, top))
	tell("reinstate_path", lower.DevNo())
	c.wantByte(info, 1)
}
