//go:build kernel

package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// checkedSSD is a pool that asks for checksums.
func checkedSSD() v1alpha1.CachePoolSpec {
	s := onOneSSD()
	s.Integrity = true
	return s
}

// rawData is the logical volume of the cache's data as LVM has it.
func (d *disk) rawData() lvm.LV {
	d.m.t.Helper()
	lvs, err := d.n.raw.LVs(d.m.t.Context(), pool.VolumeGroup(nodeName))
	mustPass(d.m.t, "lvs", err)
	for _, lv := range lvs {
		if lv.Name == layout.DataLV(d.req.ID) {
			return lv
		}
	}
	d.m.t.Fatal("no data")
	return lvm.LV{}
}

// layer is the device with checksums.
func (d *disk) layer() string {
	return integrity.Device(pool.VolumeGroup(nodeName), layout.DataLV(d.req.ID))
}

// inPlace has the layer bring what its journal has to where it belongs.
func (d *disk) inPlace() {
	d.m.t.Helper()
	d.m.must("dmsetup", "suspend", d.layer())
	d.m.must("dmsetup", "resume", d.layer())
}

// flipRaw changes a bit of a sector where the SSD has it last, which is behind the journal, and changes it
// back when it is called again.
func (d *disk) flipRaw(sector []byte) {
	t := d.m.t
	t.Helper()
	lv := d.rawData()
	all := content(t, lv.DevPath(), lv.SizeBytes)
	at := bytes.LastIndex(all, sector[:500])
	if at < 0 {
		t.Fatal("the SSD does not have the sector")
	}
	at = at / 4096 * 4096
	page := all[at : at+4096]
	page[bytes.LastIndex(page, sector[:500])+505] ^= 2
	write(t, lv.DevPath(), append(aligned(4096)[:0], page...), int64(at), true)
}

// reads reads all of a volume at random beside the test. Nothing but the right data, or an error,
// may come.
func (d *disk) reads(data []byte) (failed *atomic.Int64, end func()) {
	t := d.m.t
	failed, done := new(atomic.Int64), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		f, err := os.OpenFile(d.device(), os.O_RDONLY|unix.O_DIRECT, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = f.Close() }()
		b := aligned(16 << 10)
		for {
			select {
			case <-done:
				return
			default:
			}
			at := rand.Int64N(int64(len(data))/int64(len(b))) * int64(len(b))
			if _, err := f.ReadAt(b, at); err != nil {
				failed.Add(1)
			} else if !bytes.Equal(b, data[at:at+int64(len(b))]) {
				t.Errorf("the pod has read wrong data at %d", at)
				return
			}
		}
	})
	return failed, func() {
		close(done)
		all.Wait()
	}
}

// TestKernelIntegrity: bits that flip below a clean cache are an error, and never data. The volume goes on
// past the cache, and has another one later. Before, the cache has grown and was used again.
func TestKernelIntegrity(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), checkedSSD())
	d, data := m.hot(n, "checked", volume.ModeWritethrough)
	d.ask(func(v *volume.Volume) { v.Spec.Cache = volume.Size{Bytes: 40 * mib} })
	d.change()
	d.wantCache("grown", volume.ModeWritethrough, 40*mib)
	check(t, d.device(), data, 0)
	d.unstage()
	if infos, err := n.DM.Info(t.Context(), pool.VolumeGroup(nodeName)+"."); err != nil || len(infos) > 0 {
		t.Errorf("after the volume has left: %v, %v", infos, err)
	}
	d.stage()
	if rec, err := d.rec.load(d.req.ID); err != nil || !strings.Contains(rec.Report.Message, "kept") {
		t.Errorf("%v, %+v: want a warm start", err, rec.Report)
	}
	check(t, d.device(), data, 0)
	cm := d.cacheMap()
	e := writtenChunks(cm, 1)
	if len(e) == 0 {
		t.Fatal("nothing is cached")
	}
	at := int64(e[0].Origin*cm.ChunkSectors) * devmapper.SectorSize
	d.inPlace()
	d.flipRaw(data[at : at+512])
	failed, end := d.reads(data)
	f := openDirect(t, d.device())
	_, err := f.ReadAt(aligned(4096), at)
	mustPass(t, "close", f.Close())
	t.Logf("the read of the flipped sector: %v", err)
	if !errors.Is(err, unix.EILSEQ) && !errors.Is(err, unix.EIO) {
		t.Error("the bit that was flipped is no error")
	}
	d.awaitFailedOver()
	d.wantFailedOver()
	end()
	t.Logf("%d reads of the pod have failed until the cache was left", failed.Load())
	if rec, err := d.rec.load(d.req.ID); err != nil || !strings.Contains(rec.Report.Message, "checksums") {
		t.Errorf("%v, %+v", err, rec.Report)
	}
	check(t, d.device(), data, 0)
	d.cacheAgain(40 * mib)
	if lv := d.rawData(); lv.SizeBytes <= 40*mib {
		t.Errorf("the next cache has no room for checksums: %+v", lv)
	}
	check(t, d.device(), data, 0)
	d.unstage()
	d.wantOrigin("in the end", data)
	d.remove()
}

// TestKernelIntegrityDirty: a dirty block that the SSD does not give back as it was written never reaches
// the origin; what is at risk is said. When the SSD has the bit again, nothing is lost.
func TestKernelIntegrityDirty(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), checkedSSD())
	d := m.volume(n, "dirty", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	data := pattern(4, 4*mib)
	d.writeDirty(d.device(), data)
	cm := d.cacheMap()
	e := slices.IndexFunc(cm.Entries, func(e cachemap.Entry) bool {
		return int64((e.Origin+1)*cm.ChunkSectors)*devmapper.SectorSize <= int64(len(data))
	})
	if e < 0 {
		t.Fatal("nothing of it is cached")
	}
	// What was written before the block was cached is on the origin.
	before, at := bytes.Clone(data), int64(cm.Entries[e].Origin*cm.ChunkSectors)*devmapper.SectorSize
	late := pattern(5, 4096)
	write(t, d.device(), late, at, true)
	copy(data[at:], late)
	d.inPlace()
	sector := late[:512]
	d.flipRaw(sector)
	f := openDirect(t, d.device())
	if _, err := f.ReadAt(aligned(4096), at); err == nil {
		t.Error("the bit that was flipped is no error")
	}
	mustPass(t, "close", f.Close())
	d.awaitReport(v1alpha1.ReasonCacheDeviceError)
	if rec, err := d.rec.load(d.req.ID); err != nil || !rec.Report.Cached || !rec.Report.Warning || !strings.Contains(rec.Report.Message, "bytes of its writes") {
		t.Errorf("%v, %+v", err, rec.Report)
	}
	soonest, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := n.Unstage(soonest, d.req.ID, d.req.StagingPath); err == nil {
		t.Error("the volume has left, and its writes have not")
	}
	if st, found := d.cache(); !found || st.Dirty == 0 {
		t.Errorf("found %t, %+v: want the block that cannot be read dirty", found, st)
	}
	origin := content(t, d.originDevice(), 4*mib)
	for i := 0; i < len(origin); i += 512 {
		if got := origin[i : i+512]; !bytes.Equal(got, data[i:i+512]) && !bytes.Equal(got, before[i:i+512]) && !bytes.Equal(got, make([]byte, 512)) {
			t.Fatalf("sector %d of the origin has what was never written", i/512)
		}
	}
	if bytes.Equal(origin[at:at+512], sector) {
		t.Error("the origin has the block: it was not the one that was flipped")
	}
	back := bytes.Clone(sector)
	back[505] ^= 2
	d.flipRaw(back)
	d.unstage()
	d.wantOrigin("the SSD has the bit again", data)
	d.remove()
}

// TestKernelIntegrityStop: after an unclean stop the layer has what was flushed, and no chunk that the map
// names is what the SSD had at its place before: the whole map is written to the origin then.
func TestKernelIntegrityStop(t *testing.T) {
	m := newMachine(t)
	write(t, ssdOne, pattern(99, 96*mib), 4*mib, true)
	n := m.node(t.TempDir(), checkedSSD())
	d := m.volume(n, "stopped", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	all := pattern(7, 64*mib)
	d.connected(func(origin string) { write(t, origin, all, 0, true) })
	d.stage()
	d.change()
	late := pattern(8, 4*mib)
	d.writeDirty(d.device(), late)
	copy(all, late)
	d.heat(24 * mib) // nobody asks for a flush
	st, found := d.cache()
	if !found || st.CacheUsed < 100 {
		t.Fatalf("too little is cached: %+v", st)
	}
	mustPass(t, "commit", n.DM.Commit(t.Context(), "nf-stopped")) // as any demotion does
	d.stopNow()
	again, err := openNode(t.Context(), n.dir, checkedSSD(), d.rec)
	mustPass(t, "node", err)
	d.n = again
	mustPass(t, "repair", again.Repair(t.Context()))
	d.stage()
	check(t, d.device(), all, 0)
	d.unstage()
	d.wantOrigin("recovered", all)
	d.remove()
}

// TestKernelIntegrityRescue: the SSD alone has what a rescue needs.
func TestKernelIntegrityRescue(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), checkedSSD())
	d := m.volume(n, "saved", 32*mib, cached(volume.ModeWriteback, 16*mib))
	d.req.Block = true
	d.stage()
	d.change()
	data := pattern(1, 8*mib)
	d.writeDirty(d.device(), data)
	d.powerCut()
	d.connected(func(origin string) {
		out, err := d.rescued("--volume", "saved", "--origin", origin)
		mustPass(t, "rescue "+out, err)
		check(t, origin, data, 0)
	})
	mustPass(t, "repair", n.Repair(t.Context()))
	d.stage()
	check(t, d.device(), data, 0)
	d.unstage()
	d.remove()
}

// TestKernelKillIntegrity kills the plugin at some steps of stage and unstage; a successor loses nothing
// and leaves nothing (I8).
func TestKernelKillIntegrity(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), checkedSSD())
	d := m.volume(n, "kill-checked", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.FSType = "ext4"
	d.integrity = true
	points := pointsOf(volume.ModeWriteback)
	for i, point := range killedAt(t, points, "stage.allocated", "unstage.cleaner", "unstage.retained", "wipe.removed") {
		t.Run(point, func(t *testing.T) {
			m.t = t
			d.publish(int64(i) + 2)
			d.dieAndRecover(point, uint64(i))
		})
	}
	m.t = t
	d.remove()
}

// TestKernelIntegrityFull: a pool that is full of a retained cache, with its checksums, has room for another
// of the same size.
func TestKernelIntegrityFull(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), checkedSSD()) // 1 GiB
	for i := range 2 {
		d := m.volume(n, fmt.Sprintf("fills-%d", i), 1100*mib, cached(volume.ModeWritethrough, 984*mib))
		d.req.Block = true
		d.stage()
		d.wantReport(v1alpha1.ReasonCacheActive)
		pvs, err := n.LVM.PVs(t.Context(), []string{ssdOne})
		mustPass(t, "physical volumes", err)
		if sums := d.rawData().SizeBytes - 984*mib; len(pvs) != 1 || pvs[0].FreeBytes >= sums {
			t.Fatalf("%+v: there is room for another cache, but for checksums of %d bytes", pvs, sums)
		}
		d.unstage()
		defer d.remove()
	}
}
