package csi_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
)

// attributes has disks show what the kernel shows of a kind of disk.
func attributes(a map[string]string) func(*origintest.Config, *origintest.Files) {
	return func(_ *origintest.Config, f *origintest.Files) { f.Attributes = a }
}

func TestIdentity(t *testing.T) {
	own := "csi:" + driverName + ":vol-" + pv
	cases := map[string]struct {
		attributes    map[string]string
		wwid, product string
	}{
		"loop, rbd, nbd":    {nil, own, ""},
		"SCSI":              {map[string]string{"device/wwid": "naa.600140512345\n", "device/model": "PersistentDisk  "}, "naa.600140512345", "PersistentDisk"},
		"NVMe":              {map[string]string{"wwid": "nvme.1d0f-766f6c", "device/model": "Amazon Elastic Block Store"}, "nvme.1d0f-766f6c", "Amazon Elastic Block Store"},
		"virtio":            {map[string]string{"serial": "9c2b3f5a-1c7e-4b60-8"}, "9c2b3f5a-1c7e-4b60-8 " + own, ""},
		"virtio, no serial": {map[string]string{"serial": ""}, own, ""},
		"a nearflash LUN":   {map[string]string{"device/wwid": "naa.6", "device/model": "nf-zz"}, "naa.6", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nothing, attributes(tc.attributes))
			o := w.mustConnect()
			if o.WWID != tc.wwid || o.Products[0] != tc.product {
				t.Errorf("identity %q, product %q", o.WWID, o.Products[0])
			}
			w.mustDisconnect()
		})
	}
}

// TestBadDevice is a driver that publishes something that is of no use.
func TestBadDevice(t *testing.T) {
	cases := map[string]struct {
		attributes map[string]string
		want       string
	}{
		"no size":            {map[string]string{"size": "0"}, "size"},
		"size of text":       {map[string]string{"size": "many"}, "size"},
		"size too large":     {map[string]string{"size": "9223372036854775807"}, "size"},
		"no node":            {map[string]string{"uevent": "MAJOR=240"}, "device node"},
		"node with a path":   {map[string]string{"uevent": "DEVNAME=../../etc/passwd"}, "device node"},
		"other node":         {map[string]string{"uevent": "DEVNAME=none"}, "no such file"},
		"odd block size":     {map[string]string{"queue/logical_block_size": "513"}, "block size"},
		"unreadable wwid":    {map[string]string{"wwid/x": "1"}, "is a directory"},
		"unreadable diskseq": {map[string]string{"model": "x", "serial/x": "1"}, "is a directory"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, all, attributes(tc.attributes))
			if _, err := w.connect(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("connect: %v", err)
			}
			w.mustDisconnect()
		})
	}
}

// TestNoBlockDevice is a driver that says it has published, and has not.
func TestNoBlockDevice(t *testing.T) {
	w := newWorld(t, nothing)
	w.d.Inject("NodePublishVolume", origintest.Fault{}) // OK, without effect
	if _, err := w.connect(); !errors.Is(err, transport.ErrNoLUN) {
		t.Errorf("connect: %v", err)
	}
	w.config.Stat = func(string) (string, bool, error) { return "", false, nil }
	w.restart()
	if _, err := w.connect(); !errors.Is(err, transport.ErrNoLUN) || !strings.Contains(err.Error(), "no block device") {
		t.Errorf("connect: %v", err)
	}
	w.mustDisconnect()
}

// TestPartition: sizes are its own, the rest is the disk's.
func TestPartition(t *testing.T) {
	w := newWorld(t, nothing, attributes(map[string]string{"wwid": "naa.1", "part/partition": "2", "part/size": "16", "part/uevent": "DEVNAME=fake1p2"}))
	w.mustConnect()
	dev := filepath.Join(w.files.Root, "sys/dev/block/240:200")
	if err := os.Symlink(filepath.Join(w.files.Root, "sys/devices/fake1/part"), dev); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(w.config.Dev, "fake1p2"), "block 240:200")
	write(t, w.target(), "block 240:200")
	remove(t, w.target()+".json")
	w.d.Inject("NodePublishVolume", origintest.Fault{}) // the target is as it should be
	o := w.mustConnect()
	if o.SizeBytes != 16*512 || o.WWID != "naa.1-part2" || o.Paths[0] != "/dev/fake1p2" || o.LogicalBlock != 512 {
		t.Errorf("origin %+v", o)
	}
	w.mustDisconnect()
}

func (w *world) marks() transport.Marks {
	w.t.Helper()
	m, err := w.tr.Marks(w.t.Context(), w.at)
	if err != nil {
		w.t.Fatalf("marks: %v", err)
	}
	return m
}

func TestMarksOfSCSI(t *testing.T) {
	w := newWorld(t, all, attributes(map[string]string{"device/ioerr_cnt": "0x2", "device/iotmo_cnt": "0x1", "device/wwid": "naa.1"}))
	w.mustConnect()
	base := w.marks()
	m, ok := base[driverName]
	if !ok || m.Errors != 3 || m.Uncounted || !strings.Contains(m.Path, "fake1 (240:1)") || !strings.Contains(m.Path, "naa.1") || !strings.Contains(m.Path, "diskseq 1") {
		t.Fatalf("marks %+v", base)
	}
	dir := filepath.Join(w.files.Root, "sys/devices/fake1")
	write(t, filepath.Join(dir, "device/ioerr_cnt"), "0x4")
	if f, why := w.marks().Since(base, nil); f != transport.FailedYes {
		t.Errorf("failed: %s, %s", f, why)
	}
	write(t, filepath.Join(dir, "device/ioerr_cnt"), "x")
	if _, err := w.tr.Marks(t.Context(), w.at); err == nil {
		t.Error("a count that is none")
	}
	write(t, filepath.Join(dir, "device/ioerr_cnt"), "0x2")
	write(t, filepath.Join(dir, "diskseq"), "7")
	if f, why := w.marks().Since(base, nil); f != transport.FailedUnknown {
		t.Errorf("a disk that was away: %s, %s", f, why)
	}
	w.mustDisconnect()
}

// TestMarksUncounted: most disks count nothing, and one behind Fibre Channel not all.
func TestMarksUncounted(t *testing.T) {
	w := newWorld(t, all)
	w.mustConnect()
	if m := w.marks()[driverName]; !m.Uncounted || !strings.Contains(m.Path, "fake1") {
		t.Errorf("mark %+v", m)
	}
	scsi := filepath.Join(w.files.Root, "sys/devices/host1/rport-1:0-2/target1:0:2/1:0:2:0")
	mkdir(t, scsi)
	write(t, filepath.Join(scsi, "ioerr_cnt"), "0x0")
	if err := os.Symlink(scsi, filepath.Join(w.files.Root, "sys/devices/fake1/device")); err != nil {
		t.Fatal(err)
	}
	if m := w.marks()[driverName]; !m.Uncounted {
		t.Errorf("mark behind a remote port: %+v", m)
	}
	w.mustDisconnect()
}

// TestMarksOfISCSI: the connection is part of the path's name.
func TestMarksOfISCSI(t *testing.T) {
	w := newWorld(t, all)
	w.mustConnect()
	fabric := filepath.Join(w.files.Root, "sys/devices/platform/host2/session3")
	scsi, connection := filepath.Join(fabric, "target2:0:0/2:0:0:0"), filepath.Join(fabric, "connection3:0/iscsi_connection/connection3:0")
	mkdir(t, scsi)
	mkdir(t, connection)
	write(t, filepath.Join(scsi, "ioerr_cnt"), "0x0")
	if err := os.Symlink(scsi, filepath.Join(w.files.Root, "sys/devices/fake1/device")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.tr.Marks(t.Context(), w.at); err == nil || !strings.Contains(err.Error(), "no connection") {
		t.Errorf("marks without a connection: %v", err)
	}
	write(t, filepath.Join(connection, "local_port"), "40001")
	base := w.marks()
	if f, why := w.marks().Since(base, nil); f != transport.FailedNo {
		t.Errorf("failed: %s, %s", f, why)
	}
	write(t, filepath.Join(connection, "local_port"), "40002")
	if f, why := w.marks().Since(base, nil); f != transport.FailedUnknown {
		t.Errorf("a new login: %s, %s", f, why)
	}
	w.mustDisconnect()
}
