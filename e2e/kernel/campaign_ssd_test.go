//go:build kernel

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The kinds of disaster of the campaign that come from the SSD.

// whole ends a hydration that is under way: what fails is the cache and nothing else. A cache that came
// by stream is in writethrough until somebody looks for changes.
func (c *campaign) whole() {
	c.t.Helper()
	e, err := c.n.Journal.Load(string(c.req.ID))
	if err != nil {
		return
	}
	if e.Hydration != nil {
		c.wantHydrated()
	}
	if e.Cached() && e.Mode != c.mode {
		c.change()
	}
}

// segment is a line of a logical volume's table: where it begins, how long it is, and
// where that is on the SSD, in sectors.
type segment struct{ start, length, device, offset string }

// between puts other targets in the place of logical volumes of the owner's cache,
// and returns their names. mend takes the targets away where they still are.
func (c *campaign) between(parts []string, target func(segment) string) (names []string, mend func()) {
	c.t.Helper()
	before := map[string]string{}
	for _, lv := range c.owner().lvs() {
		if !slices.ContainsFunc(parts, func(p string) bool { return strings.HasSuffix(lv.Name, p) }) {
			continue
		}
		name := c.m.dmName(lv)
		before[name] = strings.TrimSpace(c.m.must("dmsetup", "table", name))
		var table []string
		for line := range strings.Lines(before[name]) {
			f := strings.Fields(line)
			if len(f) != 5 || f[2] != "linear" {
				c.t.Fatalf("logical volume %s is %q", lv.Name, line)
			}
			table = append(table, target(segment{start: f[0], length: f[1], device: f[3], offset: f[4]}))
		}
		c.m.swap(name, strings.Join(table, "\n"))
		names = append(names, name)
	}
	if len(names) == 0 {
		c.t.Fatalf("the volume has no logical volumes %v", parts)
	}
	return names, func() {
		c.t.Helper()
		there := strings.Fields(c.m.must("dmsetup", "info", "--columns", "--noheadings", "--options", "name"))
		for name, table := range before {
			if slices.Contains(there, name) && !strings.Contains(c.m.must("dmsetup", "table", name), " linear ") {
				c.m.swap(name, table)
			}
		}
	}
}

// awaitPast lets the node look until the volume runs past its cache. Before each look
// something is done to the SSD.
func (c *campaign) awaitPast(harm func()) {
	c.t.Helper()
	defer c.n.later(0)
	var err error
	for i := range 150 {
		harm()
		c.n.later(time.Duration(i+2) * time.Minute) // a write to the SSD is due each time
		err = c.n.CacheFaults().Pass(c.t.Context())
		if _, found := c.cache(); !found && err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	st, found := c.cache()
	c.t.Fatalf("%s: the volume still runs through its cache: %t, %+v, %v", c.kind, found, st, err)
}

// wantAtRisk: the node says what is on the failing SSD alone, and keeps it.
func (c *campaign) wantAtRisk(harm func()) {
	c.t.Helper()
	defer c.n.later(0)
	var err error
	var r volume.CacheReport
	for i := range 50 {
		harm()
		c.n.later(time.Duration(i+2) * time.Minute)
		err = c.n.CacheFaults().Pass(c.t.Context())
		rec, lerr := c.rec.load(c.req.ID)
		mustPass(c.t, "record", lerr)
		if r = rec.Report; r.Cached && r.Reason == v1alpha1.ReasonCacheDeviceError && r.Warning {
			if _, found := c.cache(); !found {
				c.t.Fatalf("%s: a cache that may be dirty was left", c.kind)
			}
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.t.Fatalf("%s: the record says %+v, %v", c.kind, r, err)
}

// cachedAgain passes the time after which there is another cache below the pod.
func (c *campaign) cachedAgain() {
	c.t.Helper()
	mustPass(c.t, "pool", c.n.pool.Reconcile(c.t.Context()))
	c.repair()
	if _, found := c.cache(); !found {
		c.n.later(24 * time.Hour)
		c.change()
		c.n.later(0)
	}
	if _, found := c.cache(); !found {
		c.t.Fatalf("%s: there is no cache again", c.kind)
	}
	c.write(c.load(c.r), 200*time.Millisecond)
	c.must(checker.LossNothing)
}

// badSectors: some of the SSD cannot be read until it is written again.
func (c *campaign) badSectors() {
	c.whole()
	const unit = 4096 / 512
	var at []int64
	names, mend := c.between([]string{".data"}, func(s segment) string {
		var first, length int64
		if _, err := fmt.Sscan(s.offset+" "+s.length, &first, &length); err != nil {
			c.t.Fatal(err)
		}
		for i := range int64(16) { // what the node reads when it looks
			at = append(at, (first+i*128)/unit)
		}
		for range 64 {
			at = append(at, (first+c.r.Int64N(length))/unit)
		}
		return fmt.Sprintf("%s %s dust %s %s 4096", s.start, s.length, s.device, s.offset)
	})
	spoil := func() {
		for _, block := range at {
			// One that is bad already is refused.
			c.m.try("dmsetup", "message", names[0], "0", "addbadblock", fmt.Sprint(block))
		}
	}
	c.m.must("dmsetup", "message", names[0], "0", "enable")
	// A write makes a sector good again: nobody writes until the node has looked.
	spoil()
	if c.mode == volume.ModeWriteback {
		c.wantAtRisk(func() {})
		c.write(c.load(c.r), 300*time.Millisecond)
		mend()
		c.must(checker.LossNothing)
		return
	}
	c.awaitPast(func() {})
	c.write(c.load(c.r), 300*time.Millisecond)
	mend()
	c.must(checker.LossNothing)
	c.cachedAgain()
}

// refuseWrites: the SSD can be read, and takes no writes.
func (c *campaign) refuseWrites() {
	c.whole()
	end := c.begin(c.load(c.r))
	_, mend := c.between([]string{".data", ".meta"}, func(s segment) string {
		return fmt.Sprintf("%s %s flakey %s %s 0 3600 1 error_writes", s.start, s.length, s.device, s.offset)
	})
	if c.mode == volume.ModeWriteback {
		time.Sleep(100 * time.Millisecond)
		c.wantAtRisk(func() {})
		end()
		mend()
		c.reattach()
		return
	}
	c.awaitPast(func() {})
	end()
	mend()
	c.must(checker.LossNothing)
	c.cachedAgain()
}

// reattach: the kernel has given up the map of a writeback cache whose SSD works
// again. Only a new table reads the map anew, which is an unclean stop for the cache;
// and it may have to be declared good by somebody.
func (c *campaign) reattach() {
	c.t.Helper()
	c.s.Dying()
	c.close()
	c.stopIdle()
	err := c.n.Stage(c.t.Context(), c.req)
	if err != nil {
		if !errors.Is(err, volume.ErrUnavailable) {
			c.t.Fatalf("%s: stage with unflushed writes: %v", c.kind, err)
		}
		c.onMap(func(lv lvm.LV) { c.m.must("cache_check", "--clear-needs-check-flag", lv.DevPath()) })
	}
	c.again(checker.LossNode)
}

// onMap does something to the metadata of the cache, which is not active.
func (c *campaign) onMap(do func(lvm.LV)) {
	c.t.Helper()
	name, _ := c.here()
	lvs, err := c.n.LVM.LVs(c.t.Context(), pool.VolumeGroup(name))
	mustPass(c.t, "logical volumes", err)
	for _, lv := range lvs {
		if lv.Name != string(c.req.ID)+".meta" {
			continue
		}
		if !lv.Active {
			c.m.must("lvchange", "--activate", "y", pool.VolumeGroup(name)+"/"+lv.Name)
			c.onMap(do)
			return
		}
		do(lv)
		return
	}
	c.t.Fatalf("%s: the cache has no map", c.kind)
}

// loseSSD: the SSD is gone for good.
func (c *campaign) loseSSD() {
	c.whole()
	gone := func(s segment) string { return fmt.Sprintf("%s %s error", s.start, s.length) }
	if c.mode != volume.ModeWriteback {
		end := c.begin(c.load(c.r))
		_, mend := c.between([]string{".data", ".meta"}, gone)
		c.awaitPast(func() {})
		end()
		mend()
		c.must(checker.LossNothing)
		c.cachedAgain()
		return
	}
	end := c.begin(c.load(c.r))
	c.between([]string{".data", ".meta"}, gone)
	time.Sleep(100 * time.Millisecond)
	c.wantAtRisk(func() {})
	end()
	c.giveUp() // nothing else can be done
}

// fillSSD: the volume comes to a node whose pool has no room.
func (c *campaign) fillSSD() {
	c.leave()
	c.release() // a stage may wipe what is still exported, and has that room then
	_, other := c.here()
	c.goTo(other)
	c.repair() // what the volume once left there goes
	name, _ := c.here()
	vg := pool.VolumeGroup(name)
	c.m.must("lvcreate", "--yes", "--extents", "100%FREE", "--name", "filler", vg)
	c.use()
	c.wantReport(v1alpha1.ReasonPoolFull)
	if st, found := c.cache(); found {
		c.t.Errorf("%s: there is a cache: %+v", c.kind, st)
	}
	c.write(c.load(c.r), 300*time.Millisecond)
	c.must(checker.LossNothing)
	c.m.must("lvremove", "--yes", vg+"/filler")
	c.cachedAgain()
}

// spoilMap: the map of a cache at rest is damaged.
func (c *campaign) spoilMap() {
	c.whole()
	c.leave()
	if _, err := c.n.Journal.Load(string(c.req.ID)); err != nil {
		// Not kept: its session was lost by an earlier disaster.
		c.use()
		c.leave()
	}
	c.onMap(func(lv lvm.LV) {
		f := openDirect(c.t, lv.DevPath())
		defer func() { _ = f.Close() }()
		at, b := int64(0), pattern(c.r.Uint64(), mib)
		switch c.r.IntN(3) {
		case 0: // also the superblock
		case 1:
			at = 4096
		default:
			b = needsCheck(c, f)
		}
		if _, err := f.WriteAt(b, at); err != nil {
			c.t.Fatal(err)
		}
	})
	c.again(checker.LossNothing)
	c.cachedAgain()
}

// needsCheck is a superblock with the flag that the kernel sets after an error
// (drivers/md/dm-cache-metadata.c).
func needsCheck(c *campaign, f *os.File) []byte {
	b := aligned(4096)
	_, err := f.ReadAt(b, 0)
	mustPass(c.t, "superblock", err)
	sum := func() uint32 { return ^crc32.Checksum(b[4:], crc32.MakeTable(crc32.Castagnoli)) ^ 9031977 }
	if got := binary.LittleEndian.Uint32(b); got != sum() {
		c.t.Fatalf("checksum of the superblock: %#x, computed %#x", got, sum())
	}
	binary.LittleEndian.PutUint32(b[4:], binary.LittleEndian.Uint32(b[4:])|2)
	binary.LittleEndian.PutUint32(b, sum())
	return b
}
