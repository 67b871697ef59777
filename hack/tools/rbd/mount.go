package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// binds makes device nodes appear at other paths, as block volumes are published.
type binds struct{}

// number is that of a block device, 0 for what is none.
func number(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, nil
	}
	return st.Rdev, nil
}

// bound implements mounter. Another device at the target is an error.
func (binds) bound(device, target string) (bool, error) {
	want, err := number(device)
	if err != nil {
		return false, err
	}
	if want == 0 {
		return false, fmt.Errorf("%s is no block device", device)
	}
	have, err := number(target)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil || have == 0 {
		return false, err
	}
	if have != want {
		return false, fmt.Errorf("another device, %d:%d, is there", unix.Major(have), unix.Minor(have))
	}
	return true, nil
}

// bind implements mounter: the file is the driver's to make, its folder is not.
func (binds) bind(device, target string) error {
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return unix.Mount(device, target, "", unix.MS_BIND, "")
}

// unbind implements mounter. What is not there is done.
func (binds) unbind(target string) error {
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount: %w", err)
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
