package devmappertest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/testutil/conform"
)

// Rig is a device mapper and what it can be tried on.
type Rig struct {
	Client devmapper.Client
	// Metadata, Data and Origin are blank devices, "major:minor", with MetadataPath where the
	// first is; of 4, 8 and 16 MiB at least.
	Metadata, Data, Origin string
	MetadataPath           string
	// Open opens a block device for reading and writing past the page cache, Discard
	// discards ranges of offset and length, in bytes.
	Open    func(path string) (blockdev.File, error)
	Discard func(path string, ranges [][2]uint64) error
	// NoClone tells that the kernel lacks that target.
	NoClone bool
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
	for name, test := range map[string]func(*suite){
		"Errors": (*suite).errors, "Swap": (*suite).swap, "Busy": (*suite).busy, "Rename": (*suite).rename, "ReadOnly": (*suite).readOnly,
		"Writeback": (*suite).writeback, "CleanStop": (*suite).cleanStop, "Unclean": (*suite).unclean,
		"LiveSwap": (*suite).liveSwap, "Writethrough": (*suite).writethrough, "Tracked": (*suite).tracked, "Reads": (*suite).counted,
		"Clone": (*suite).cloned, "Multipath": (*suite).multipathed, "Integrity": (*suite).checked,
	} {
		t.Run(name, func(t *testing.T) {
			c := &suite{T: conform.T{T: t}, Rig: open(t)}
			test(c)
			for _, d := range []string{top, "nf-conform-upper", "nf-conform-other"} {
				c.Must("remove "+d, c.Client.Remove(t.Context(), d))
			}
		})
	}
}

const top = "nf-conform"

type suite struct {
	conform.T
	Rig
}

func (c *suite) create(name string, t devmapper.Table) devmapper.Info {
	c.Helper()
	info, err := c.Client.Create(c.Context(), name, "NEARFLASH-"+name, t)
	c.Must("create "+name, err)
	return info
}

func (c *suite) linear() devmapper.Table { return devmapper.LinearTable(originSize, c.Origin) }

// cache is the table of one that only a cleaner writes back: of its own accord the kernel
// does it when nobody looks, but never more at a time than the threshold.
func (c *suite) cache(mode devmapper.CacheMode, policy devmapper.CachePolicy) devmapper.Table {
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

func (c *suite) with(path string, do func(blockdev.File)) {
	c.Helper()
	f, err := c.Open(path)
	c.Must("open "+path, err)
	do(f)
	c.Must("close "+path, f.Close())
}

func (c *suite) write(info devmapper.Info, b byte) {
	c.Helper()
	c.with(info.DevPath(), func(f blockdev.File) {
		_, err := f.WriteAt(page(b), 0)
		c.Must("write", err)
		c.Must("sync", f.Sync())
	})
}

func (c *suite) wantByte(info devmapper.Info, b byte) {
	c.Helper()
	c.with(info.DevPath(), func(f blockdev.File) {
		got := page(^b)
		_, err := f.ReadAt(got, 0)
		c.Must("read", err)
		if !bytes.Equal(got, page(b)) {
			c.Errorf("%s has %d, want %d", info.Name, got[0], b)
		}
	})
}

// originHas looks at the origin beside the cache.
func (c *suite) originHas(b byte) bool {
	c.Helper()
	other := c.create("nf-conform-other", c.linear())
	defer func() { c.Must("remove", c.Client.Remove(c.Context(), other.Name)) }()
	got := page(^b)
	c.with(other.DevPath(), func(f blockdev.File) {
		_, err := f.ReadAt(got, 0)
		c.Must("read the origin", err)
	})
	return bytes.Equal(got, page(b))
}

func (c *suite) status() devmapper.CacheStatus {
	c.Helper()
	s, found, err := c.Client.Status(c.Context(), top)
	c.Must("status", err)
	if !found {
		c.Fatalf("%s is no cache", top)
	}
	return s
}

// dirty writes until the cache has the only copy: the kernel takes a block in when it has
// been written a few times, and has written it to the origin until then.
func (c *suite) dirty(info devmapper.Info, b byte) {
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
func (c *suite) soon(what string, is func() bool) {
	c.Helper()
	for range 600 {
		if is() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.Fatalf("%s does not come", what)
}

// openSoon waits until a device is open that often: udev opens what is new to read it.
func (c *suite) openSoon(name string, want int) {
	c.Helper()
	c.soon(fmt.Sprintf("%s, open %d times,", name, want), func() bool {
		infos, err := c.Client.Info(c.Context(), name)
		c.Must("info", err)
		return infos[name].OpenCount == want
	})
}

func (c *suite) superblock() devmapper.Superblock {
	c.Helper()
	var sb devmapper.Superblock
	c.with(c.MetadataPath, func(f blockdev.File) {
		var err error
		sb, err = devmapper.ReadCacheSuperblock(f)
		c.Must("superblock", err)
	})
	return sb
}

func (c *suite) errors() {
	ctx := c.Context()
	c.create(top, c.linear())
	_, err := c.Client.Create(ctx, top, "NEARFLASH-another", c.linear())
	c.Want("the same name", err, devmapper.ErrExist)
	_, err = c.Client.Create(ctx, "nf-conform-other", "NEARFLASH-"+top, c.linear())
	c.Want("the same UUID", err, devmapper.ErrExist)
	_, err = c.Client.Create(ctx, "nf-conform-other", "", devmapper.Table{{Length: 8, Target: devmapper.RawTarget{Name: "nosuch"}}})
	c.Want("a target that is not there", err, devmapper.ErrUnsupported)
	_, err = c.Client.Create(ctx, "nf-conform-other", "", devmapper.LinearTable(1<<40, c.Origin))
	c.Want("a table longer than its device", err, devmapper.ErrInvalid)
	_, err = c.Client.Create(ctx, "nf-conform-other", "", nil)
	c.Want("no table", err, devmapper.ErrInvalid)
	infos, err := c.Client.Info(ctx, top)
	c.Must("info", err)
	if len(infos) != 1 || infos[top].UUID != "NEARFLASH-"+top || !infos[top].HasLive || infos[top].HasInactive {
		c.Errorf("devices: %+v", infos)
	}
	c.openSoon(top, 0)
	const gone = "nf-conform-gone"
	c.Want("load", c.Client.Load(ctx, gone, c.linear()), devmapper.ErrNotExist)
	c.Want("resume", c.Client.Resume(ctx, gone), devmapper.ErrNotExist)
	c.Want("message", c.Client.Message(ctx, gone, 0, "x"), devmapper.ErrNotExist)
	_, err = c.Client.Table(ctx, gone)
	c.Want("table", err, devmapper.ErrNotExist)
	_, err = c.Client.Deps(ctx, gone)
	c.Want("deps", err, devmapper.ErrNotExist)
	_, _, err = c.Client.Status(ctx, gone)
	c.Want("status", err, devmapper.ErrNotExist)
	c.Must("remove what is not there", c.Client.Remove(ctx, gone))
}

func (c *suite) swap() {
	ctx := c.Context()
	info := c.create(top, c.linear())
	c.write(info, 1)
	c.Must("load", c.Client.Load(ctx, top, devmapper.Table{{Length: originSize, Target: devmapper.ErrorTarget{}}}))
	infos, err := c.Client.Info(ctx, top)
	c.Must("info", err)
	if !infos[top].HasInactive {
		c.Error("a loaded table does not show")
	}
	c.wantByte(info, 1) // until it is live
	c.Must("clear", c.Client.Clear(ctx, top))
	c.Must("resume", c.Client.Resume(ctx, top))
	table, err := c.Client.Table(ctx, top)
	c.Must("table", err)
	if len(table) != 1 || table[0].Target != (devmapper.LinearTarget{Device: c.Origin}) {
		c.Errorf("table %v", table)
	}
	deps, err := c.Client.Deps(ctx, top)
	c.Must("deps", err)
	if !slices.Equal(deps, []string{c.Origin}) {
		c.Errorf("deps %v", deps)
	}
	c.Must("load", c.Client.Load(ctx, top, devmapper.Table{{Length: originSize, Target: devmapper.ErrorTarget{}}}))
	c.Must("resume", c.Client.Resume(ctx, top))
	c.with(info.DevPath(), func(f blockdev.File) {
		_, err := f.ReadAt(page(0), 0)
		c.Want("read", err, unix.EIO)
	})
}

func (c *suite) busy() {
	lower := c.create(top, c.linear())
	c.create("nf-conform-upper", devmapper.LinearTable(originSize, lower.DevNo()))
	c.Want("remove the lower", c.Client.Remove(c.Context(), top), devmapper.ErrBusy)
	c.Must("remove the upper", c.Client.Remove(c.Context(), "nf-conform-upper"))
	c.Must("remove the lower", c.Client.Remove(c.Context(), top))
}

func (c *suite) rename() {
	ctx := c.Context()
	const other = "nf-conform-other"
	lower := c.create(top, c.linear())
	upper := c.create("nf-conform-upper", devmapper.LinearTable(originSize, lower.DevNo()))
	c.write(upper, 1)
	c.Want("a name that is taken", c.Client.Rename(ctx, top, "nf-conform-upper"), devmapper.ErrExist)
	c.Want("a device that is not there", c.Client.Rename(ctx, "nf-conform-gone", other), devmapper.ErrNotExist)
	c.Must("rename", c.Client.Rename(ctx, top, other))
	infos, err := c.Client.Info(ctx, top)
	c.Must("info", err)
	want := lower
	want.Name, want.OpenCount = other, infos[other].OpenCount
	if _, old := infos[top]; old || infos[other] != want {
		c.Errorf("devices %+v, want %+v", infos, want)
	}
	c.openSoon(other, 1)
	c.wantByte(upper, 1)
	c.Must("remove the upper", c.Client.Remove(ctx, "nf-conform-upper"))
	_, err = c.Client.Create(ctx, top, "NEARFLASH-third", c.linear())
	c.Must("create a device with the name that is free", err)
}

func (c *suite) readOnly() {
	info, err := c.Client.CreateReadOnly(c.Context(), top, "", c.linear())
	c.Must("create", err)
	if !info.ReadOnly {
		c.Errorf("device %+v", info)
	}
	f, err := c.Open(info.DevPath())
	if err == nil {
		_, err = f.WriteAt(page(1), 0)
		c.Must("close", f.Close())
	}
	if err == nil {
		c.Error("a device that is read-only was written to")
	}
}

func (c *suite) writeback() {
	info := c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	if s := c.status(); s.CacheTotal != dataSize/chunk || s.Mode() != devmapper.Writeback || s.ChunkSectors != chunk || s.Dirty != 0 || s.Fail {
		c.Errorf("status %+v", s)
	}
	c.dirty(info, 1)
	if c.originHas(1) {
		c.Error("the origin has what is dirty")
	}
	c.Must("message", c.Client.Message(c.Context(), top, 0, "migration_threshold", "0"))
	c.Want("a message that is none", c.Client.Message(c.Context(), top, 0, "nosuch", "1"), devmapper.ErrInvalid)
	c.wantByte(info, 1)
	c.Must("load", c.Client.Load(c.Context(), top, c.cache(devmapper.Writethrough, devmapper.PolicyCleaner)))
	c.Must("resume", c.Client.Resume(c.Context(), top))
	c.soon("the end of the flush", func() bool { return c.status().Dirty == 0 })
	if !c.originHas(1) {
		c.Error("the origin does not have what was flushed")
	}
}

// cleanStop: what was dirty, and that alone, is dirty again.
func (c *suite) cleanStop() {
	info := c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	if c.superblock().CleanShutdown {
		c.Error("a live cache has the mark of a clean stop")
	}
	c.dirty(info, 1)
	dirty := c.status().Dirty
	c.Must("remove", c.Client.Remove(c.Context(), top))
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

// unclean: without the mark, everything is dirty, and again with each table that follows.
func (c *suite) unclean() {
	info := c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	c.dirty(info, 1)
	c.Must("load", c.Client.Load(c.Context(), top, c.cache(devmapper.Writethrough, devmapper.PolicyCleaner)))
	c.Must("resume", c.Client.Resume(c.Context(), top))
	c.soon("the end of the flush", func() bool { return c.status().Dirty == 0 })
	used := c.status().CacheUsed
	c.Must("remove", c.Client.Remove(c.Context(), top))
	c.with(c.MetadataPath, func(f blockdev.File) {
		c.Must("mark", devmapper.MarkUnclean(f))
		c.Must("sync", f.Sync())
	})
	c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	if s := c.status(); used == 0 || s.Dirty == 0 {
		c.Errorf("%d of %d blocks are dirty", s.Dirty, used)
	}
	// The metadata stay open from table to table.
	c.Must("load", c.Client.Load(c.Context(), top, c.cache(devmapper.Writethrough, devmapper.PolicyCleaner)))
	c.Must("resume", c.Client.Resume(c.Context(), top))
	c.soon("the end of the flush", func() bool { return c.status().Dirty == 0 })
	c.Must("load", c.Client.Load(c.Context(), top, c.cache(devmapper.Writethrough, devmapper.PolicySMQ)))
	c.Must("resume", c.Client.Resume(c.Context(), top))
	if s := c.status(); s.Dirty == 0 {
		c.Error("the next table has forgotten that the last stop was unclean")
	}
}

// liveSwap: a swap of live tables leaves the mark of a clean stop, the next commit takes it
// away.
func (c *suite) liveSwap() {
	info := c.create(top, c.cache(devmapper.Writeback, devmapper.PolicySMQ))
	c.dirty(info, 1)
	c.Must("load", c.Client.Load(c.Context(), top, c.cache(devmapper.Writethrough, devmapper.PolicySMQ)))
	c.Must("resume", c.Client.Resume(c.Context(), top))
	if !c.superblock().CleanShutdown {
		c.Error("after a swap of live tables the mark is not there")
	}
	c.soon("a commit", func() bool {
		c.write(info, 2) // there is something to commit
		c.Must("commit", c.Client.Commit(c.Context(), top))
		return !c.superblock().CleanShutdown
	})
	c.wantByte(info, 2)
}

func (c *suite) writethrough() {
	info := c.create(top, c.cache(devmapper.Writethrough, devmapper.PolicySMQ))
	c.write(info, 1)
	if !c.originHas(1) {
		c.Error("the origin does not have what was written")
	}
	region := func() uint64 {
		c.Must("statistics", c.Client.StatsCreate(c.Context(), top))
		all, err := c.Client.StatsAll(c.Context(), top)
		c.Must("statistics", err)
		if _, found := all[top]; !found {
			c.Fatalf("statistics: %v", all)
		}
		return all[top].Region
	}
	if a, b := region(), region(); a != b {
		c.Errorf("statistics were begun anew: region %d, then %d", a, b)
	}
}

func (c *suite) tracked() {
	ctx := c.Context()
	info := c.create(top, c.linear())
	_, err := c.Client.WrittenAreas(ctx, top, "tag")
	c.Want("areas before tracking", err, devmapper.ErrNotExist)
	c.Must("track", c.Client.TrackWrites(ctx, top, "tag", originSize/4))
	c.write(info, 1)
	// A part that somebody is just reading counts too, as one that udev looks at.
	c.soon("the part that was written to", func() bool {
		w, err := c.Client.WrittenAreas(ctx, top, "tag")
		c.Must("areas", err)
		return slices.Equal(w.Areas, []bool{true, false, false, false})
	})
	c.Must("untrack", c.Client.UntrackWrites(ctx, top))
	_, err = c.Client.WrittenAreas(ctx, top, "tag")
	c.Want("areas after tracking", err, devmapper.ErrNotExist)
}
