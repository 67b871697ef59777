// Package scsidisk makes a block device of the lab a disk of SCSI, as clouds and arrays have
// them: one that counts the requests which it has failed (ioerr_cnt). The kernel's own storage
// server gives the device to the machine itself (tcm_loop), with its flushes, past no cache.
package scsidisk

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse is returned for a disk that somebody has open.
var ErrInUse = errors.New("the disk is in use")

// configfs is where the kernel has its storage server.
const configfs = "/sys/kernel/config/target"

// hba is the folder of our backstores. The driver under test has another one.
const hba = configfs + "/core/iblock_26120"

// diskLimit is how long the kernel may take to show a disk.
const diskLimit = 20 * time.Second

// Disk is a block device, and how it appears.
type Disk struct {
	// Device is the name of the block device in /dev.
	Device string
	// Serial is the disk's unit serial number.
	Serial string
	// ReadOnly lets nobody write.
	ReadOnly bool
}

// backstore and port are folders; their names say which device it is: the same one again is the
// same disk.
func (d Disk) backstore() string { return filepath.Join(hba, d.Device) }
func (d Disk) target() string    { return filepath.Join(configfs, "loopback", naa(d.Device)) }
func (d Disk) group() string     { return filepath.Join(d.target(), "tpgt_1") }
func (d Disk) lun() string       { return filepath.Join(d.group(), "lun/lun_0") }
func (d Disk) link() string      { return filepath.Join(d.lun(), "port") }

// naa is a SCSI name of the machine's own port to a device. What is given out as NAA has 16 hex
// digits: those of an unregistered one begin with 3.
func naa(device string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(device)) // takes everything
	return fmt.Sprintf("naa.3%015x", h.Sum64()>>4)
}

// Add makes the disk, unless it is there, and returns its name in /dev. The modules are loaded.
func (d Disk) Add(ctx context.Context) (string, error) {
	if _, err := os.Lstat(d.link()); errors.Is(err, fs.ErrNotExist) {
		if err := d.make(); err != nil {
			return "", fmt.Errorf("disk of %s: %w", d.Device, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, diskLimit)
	defer cancel()
	for {
		name, err := d.name()
		if err != nil || name != "" {
			return name, err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("no disk of %s: %w", d.Device, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// make repeats what an earlier call has begun: none of its steps is refused twice.
func (d Disk) make() error {
	if err := d.makeBackstore(); err != nil {
		return err
	}
	if err := os.MkdirAll(d.group(), 0o700); err != nil {
		return err
	}
	if b, err := os.ReadFile(filepath.Join(d.group(), "nexus")); err != nil || strings.TrimSpace(string(b)) == "" {
		if err := set(filepath.Join(d.group(), "nexus"), naa(d.Device+" nexus")); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(d.lun(), 0o700); err != nil {
		return err
	}
	return os.Symlink(d.backstore(), d.link())
}

func (d Disk) makeBackstore() error {
	dir := d.backstore()
	if b, err := os.ReadFile(filepath.Join(dir, "enable")); err == nil && strings.TrimSpace(string(b)) == "1" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	control := "udev_path=/dev/" + d.Device
	if d.ReadOnly {
		control += ",readonly=1"
	}
	return errors.Join(
		set(filepath.Join(dir, "control"), control),
		set(filepath.Join(dir, "wwn/vpd_unit_serial"), d.Serial),
		set(filepath.Join(dir, "enable"), "1"))
}

// set writes to a file of the kernel, which is there.
func set(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// name is the disk's in /dev, "" while the kernel has none.
func (d Disk) name() (string, error) {
	b, err := os.ReadFile(filepath.Join(d.group(), "address"))
	if err != nil {
		return "", fmt.Errorf("address of %s: %w", d.Device, err)
	}
	found, err := filepath.Glob("/sys/bus/scsi/devices/" + strings.TrimSpace(string(b)) + ":0/block/*")
	if err != nil || len(found) != 1 {
		return "", err
	}
	return filepath.Base(found[0]), nil
}

// Remove takes the disk away, unless somebody has it open; a part of one is taken away too.
func (d Disk) Remove() error {
	if _, err := os.Stat(d.group()); err == nil {
		name, err := d.name()
		if err != nil {
			return err
		}
		if name != "" {
			if err := unused("/dev/" + name); err != nil {
				return fmt.Errorf("%s of %s: %w", name, d.Device, err)
			}
		}
	}
	for _, path := range []string{d.link(), d.lun(), d.group(), d.target(), d.backstore()} {
		remove := unix.Rmdir
		if path == d.link() {
			remove = unix.Unlink
		}
		if err := remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", path, err)
		}
	}
	return nil
}

// unused fails with ErrInUse if somebody has a disk open. The kernel would take it away all the
// same, and what is not written yet would be lost.
func unused(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_EXCL, 0) // a filesystem or the device mapper
	if errors.Is(err, unix.EBUSY) {
		return ErrInUse
	}
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	var disk unix.Stat_t
	if err := unix.Stat(path, &disk); err != nil {
		return err
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return err
	}
	for _, loop := range loops { // raw blocks for a pod
		if over, err := backing("/dev/" + filepath.Base(filepath.Dir(loop))); err == nil && over == disk.Rdev {
			return ErrInUse
		}
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return err
	}
	for _, file := range files {
		var st unix.Stat_t
		if unix.Stat(file, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == disk.Rdev {
			return fmt.Errorf("%w: %s", ErrInUse, file)
		}
	}
	return nil
}

// backing is the number of the device below a loop device.
func backing(loop string) (uint64, error) {
	f, err := os.Open(loop)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return 0, err
	}
	return info.Rdevice, nil
}
