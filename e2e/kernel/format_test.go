//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// filesystem sets what the record says of the volume's filesystem.
func (d *disk) filesystem(state volume.Formatted) {
	d.m.t.Helper()
	mustPass(d.m.t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error {
		r.Volume.Filesystem = state
		return nil
	}))
}

func (d *disk) wantFilesystem(want volume.Formatted) {
	d.m.t.Helper()
	rec, err := d.rec.load(d.req.ID)
	mustPass(d.m.t, "record", err)
	if rec.Volume.Filesystem != want {
		d.m.t.Errorf("the record says %q of the filesystem, want %q", rec.Volume.Filesystem, want)
	}
}

// breakLUN makes the storage server's disk of the volume answer with errors.
func (d *disk) breakLUN() (restore func()) {
	name := ""
	for line := range strings.Lines(d.m.must("dmsetup", "ls")) {
		// The name of a logical volume doubles hyphens; the server adds a prefix.
		if n := strings.Fields(line)[0]; strings.HasPrefix(n, storageVG+"-") && strings.HasSuffix(n, strings.ReplaceAll(string(d.req.ID), "-", "--")) {
			name = n
		}
	}
	before := strings.TrimSpace(d.m.must("dmsetup", "table", name))
	d.m.swap(name, fmt.Sprintf("0 %d error", d.size/512))
	return func() { d.m.swap(name, before) }
}

// breakData makes the whole of the cache's chunks on the frail SSD unreadable from the
// next stage on, and nothing else of the SSD.
func (d *disk) breakData() (breakNow, mend func()) {
	m := d.m
	m.t.Helper()
	lvs, err := d.n.LVM.LVs(m.t.Context(), pool.VolumeGroup(nodeName))
	mustPass(m.t, "lvs", err)
	i := slices.IndexFunc(lvs, func(lv lvm.LV) bool { return lv.Name == string(d.req.ID)+".data" })
	if i < 0 {
		m.t.Fatalf("no data volume of %s", d.req.ID)
	}
	var zero, length, at, whole uint64
	var below string
	table := m.must("dmsetup", "table", m.dmName(lvs[i]))
	_, err = fmt.Sscanf(table, "%d %d linear %s %d", &zero, &length, &below, &at)
	mustPass(m.t, "table "+table, err)
	_, err = fmt.Sscan(m.must("blockdev", "--getsz", ssdOne), &whole)
	mustPass(m.t, "size", err)
	broken := fmt.Sprintf("0 %[1]d linear %[4]s 0\n%[1]d %[2]d error\n%[3]d %[5]d linear %[4]s %[3]d", at, length, at+length, ssdOne, whole-at-length)
	return func() { m.swapTable(frail, broken) }, func() { m.swapTable(frail, frailTable(m, "linear %s 0")) }
}

// heatHead makes the cache take in the volume's first chunk.
func (d *disk) heatHead() {
	d.m.t.Helper()
	f := openDirect(d.m.t, d.device())
	defer func() { mustPass(d.m.t, "close", f.Close()) }()
	buf := aligned(4096)
	for range 2000 {
		_, err := f.ReadAt(buf, 0)
		mustPass(d.m.t, "read", err)
	}
	before, _ := d.cache()
	_, err := f.ReadAt(buf, 0)
	mustPass(d.m.t, "read", err)
	if after, _ := d.cache(); after.ReadHits == before.ReadHits {
		d.m.t.Fatal("the first chunk is not in the cache")
	}
}

const kept = "kept"

func (d *disk) keep() {
	d.m.t.Helper()
	d.stage()
	mustPass(d.m.t, "write", os.WriteFile(filepath.Join(d.req.StagingPath, "x"), []byte(kept), 0o600))
}

func (d *disk) wantKept() {
	d.m.t.Helper()
	if b, err := os.ReadFile(filepath.Join(d.req.StagingPath, "x")); err != nil || string(b) != kept {
		d.m.t.Errorf("read %q, %v", b, err)
	}
}

// TestKernelFormatUnreadable: a volume that cannot be read is not formatted, whatever the
// record says and blkid makes of it. With the defect bug.format-unread it is, and what the
// pod wrote is gone.
func TestKernelFormatUnreadable(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough} {
		d := m.volume(n, "unread-"+string(mode), 64*mib, cached(mode, 16*mib))
		d.keep()
		d.unstage()
		d.publish(2)                     // no cache hides it
		d.filesystem(volume.FormatNever) // the worst that the record could say
		restore := d.breakLUN()
		for range 2 {
			if err := n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), string(d.req.ID)) {
				t.Errorf("stage: %v, want ErrUnavailable", err)
			}
		}
		d.wantFilesystem(volume.FormatNever)
		restore()
		d.stage()
		d.wantFilesystem(volume.FormatDone)
		d.wantKept()
		d.unstage()
		d.remove()
	}
}

// mendingFS has the SSD work again when mkfs begins: how much of the old filesystem one
// overwrites that meets a bad SSD differs from kernel to kernel.
type mendingFS struct {
	attach.Filesystem
	mend func()
}

func (f mendingFS) Format(ctx context.Context, device, fsType string) error {
	f.mend()
	return f.Filesystem.Format(ctx, device, fsType)
}

// TestKernelFormatBug: that a read error is taken for blank would be noticed.
func TestKernelFormatBug(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onFrailSSD(m))
	faults := t.TempDir()
	t.Setenv("NEARFLASH_FAULT_DIR", faults)
	d := m.volume(n, "unread-bug", 64*mib, cached(volume.ModeWritethrough, 16*mib))
	d.keep()
	d.heatHead()
	breakNow, mend := d.breakData()
	d.unstage()
	breakNow()
	n.FS = mendingFS{n.FS, mend}
	mustPass(t, "arm", os.WriteFile(filepath.Join(faults, "bug.format-unread"), nil, 0o600))
	d.stage()
	if _, err := os.Stat(filepath.Join(d.req.StagingPath, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the defect was not noticed: the file is there, %v", err)
	}
	d.unstage()
	d.remove()
}

// TestKernelFormatBadSSD: the SSD fails the read of the superblock's chunk at a warm
// start. The cache is left, since it is proven clean; one with unflushed writes is not.
func TestKernelFormatBadSSD(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onFrailSSD(m))
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		d := m.volume(n, "bad-"+string(mode), 64*mib, cached(mode, 16*mib))
		d.keep()
		d.heatHead()
		breakNow, mend := d.breakData()
		d.unstage()
		breakNow()
		d.stage()
		d.wantKept()
		d.wantReport(v1alpha1.ReasonCacheDeviceError)
		if _, found := d.cache(); found {
			t.Errorf("%s: the volume still runs through its cache", mode)
		}
		d.wantFilesystem(volume.FormatDone)
		mend()
		d.unstage()
		d.remove()
	}

	d := m.volume(n, "bad-dirty", 64*mib, cached(volume.ModeWriteback, 16*mib))
	d.keep()
	d.heatHead()
	breakNow, mend := d.breakData()
	d.m.must("dmsetup", "message", "nf-bad-dirty", "0", "migration_threshold", "0")
	file := filepath.Join(d.req.StagingPath, "y")
	mustPass(t, "file", os.WriteFile(file, nil, 0o600))
	d.writeDirty(file, pattern(3, mib))
	mustPass(t, "unmount", n.FS.Unmount(t.Context(), d.req.StagingPath))
	if st, _ := d.cache(); st.Dirty == 0 {
		t.Fatal("nothing is dirty")
	}
	breakNow()
	if err := n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), "not on the storage server yet") {
		t.Errorf("stage over a dirty cache that cannot be read: %v", err)
	}
	if st, found := d.cache(); !found || st.Dirty == 0 {
		t.Errorf("the cache with unflushed writes was left: %+v", st)
	}
	mend()
	d.stage()
	d.wantKept()
	check(t, file, pattern(3, mib), 0)
	d.unstage()
	d.remove()
}

// TestKernelFormatOnce: killed anywhere around mkfs, the owner goes on; and a volume
// that lost its filesystem does not get another one.
func TestKernelFormatOnce(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, point := range []string{"format.begun", "format.made", "stage.formatted"} {
		d := m.volume(n, "once-"+strings.ReplaceAll(point, ".", "-"), 64*mib, cached(volume.ModeWritethrough, 16*mib))
		if !d.killAt(point, order{}) {
			t.Fatalf("%s is not on the way", point)
		}
		d.keep()
		d.wantFilesystem(volume.FormatDone)
		d.unstage()
		d.stage()
		d.wantKept()
		d.unstage()
		d.remove()
	}

	d := m.volume(n, "lost", 64*mib, cached(volume.ModeNone, 0))
	d.keep()
	d.unstage()
	d.writeElsewhere(make([]byte, d.size))
	err := n.Stage(t.Context(), d.req)
	if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), `"filesystem":"NeverFormatted"`) {
		t.Errorf("stage of a volume that lost its filesystem: %v, want ErrInvalid that names the remedy", err)
	}
	d.unstage()
	d.filesystem(volume.FormatNever) // the remedy
	d.stage()
	d.wantFilesystem(volume.FormatDone)
	d.unstage()
	d.remove()

	raw := m.volume(n, "raw", 64*mib, cached(volume.ModeNone, 0))
	raw.req.Block = true
	raw.stage()
	raw.wantFilesystem(volume.FormatDone) // the pod may write where nobody looks
	raw.unstage()
	raw.remove()
}
