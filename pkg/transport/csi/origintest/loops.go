package origintest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Loops are Devices of the kernel: loop devices over files in a directory, bound to their
// targets as most drivers do it. It needs root, and no two processes may attach at one time.
type Loops struct {
	// Dir has the files of the disks.
	Dir string
}

func (l Loops) file(handle string) string { return filepath.Join(l.Dir, handle+".disk") }

// Create implements Devices.
func (l Loops) Create(handle string, size int64) error {
	f, err := os.OpenFile(l.file(handle), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < size {
		err = f.Truncate(size)
	}
	return errors.Join(err, f.Close())
}

// Delete implements Devices.
func (l Loops) Delete(handle string) error {
	if err := os.Remove(l.file(handle)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Resize implements Devices.
func (l Loops) Resize(handle string, size int64) error { return l.Create(handle, size) }

// device is the loop device of a disk, "" if it is not attached.
func (l Loops) device(handle string) (string, error) {
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(b)) == l.file(handle) {
			return "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(path))), nil
		}
	}
	return "", nil
}

// Attach implements Devices.
func (l Loops) Attach(handle string) error {
	if dev, err := l.device(handle); err != nil || dev != "" {
		return err
	}
	disk, err := os.OpenFile(l.file(handle), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = disk.Close() }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = control.Close() }()
	// Between the two somebody else may take it.
	for range 16 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("a free loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_FD, int(disk.Fd()))
		_ = dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return errors.New("every free loop device was taken by somebody else")
}

// with opens the loop device of a disk, if it is attached.
func (l Loops) with(handle string, f func(fd int) error) error {
	dev, err := l.device(handle)
	if err != nil || dev == "" {
		return err
	}
	file, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f(int(file.Fd())), file.Close())
}

// Detach implements Devices.
func (l Loops) Detach(handle string) error {
	return l.with(handle, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) })
}

// Refresh implements Devices.
func (l Loops) Refresh(handle string) error {
	return l.with(handle, func(fd int) error { return unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0) })
}

// Publish implements Devices.
func (l Loops) Publish(handle, target string) error {
	dev, err := l.device(handle)
	if err != nil {
		return err
	}
	if dev == "" {
		return fmt.Errorf("disk of %s is not attached", handle)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(target, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return err
	}
	if err := unix.Mount(dev, target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount", Path: target, Err: err}
	}
	return nil
}

// Unpublish implements Devices.
func (l Loops) Unpublish(target string) error {
	if err := unix.Unmount(target, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: target, Err: err}
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Open implements Devices: a device that somebody holds is not to be had exclusively.
func (l Loops) Open(handle string) (bool, error) {
	dev, err := l.device(handle)
	if err != nil || dev == "" {
		return false, err
	}
	fd, err := unix.Open(dev, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "open", Path: dev, Err: err}
	}
	return false, unix.Close(fd)
}
