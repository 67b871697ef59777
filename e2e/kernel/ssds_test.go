//go:build kernel

package kernel

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelDeviceRefused: a device with a signature is never taken.
func TestKernelDeviceRefused(t *testing.T) {
	m := newMachine(t)
	m.must("mkfs.ext4", "-q", "-F", ssdTwo)
	before := m.must("blkid", "-p", "-s", "UUID", "-o", "value", ssdTwo)
	n, err := openNode(t.Context(), t.TempDir(), v1alpha1.CachePoolSpec{Devices: []string{ssdTwo}}, fileRecords{})
	mustPass(t, "open node", err)
	if v := n.pool.View(); v.Ready || v.Problem == "" {
		t.Errorf("a device with a filesystem was taken: %+v", v)
	}
	if after := m.must("blkid", "-p", "-s", "UUID", "-o", "value", ssdTwo); after != before {
		t.Errorf("the filesystem was changed: %q, %q", before, after)
	}
}

// partition adds or deletes the kernel's first partition of a disk, without a table on it.
func partition(op int32, disk string) error {
	// Not for writing: when a disk is closed that was open for that, udev has the kernel
	// read its table anew, which has no partition.
	f, err := os.Open(disk)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	p := unix.BlkpgPartition{Start: mib, Length: 200 * mib, Pno: 1}
	arg := unix.BlkpgIoctlArg{Op: op, Datalen: int32(unsafe.Sizeof(p)), Data: (*byte)(unsafe.Pointer(&p))}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg))); errno != 0 {
		return errno
	}
	return nil
}

// partitioned returns the first partition of a disk, which it has until the test is over.
func (m *machine) partitioned(disk string) string {
	m.t.Helper()
	part := disk + "1"
	again := func(what string, act func() error) {
		m.t.Helper()
		err := act()
		for end := time.Now().Add(3 * time.Minute); err != nil && time.Now().Before(end); err = act() {
			time.Sleep(50 * time.Millisecond)
		}
		mustPass(m.t, what, err)
	}
	// The table of a disk that somebody has written to before may be about to be read; the
	// kernel refuses that while a partition is open.
	var held *os.File
	again("add partition", func() error {
		err := partition(unix.BLKPG_ADD_PARTITION, disk)
		if err == nil || errors.Is(err, unix.EBUSY) {
			held, err = os.Open(part)
		}
		return err
	})
	m.t.Cleanup(func() {
		mustPass(m.t, "close partition", held.Close())
		// udev looks at a device that was closed after writing, and holds it meanwhile.
		again("delete partition", func() error {
			err := partition(unix.BLKPG_DEL_PARTITION, disk)
			if errors.Is(err, unix.ENXIO) {
				return nil
			}
			return err
		})
	})
	return part
}

// TestKernelPartitions: a glob takes no partition, also not a blank one; a name does.
func TestKernelPartitions(t *testing.T) {
	m := newMachine(t)
	part := m.partitioned(ssdTwo)
	t.Cleanup(func() {
		m.try("vgremove", "--yes", "--force", pool.VolumeGroup(nodeName))
		m.try("pvremove", "--yes", part)
	})
	open := func(devices ...string) pool.View {
		t.Helper()
		n, err := openNode(t.Context(), t.TempDir(), v1alpha1.CachePoolSpec{Devices: devices}, fileRecords{})
		mustPass(t, "open node", err)
		return n.pool.View()
	}
	if v := open(ssdTwo + "*"); v.Ready || !strings.Contains(v.Problem, part+": is a partition") {
		t.Errorf("with a glob: %+v", v)
	}
	if v := open(ssdTwo+"*", part); !v.Ready || !slices.Equal(v.Devices, []string{part}) {
		t.Errorf("with its name: %+v", v)
	}
}

// TestKernelStuckQuery: whoever only looks at a device that does not answer is told in time,
// although the kernel does not let the program go (I6).
func TestKernelStuckQuery(t *testing.T) {
	m := newMachine(t)
	m.must("dmsetup", "create", "nf-stuck", "--table", "0 2048 linear "+ssdTwo+" 0")
	t.Cleanup(func() { m.must("dmsetup", "remove", "--retry", "nf-stuck") })
	infos, err := devmapper.New(hostexec.New()).Info(t.Context(), "nf-stuck")
	mustPass(t, "device", err)
	m.must("dmsetup", "suspend", "nf-stuck")
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // until then it has to be at it
		defer cancel()
		_, err := hostexec.New().Run(ctx, hostexec.Query("dd", "if="+infos["nf-stuck"].DevPath(), "of=/dev/null", "bs=4096", "count=1", "iflag=direct"))
		ended <- err
	}()
	select {
	case err = <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a look that cannot end: %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("the caller waits for a program that cannot be ended")
	}
	m.must("dmsetup", "resume", "nf-stuck")
}

// TestKernelMirror: a mirrored pool on two devices holds caches.
func TestKernelMirror(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), v1alpha1.CachePoolSpec{Devices: []string{ssdOne, ssdTwo}, Redundancy: v1alpha1.RedundancyMirror})
	d := m.volume(n, "mirror", 128*mib, cached(volume.ModeWriteback, 64*mib))
	d.req.Block = true
	d.stage()
	d.wantReport(v1alpha1.ReasonCacheActive)
	lvs, err := n.LVM.LVs(t.Context(), pool.VolumeGroup(nodeName))
	mustPass(t, "lvs", err)
	for _, lv := range lvs {
		if lv.SegType != "raid1" {
			t.Errorf("logical volume %s is %s, want raid1", lv.Name, lv.SegType)
		}
	}
	data := pattern(4, 4*mib)
	write(t, d.device(), data, 0, true)
	d.unstage()
	d.stage()
	check(t, d.device(), data, 0)
	d.unstage()
	d.remove()
}

// TestKernelStripes: data are spread over two devices, also where the extents asked for
// cannot be. The kernel caches in all of the logical volume, and so must be what is
// known, and exported, of it.
func TestKernelStripes(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), v1alpha1.CachePoolSpec{Devices: []string{ssdOne, ssdTwo}})
	const odd = 68 * mib // 17 extents of 4 MiB
	d := m.volume(n, "stripes", 128*mib, cached(volume.ModeWritethrough, odd))
	d.req.Block = true
	d.stage()
	e, err := n.Journal.Load("stripes")
	mustPass(t, "journal", err)
	lvs, err := n.LVM.LVs(t.Context(), pool.VolumeGroup(nodeName))
	mustPass(t, "lvs", err)
	for _, lv := range lvs {
		if lv.Name != "stripes.data" {
			continue
		}
		if lv.SegType != "striped" || lv.SizeBytes <= odd {
			t.Errorf("the data are %s with %d bytes, want striped with more than %d", lv.SegType, lv.SizeBytes, odd)
		}
		if st, _ := d.cache(); e.DataBytes != lv.SizeBytes || int64(st.CacheTotal*st.ChunkSectors)*512 != lv.SizeBytes {
			t.Errorf("the journal says %d bytes, the kernel caches in %d chunks of %d sectors, the logical volume has %d bytes",
				e.DataBytes, st.CacheTotal, st.ChunkSectors, lv.SizeBytes)
		}
	}
	d.unstage()
	d.remove()
}
