//go:build kernel

package kernel

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/mount"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// coarseDisk is a SCSI disk in memory whose logical blocks have 4096 bytes. It lasts
// until the test is over.
func coarseDisk(t *testing.T, mebibytes string) string {
	t.Helper()
	m := &machine{t: t, run: hostexec.New()}
	m.must("modprobe", "scsi_debug", "sector_size=4096", "dev_size_mb="+mebibytes, "delay=0")
	t.Cleanup(func() {
		var err error
		for range 600 { // udev may have a look at it
			if _, err = m.run.Run(context.Background(), hostexec.Command("modprobe", "--remove", "scsi_debug")); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Errorf("scsi_debug: %v", err)
	})
	for range 1200 {
		found, err := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*:*/block/*")
		mustPass(t, "glob", err)
		if len(found) == 1 {
			path := "/dev/" + filepath.Base(found[0])
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("scsi_debug made no disk")
	return ""
}

// blind is a node that looks at no logical blocks, as the versions before did.
func (n *node) blind() (see func()) {
	seeing, c, d := n.Attacher, n.Config, n.Deps
	c.Sysfs, d.Pool = "/nowhere", blindPool{d.Pool}
	n.Attacher = attach.New(c, d)
	return func() { n.Attacher = seeing }
}

type blindPool struct{ attach.PoolView }

func (p blindPool) View() pool.View {
	v := p.PoolView.View()
	v.LogicalBlock = 0
	return v
}

func wantBlocks(t *testing.T, path string, want int) {
	t.Helper()
	devno, err := blockdev.DevNo(path)
	mustPass(t, "device", err)
	if n, err := blockdev.LogicalBlock("/sys", devno); err != nil || n != want {
		t.Errorf("%s has logical blocks of %d bytes, %v, want %d", path, n, err, want)
	}
}

// readWhatComes has the volume's device open as soon as there is one, as udev may when it
// looks what it is, until the returned function is called.
func (d *disk) readWhatComes() (release func()) {
	ctx, cancel := context.WithCancel(d.m.t.Context())
	var opened *os.File
	var size int64
	var blocks int
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil && opened == nil {
			infos, _ := d.n.DM.Info(ctx, "nf-"+string(d.req.ID))
			if top, found := infos["nf-"+string(d.req.ID)]; found {
				opened, _ = os.Open(top.DevPath()) // or at the next turn, when it has a node
			}
			if opened != nil {
				size, _ = opened.Seek(0, io.SeekEnd)
				blocks, _ = unix.IoctlGetInt(int(opened.Fd()), unix.BLKSSZGET)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	return func() {
		d.m.t.Helper()
		cancel()
		done.Wait()
		if opened == nil || size > 0 && blocks != 4096 {
			d.m.t.Fatalf("the device was not open when the cache was to be left: %d bytes in blocks of %d", size, blocks)
		}
		mustPass(d.m.t, "close", opened.Close())
	}
}

// wantNoVolumes: nothing of the volume takes space on the SSD.
func (d *disk) wantNoVolumes() {
	d.m.t.Helper()
	lvs, err := d.n.LVM.LVs(d.m.t.Context(), pool.VolumeGroup(nodeName))
	mustPass(d.m.t, "lvs", err)
	for _, lv := range lvs {
		if strings.HasPrefix(lv.Name, string(d.req.ID)+".") {
			d.m.t.Errorf("there is a logical volume %s", lv.Name)
		}
	}
}

// TestKernelBlocksOfSSD: an SSD with logical blocks of 4096 bytes is not put before an
// origin with 512: a filesystem with smaller sectors would not mount, or end under its pod.
func TestKernelBlocksOfSSD(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), v1alpha1.CachePoolSpec{Devices: []string{coarseDisk(t, "256")}})
	for fsType, mkfs := range map[string][]string{
		"ext4": {"mkfs.ext4", "-q", "-b", "1024"},
		"xfs":  {"mkfs.xfs", "-q", "-s", "size=512", "-c", "options=" + mount.XFSFeatures},
	} {
		d := m.volume(n, "coarse-"+fsType, 320*mib, cached(volume.ModeNone, 0))
		d.req.Block, d.req.FSType = true, fsType
		d.stage()
		m.must(mkfs[0], append(mkfs[1:], d.device())...)
		d.unstage()
		d.filesystem(volume.FormatDone)
		d.req.Block = false

		// A cache is asked for below the running pod.
		d.keep()
		d.ask(both(mode(volume.ModeWriteback), cacheBytes(32*mib)))
		_, err := n.Change(t.Context())
		mustPass(t, "change", err)
		rec, err := d.rec.load(d.req.ID)
		mustPass(t, "record", err)
		if rec.Applied.Reason != v1alpha1.ReasonBlockSizeTooLarge || !strings.Contains(rec.Applied.Message, "4096") {
			t.Errorf("%s: what was asked for: %+v", fsType, rec.Applied)
		}
		mustPass(t, "write", os.WriteFile(filepath.Join(d.req.StagingPath, "y"), pattern(1, mib), 0o600))
		m.must("sync", "--file-system", d.req.StagingPath)
		d.unstage()

		for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
			d.ask(func(v *volume.Volume) { v.Spec.Mode = mode })
			d.stage()
			d.wantReport(v1alpha1.ReasonBlockSizeTooLarge)
			d.wantKept()
			wantBlocks(t, d.device(), 512)
			d.wantNoVolumes()
			d.unstage()
		}
		d.remove()
	}
}

// TestKernelBlocksOfOrigin: an SSD with smaller logical blocks than the origin's is no
// obstacle, and one with as large ones is none.
func TestKernelBlocksOfOrigin(t *testing.T) {
	storage := newLoop(t, storageDisk)
	m := newMachineOn(t, storage)
	for _, ssd := range []string{ssdOne, coarseDisk(t, "256")} {
		spec := v1alpha1.CachePoolSpec{Devices: []string{ssd}}
		dir := t.TempDir()
		n, err := openNode(t.Context(), dir, spec, fileRecords{filepath.Join(dir, "records")})
		mustPass(t, "node", err)
		d := m.volume(n, "fine-"+filepath.Base(ssd), 128*mib, cached(volume.ModeWriteback, 32*mib))
		d.req.FSType = "ext4"
		d.keep()
		d.wantReport(v1alpha1.ReasonCacheActive)
		wantBlocks(t, d.device(), 4096)
		d.ask(mode(volume.ModeNone))
		d.change()
		d.ask(both(mode(volume.ModeWriteback), cacheBytes(32*mib)))
		d.change()
		d.wantReport(v1alpha1.ReasonCacheActive)
		d.unstage()
		d.stage()
		d.wantReport(v1alpha1.ReasonCacheActive)
		d.wantKept()
		d.unstage()
		d.remove()
		m.dropPool(spec)
	}
}

// newLoop is a disk of logical blocks of 4096 bytes over another one.
func newLoop(t *testing.T, disk string) string {
	t.Helper()
	m := &machine{t: t, run: hostexec.New()}
	m.must("wipefs", "--all", disk)
	loop := strings.TrimSpace(m.must("losetup", "--find", "--show", "--sector-size", "4096", "--offset", "1048576", disk)) // LVM would find it twice
	t.Cleanup(func() { m.must("losetup", "--detach", loop) })
	return loop
}

// TestKernelBlocksLeft: a cache that is there already with larger logical blocks than its
// origin's is flushed and left: below a running pod, after an unclean stop, and at rest.
func TestKernelBlocksLeft(t *testing.T) {
	m := newMachine(t)
	spec := v1alpha1.CachePoolSpec{Devices: []string{coarseDisk(t, "256")}}
	n := m.node(t.TempDir(), spec)
	d := m.volume(n, "left", 128*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	data := pattern(5, 8*mib)
	past := func(what string) {
		t.Helper()
		if st, found := d.cache(); found {
			t.Errorf("%s: there is a cache: %+v", what, st)
		}
		d.wantReport(v1alpha1.ReasonBlockSizeTooLarge)
		wantBlocks(t, d.device(), 512)
		check(t, d.device(), data, 0)
		d.wantNoVolumes()
		if rec, err := d.rec.load(d.req.ID); err != nil || rec.Volume.PossiblyDirty {
			t.Errorf("%s: the record is possibly dirty: %v", what, err)
		}
	}
	see := n.blind()
	d.stage()
	wantBlocks(t, d.device(), 4096)
	d.writeDirty(d.device(), data)
	see()
	pod := openDirect(t, d.device()) // that uses it
	for range 600 {
		_, err := n.Change(t.Context())
		mustPass(t, "change", err)
		if _, found := d.cache(); !found {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	_, err := n.Change(t.Context())
	mustPass(t, "change", err)
	mustPass(t, "close", pod.Close())
	past("below a pod")
	d.unstage()

	see = n.blind()
	d.stage()
	data = pattern(6, 8*mib)
	d.writeDirty(d.device(), data)
	s := stopping{m: m, n: n, name: nodeName, id: d.req.ID, sources: []volume.Source{d.req.Publication.Source}}
	s.cut()
	s.vanish()
	see()
	again, err := openNode(t.Context(), n.dir, spec, d.rec)
	mustPass(t, "node", err)
	n, d.n = again, again
	release := d.readWhatComes()
	d.stage()
	release()
	past("after an unclean stop")
	d.unstage()

	see = n.blind()
	d.stage()
	data = pattern(7, 8*mib)
	d.writeDirty(d.device(), data)
	d.unstage()
	see()
	d.stage()
	past("at rest")
	d.unstage()
	d.remove()
}

// TestKernelBlocksOfPeer: what another node exports has larger logical blocks than the
// origin: the cache begins cold, on an SSD that has as small ones.
func TestKernelBlocksOfPeer(t *testing.T) {
	m := newMachine(t)
	spec := v1alpha1.CachePoolSpec{Devices: []string{coarseDisk(t, "256")}}
	a, b, err := openPairOn(t.Context(), t.TempDir(), t.TempDir(), spec, onOtherSSD())
	mustPass(t, "nodes", err)
	t.Cleanup(func() {
		m.dropPool(spec)
		m.try("vgremove", "--yes", "--force", pool.VolumeGroup(otherName))
		m.try("pvremove", "--yes", ssdTwo)
	})
	s := cached(volume.ModeWritethrough, 32*mib)
	s.WarmStart = volume.WarmStart{From: volume.WarmPeer}
	v := &movers{disk: m.volume(a, "exported", 128*mib, s), a: a, b: b, gen: 1}
	v.req.Block = true
	see := a.blind()
	v.stage()
	data := v.warmUp(3)
	v.unstage()
	see()
	for _, early := range []bool{false, true} {
		v.publishTo(b, otherName)
		if early {
			b.Prestage(t.Context())
		}
		v.stage()
		v.wantReport(v1alpha1.ReasonCacheActive)
		wantBlocks(t, v.device(), 512)
		check(t, v.device(), data, 0)
		if e, err := b.Journal.Load(string(v.req.ID)); err != nil || e.Hydration != nil {
			t.Errorf("the cache is filled from %+v, %v", e.Hydration, err)
		}
		v.unstage()
		if early {
			break
		}
		v.publishTo(a, nodeName)
		see := a.blind()
		v.stage()
		v.heat(16 * mib)
		v.wantHydrated()
		v.unstage()
		see()
	}
	mustPass(t, "repair", a.Repair(t.Context()))
	v.n = v.a
	v.remove()
	mustPass(t, "repair", b.Repair(t.Context()))
}
