//go:build kernel

package kernel

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// stoppedAfterSwap leaves a volume whose node stopped after a live table swap (the end of
// a flush that was asked for) and before the kernel committed the map again. What was
// written in between is on the SSD alone, and the map says that it is clean. Returned is
// what the volume has now.
func (d *disk) stoppedAfterSwap(old, late []byte) []byte {
	t := d.m.t
	t.Helper()
	d.stage()
	d.m.must("dmsetup", "message", "nf-"+string(d.req.ID), "0", "migration_threshold", "0")
	// All that is written late must be cached: what becomes so by that, and is not flushed,
	// may be lost.
	cachedAll := false
	for try := 0; try < 20 && !cachedAll; try++ {
		write(t, d.device(), old, 0, true)
		before, _ := d.cache()
		write(t, d.device(), old[:len(late)], 0, true)
		after, _ := d.cache()
		cachedAll = after.WriteMisses == before.WriteMisses
	}
	if st, _ := d.cache(); st.Dirty == 0 || !cachedAll {
		t.Fatalf("not all is cached, or nothing dirty: %+v", st)
	}
	mustPass(t, "ask for a flush", d.rec.update(d.req.ID, func(r *fileRecord) error { r.Volume.FlushRequest = "flush-1"; return nil }))
	mustPass(t, "change", d.n.change(t.Context(), d.req.ID))
	d.m.must("dmsetup", "message", "nf-"+string(d.req.ID), "0", "migration_threshold", "0")
	// No fsync: it would make the kernel commit.
	write(t, d.device(), late, 0, false)
	st, _ := d.cache()
	if st.Dirty == 0 || st.Policy != devmapper.PolicySMQ || st.Mode() != devmapper.Writeback {
		t.Fatalf("after the write: %+v", st)
	}
	s := stopping{m: d.m, n: d.n, name: nodeName, id: d.req.ID, sources: []volume.Source{d.req.Publication.Source}}
	s.cut()
	s.vanish()
	n, err := openNode(t.Context(), d.n.dir, onOneSSD(), d.rec)
	mustPass(t, "restart", err)
	d.n = n
	want := bytes.Clone(old)
	copy(want, late)
	return want
}

// TestKernelSwapIsNoStop: a live table swap leaves "clean shutdown" in the superblock,
// and what is written after it must not be lost when the node stops (I4): neither when the
// node comes back nor when its SSD is rescued.
func TestKernelSwapIsNoStop(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, by := range []string{"stage", "repair", "rescue"} {
		t.Run(by, func(t *testing.T) {
			m.t = t
			spec := cached(volume.ModeWriteback, 32*mib)
			// A write of a whole chunk is promoted at once. Larger chunks than a request are left
			// to smq, which never promotes some of what is all equally hot.
			spec.ChunkBytes = 64 << 10
			d := m.volume(n, "swap-"+by, 64*mib, spec)
			d.req.Block = true
			want := d.stoppedAfterSwap(pattern(1, 8*mib), pattern(2, 4*mib))
			switch by {
			case "stage":
				d.stage()
				check(t, d.device(), want, 0)
				d.unstage()
			case "repair":
				// One pass of it gives a volume a few seconds.
				for try := 0; try == 0 || try < 60 && !n.atRest(d.req.ID); try++ {
					mustPass(t, "repair", d.n.Repair(t.Context()))
				}
			case "rescue":
				out, err := d.rescued()
				if err != nil || !strings.Contains(out, "dirty (unclean stop)") {
					t.Errorf("list: %v\n%s", err, out)
				}
				d.connected(func(origin string) {
					out, err := d.rescued("--volume", string(d.req.ID), "--origin", origin)
					mustPass(t, "rescue: "+out, err)
				})
			}
			d.connected(func(origin string) { check(t, origin, want, 0) })
			d.unstage()
			d.remove()
		})
	}
	m.t = t
}

// TestKernelKillWarmRestart: a plugin that is killed while it takes a retained cache again, or
// leaves one, loses nothing, and what it leaves is taken again where the SSD proves that
// the cache was stopped (I4, I8).
func TestKernelKillWarmRestart(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "warmkill", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	data := pattern(1, 4*mib)
	for range 20 {
		write(t, d.device(), data, 0, true)
	}
	d.unstage()
	for i, c := range []struct {
		point   string
		unstage bool
	}{
		{"stage.activating", false}, {"stage.untagged", false}, {"stage.data-device", false},
		{"unstage.flushed", true}, {"unstage.removed", true}, {"unstage.stopped", true},
	} {
		if c.unstage {
			d.stage()
		}
		if !d.killAt(c.point, order{Unstage: c.unstage}) {
			t.Fatalf("nobody passed %s", c.point)
		}
		mustPass(t, "repair", d.n.Repair(t.Context()))
		d.stage()
		if st, found := d.cache(); !found || st.CacheUsed == 0 {
			t.Errorf("killed at %s, the cache begins cold: %+v", c.point, st)
		}
		check(t, d.device(), data, 0)
		data = pattern(uint64(i)+2, 4*mib)
		write(t, d.device(), data, 0, true)
		d.unstage()
		d.connected(func(origin string) { check(t, origin, data, 0) })
	}
	d.remove()
}

// TestKernelAllDirty: the kernel takes every block of a map for dirty whose superblock
// was told that the stop was unclean, and otherwise believes the map.
func TestKernelAllDirty(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "alldirty", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	for range 20 {
		write(t, d.device(), pattern(1, 8*mib), 0, true)
	}
	d.unstage()
	lvs := map[string]lvm.LV{}
	vg := pool.VolumeGroup(nodeName)
	m.must("lvchange", "--devices", ssdOne, "--activate", "y", vg+"/alldirty.data", vg+"/alldirty.meta")
	list, err := n.LVM.LVs(t.Context(), vg)
	mustPass(t, "lvs", err)
	for _, lv := range list {
		lvs[lv.Name] = lv
	}
	meta, data := lvs["alldirty.meta"], lvs["alldirty.data"]
	e, err := n.Journal.Load("alldirty")
	mustPass(t, "journal", err)
	// Nothing may be written back while it is looked at: the other SSD is no origin.
	table := fmt.Sprintf("0 %d cache %s %s %s %d 2 metadata2 writeback smq 2 migration_threshold 0",
		64*mib/512, meta.DevNo(), data.DevNo(), blockNumber(t, ssdTwo), e.ChunkSectors)
	load := func() devmapper.CacheStatus {
		t.Helper()
		m.must("dmsetup", "create", "alldirty", "--table", table)
		all, err := n.DM.StatusAll(t.Context())
		mustPass(t, "status", err)
		m.must("dmsetup", "remove", "--retry", "alldirty")
		return all["alldirty"]
	}
	if st := load(); st.CacheUsed == 0 || st.Dirty != 0 {
		t.Errorf("after a clean stop: %+v", st)
	}
	mustPass(t, "mark", ssd.MarkUnclean(blockdev.Host{}, meta.DevPath()))
	mustPass(t, "mark again", ssd.MarkUnclean(blockdev.Host{}, meta.DevPath()))
	if st := load(); st.CacheUsed == 0 || st.Dirty != st.CacheUsed {
		t.Errorf("after the mark %d of %d blocks are dirty", st.Dirty, st.CacheUsed)
	}
	d.remove()
}
