package devmappertest

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// Rig is a device mapper and what it can be tried on.
type Rig struct {
	Client devmapper.Client
	// Metadata, Data and Origin are blank devices, "major:minor", with MetadataPath where the
	// first is; of 4, 8 and 16 MiB at least.
	Metadata, Data, Origin string
	MetadataPath           string
	// Open opens a block device for reading and writing past the page cache.
	Open func(path string) (blockdev.File, error)
}

const (
	sector     = devmapper.SectorSize
	chunk      = 64 << 10 / sector
	originSize = 16 << 20 / sector
	dataSize   = 8 << 20 / sector
	bufBytes   = 4096
)

// Conformance holds a device mapper to what this project's code relies on. Its devices have
// names that begin with "nf-conform".
func Conformance(t *testing.T, open func(t *testing.T) Rig) {
	for name, test := range map[string]func(*conform){
		"Errors": (*conform).errors, "Swap": (*conform).swap, "Busy": (*conform).busy, "ReadOnly": (*conform).readOnly,
		"Writeback": (*conform).writeback, "CleanStop": (*conform).cleanStop, "Unclean": (*conform).unclean,
		"LiveSwap": (*conform).liveSwap, "Writethrough": (*conform).writethrough, "Tracked": (*conform).tracked,
	} {
		t.Run(name, func(t *testing.T) {
			c := &conform{T: t, Rig: open(t)}
			test(c)
			for _, d := range []string{top, "nf-conform-upper", "nf-conform-other"} {
				c.must("remove "+d, c.Client.Remove(t.Context(), d))
			}
		})
	}
}

const top = "nf-conform"

type conform struct {
	*testing.T
	Rig
}

func (c *conform) must(what string, err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", what, err)
	}
}

func (c *conform) want(what string, err, kind error) {
	c.Helper()
	if !errors.Is(err, kind) {
		c.Errorf("%s: %v, want %v", what, err, kind)
	}
}

func (c *conform) create(name string, t devmapper.Table) devmapper.Info {
	c.Helper()
	info, err := c.Client.Create(c.Context(), name, "NEARFLASH-"+name, t)
	c.must("create "+name, err)
	return info
}

func (c *conform) linear() devmapper.Table { return devmapper.LinearTable(originSize, c.Origin) }

// cache is the table of one that only a cleaner writes back: of its own accord the kernel
// does it when nobody looks, but never more at a time than the threshold.
func (c *conform) cache(mode devmapper.CacheMode, policy devmapper.CachePolicy) devmapper.Table {
	t := devmapper.CacheTarget{
		Metadata: c.Metadata, Data: c.Data, Origin: c.Origin, ChunkSectors: chunk, Mode: mode, Policy: policy, MigrationThreshold: 1,
	}
	if policy == devmapper.PolicyCleaner {
		t.MigrationThreshold = devmapper.MigrationThreshold(chunk)
	}
	return devmapper.Table{{Length: originSize, Target: t}}
}

// page is a buffer that O_DIRECT takes.
func page(b byte) []byte {
	buf := blockdev.AlignedBuffer(bufBytes)
	copy(buf, bytes.Repeat([]byte{b}, bufBytes))
	return buf
}

func (c *conform) with(path string, do func(blockdev.File)) {
	c.Helper()
	f, err := c.Open(path)
	c.must("open "+path, err)
	do(f)
	c.must("close "+path, f.Close())
}

func (c *conform) write(info devmapper.Info, b byte) {
	c.Helper()
	c.with(info.DevPath(), func(f blockdev.File) {
		_, err := f.WriteAt(page(b), 0)
		c.must("write", err)
		c.must("sync", f.Sync())
	})
}

func (c *conform) wantByte(info devmapper.Info, b byte) {
	c.Helper()
	c.with(info.DevPath(), func(f blockdev.File) {
		got := page(^b)
		_, err := f.ReadAt(got, 0)
		c.must("read", err)
		if !bytes.Equal(got, page(b)) {
			c.Errorf("%s has %d, want %d", info.Name, got[0], b)
		}
	})
}

// originHas looks at the origin beside the cache.
func (c *conform) originHas(b byte) bool {
	c.Helper()
	other := c.create("nf-conform-other", c.linear())
	defer func() { c.must("remove", c.Client.Remove(c.Context(), other.Name)) }()
	got := page(^b)
	c.with(other.DevPath(), func(f blockdev.File) {
		_, err := f.ReadAt(got, 0)
		c.must("read the origin", err)
	})
	return bytes.Equal(got, page(b))
}

func (c *conform) status() devmapper.CacheStatus {
	c.Helper()
	s, found, err := c.Client.Status(c.Context(), top)
	c.must("status", err)
	if !found {
		c.Fatalf("%s is no cache", top)
	}
	return s
}

// dirty writes until the cache has the only copy: the kernel takes a block in when it has
// been written a few times, and has written it to the origin until then.
func (c *conform) dirty(info devmapper.Info, b byte) {
	c.Helper()
	for range 200 {
		c.write(info, ^b)
		if c.status().Dirty > 0 {
			c.write(info, b)
			return
		}
	}
	c.Fatal("no block became dirty")
}

// soon waits for what a kernel does in the background.
func (c *conform) soon(what string, is func() bool) {
	c.Helper()
	for range 600 {
		if is() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.Fatalf("%s does not come", what)
}

func (c *conform) superblock() devmapper.Superblock {
	c.Helper()
	var sb devmapper.Superblock
	c.with(c.MetadataPath, func(f blockdev.File) {
		var err error
		sb, err = devmapper.ReadCacheSuperblock(f)
		c.must("superblock", err)
	})
	return sb
}

func (c *conform) errors() {
	ctx := c.Context()
	c.create(top, c.linear())
	_, err := c.Client.Create(ctx, top, "NEARFLASH-another", c.linear())
	c.want("the same name", err, devmapper.ErrExist)
	_, err = c.Client.Create(ctx, "nf-conform-other", "NEARFLASH-"+top, c.linear())
	c.want("the same UUID", err, devmapper.ErrExist)
	_, err = c.Client.Create(ctx, "nf-conform-other", "", devmapper.Table{{Length: 8, Target: devmapper.RawTarget{Name: "nosuch"}}})
	c.want("a target that is not there", err, devmapper.ErrUnsupported)
	_, err = c.Client.Create(ctx, "nf-conform-other", "", devmapper.LinearTable(1<<40, c.Origin))
	c.want("a table longer than its device", err, devmapper.ErrInvalid)
	_, err = c.Client.Create(ctx, "nf-conform-other", "", nil)
	c.want("no table", err, devmapper.ErrInvalid)
	infos, err := c.Client.Info(ctx, top)
	c.must("info", err)
	if len(infos) != 1 || infos[top].UUID != "NEARFLASH-"+top || !infos[top].HasLive || infos[top].HasInactive || infos[top].OpenCount != 0 {
		c.Errorf("devices: %+v", infos)
	}
	const gone = "nf-conform-gone"
	c.want("load", c.Client.Load(ctx, gone, c.linear()), devmapper.ErrNotExist)
	c.want("resume", c.Client.Resume(ctx, gone), devmapper.ErrNotExist)
	c.want("message", c.Client.Message(ctx, gone, 0, "x"), devmapper.ErrNotExist)
	_, err = c.Client.Table(ctx, gone)
	c.want("table", err, devmapper.ErrNotExist)
	_, err = c.Client.Deps(ctx, gone)
	c.want("deps", err, devmapper.ErrNotExist)
	_, _, err = c.Client.Status(ctx, gone)
	c.want("status", err, devmapper.ErrNotExist)
	c.must("remove what is not there", c.Client.Remove(ctx, gone))
}

func (c *conform) swap() {
	ctx := c.Context()
	info := c.create(top, c.linear())
	c.write(info, 1)
	c.must("load", c.Client.Load(ctx, top, devmapper.Table{{Length: originSize, Target: devmapper.ErrorTarget{}}}))
	infos, err := c.Client.Info(ctx, top)
	c.must("info", err)
	if !infos[top].HasInactive {
		c.Error("a loaded table does not show")
	}
	c.wantByte(info, 1) // until it is live
	c.must("clear", c.Client.Clear(ctx, top))
	c.must("resume", c.Client.Resume(ctx, top))
	table, err := c.Client.Table(ctx, top)
	c.must("table", err)
	if len(table) != 1 || table[0].Target != (devmapper.LinearTarget{Device: c.Origin}) {
		c.Errorf("table %v", table)
	}
	deps, err := c.Client.Deps(ctx, top)
	c.must("deps", err)
	if !slices.Equal(deps, []string{c.Origin}) {
		c.Errorf("deps %v", deps)
	}
	c.must("load", c.Client.Load(ctx, top, devmapper.Table{{Length: originSize, Target: devmapper.ErrorTarget{}}}))
	c.must("resume", c.Client.Resume(ctx, top))
	c.with(info.DevPath(), func(f blockdev.File) {
		_, err := f.ReadAt(page(0), 0)
		c.want("read", err, unix.EIO)
	})
}

func (c *conform) busy() {
	lower := c.create(top, c.linear())
	c.create("nf-conform-upper", devmapper.LinearTable(originSize, lower.DevNo()))
	c.want("remove the lower", c.Client.Remove(c.Context(), top), devmapper.ErrBusy)
	c.must("remove the upper", c.Client.Remove(c.Context(), "nf-conform-upper"))
	c.must("remove the lower", c.Client.Remove(c.Context(), top))
}

func (c *conform) readOnly() {
	info, err := c.Client.CreateReadOnly(c.Context(), top, "", c.linear())
	c.must("create", err)
	if !info.ReadOnly {
		c.Errorf("device %+v", info)
	}
	f, err := c.Open(info.DevPath())
	if err == nil {
		_, err = f.WriteAt(page(1), 0)
		c.must("close", f.Close())
	}
	if err == nil {
		c.Error("a device that is read-only was written to")
	}
}

func (c *conform) writeback() {
	info := c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	if s := c.status(); s.CacheTotal != dataSize/chunk || s.Mode() != devmapper.Writeback || s.ChunkSectors != chunk || s.Dirty != 0 || s.Fail {
		c.Errorf("status %+v", s)
	}
	c.dirty(info, 1)
	if c.originHas(1) {
		c.Error("the origin has what is dirty")
	}
	c.must("message", c.Client.Message(c.Context(), top, 0, "migration_threshold", "0"))
	c.want("a message that is none", c.Client.Message(c.Context(), top, 0, "nosuch", "1"), devmapper.ErrInvalid)
	c.wantByte(info, 1)
	c.must("load", c.Client.Load(c.Context(), top, c.cache(devmapper.Writethrough, devmapper.PolicyCleaner)))
	c.must("resume", c.Client.Resume(c.Context(), top))
	c.soon("the end of the flush", func() bool { return c.status().Dirty == 0 })
	if !c.originHas(1) {
		c.Error("the origin does not have what was flushed")
	}
}

// cleanStop: what was dirty, and that alone, is dirty again.
func (c *conform) cleanStop() {
	info := c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	if c.superblock().CleanShutdown {
		c.Error("a live cache has the mark of a clean stop")
	}
	c.dirty(info, 1)
	dirty := c.status().Dirty
	c.must("remove", c.Client.Remove(c.Context(), top))
	if !c.superblock().CleanShutdown {
		c.Error("a removed cache lacks the mark of a clean stop")
	}
	info = c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	if s := c.status(); s.Dirty != dirty {
		c.Errorf("%d blocks are dirty, %d were", s.Dirty, dirty)
	}
	if c.superblock().CleanShutdown {
		c.Error("a live cache has the mark of a clean stop")
	}
	c.wantByte(info, 1)
}

// unclean: without the mark, everything is dirty.
func (c *conform) unclean() {
	info := c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	c.dirty(info, 1)
	c.must("load", c.Client.Load(c.Context(), top, c.cache(devmapper.Writethrough, devmapper.PolicyCleaner)))
	c.must("resume", c.Client.Resume(c.Context(), top))
	c.soon("the end of the flush", func() bool { return c.status().Dirty == 0 })
	used := c.status().CacheUsed
	c.must("remove", c.Client.Remove(c.Context(), top))
	c.with(c.MetadataPath, func(f blockdev.File) {
		c.must("mark", devmapper.MarkUnclean(f))
		c.must("sync", f.Sync())
	})
	c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	if s := c.status(); used == 0 || s.Dirty == 0 {
		c.Errorf("%d of %d blocks are dirty", s.Dirty, used)
	}
}

// liveSwap: a swap of live tables leaves the mark of a clean stop, the next commit takes it
// away.
func (c *conform) liveSwap() {
	info := c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	c.dirty(info, 1)
	c.must("load", c.Client.Load(c.Context(), top, c.cache(devmapper.Writethrough, devmapper.PolicySMQ)))
	c.must("resume", c.Client.Resume(c.Context(), top))
	if !c.superblock().CleanShutdown {
		c.Error("after a swap of live tables the mark is not there")
	}
	c.soon("a commit", func() bool {
		c.write(info, 2) // there is something to commit
		c.must("commit", c.Client.Commit(c.Context(), top))
		return !c.superblock().CleanShutdown
	})
	c.wantByte(info, 2)
}

func (c *conform) writethrough() {
	info := c.create(top, c.cache(devmapper.Writethrough, devmapper.PolicySMQ))
	c.write(info, 1)
	if !c.originHas(1) {
		c.Error("the origin does not have what was written")
	}
	region := func() uint64 {
		c.must("statistics", c.Client.StatsCreate(c.Context(), top))
		all, err := c.Client.StatsAll(c.Context(), top)
		c.must("statistics", err)
		if _, found := all[top]; !found {
			c.Fatalf("statistics: %v", all)
		}
		return all[top].Region
	}
	if a, b := region(), region(); a != b {
		c.Errorf("statistics were begun anew: region %d, then %d", a, b)
	}
}

func (c *conform) tracked() {
	ctx := c.Context()
	info := c.create(top, c.linear())
	_, err := c.Client.WrittenAreas(ctx, top, "tag")
	c.want("areas before tracking", err, devmapper.ErrNotExist)
	c.must("track", c.Client.TrackWrites(ctx, top, "tag", originSize/4))
	c.write(info, 1)
	// A part that somebody is just reading counts too, as one that udev looks at.
	c.soon("the part that was written to", func() bool {
		w, err := c.Client.WrittenAreas(ctx, top, "tag")
		c.must("areas", err)
		return slices.Equal(w.Areas, []bool{true, false, false, false})
	})
	c.must("untrack", c.Client.UntrackWrites(ctx, top))
	_, err = c.Client.WrittenAreas(ctx, top, "tag")
	c.want("areas after tracking", err, devmapper.ErrNotExist)
}
