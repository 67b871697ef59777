// Package mount makes, mounts, grows and measures filesystems on a node, over
// k8s.io/mount-utils. What it adds is caution: what cannot be read is not taken for
// blank, a mount is recognised by the number of its device, and an interrupted mkfs is
// told from a filesystem.
package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Host works on the mount table of this process's mount namespace.
type Host struct {
	run     hostexec.Runner
	mounter mountutils.Interface
}

// New returns a Host.
func New(run hostexec.Runner) *Host {
	return &Host{run: run, mounter: mountutils.New("")}
}

// BindMount shows a mounted directory at a second place.
func (h *Host) BindMount(_ context.Context, source, target string, options []string) error {
	if err := os.MkdirAll(target, 0o750); err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	return h.bind(source, target, options)
}

// BindBlock shows a device at a file.
func (h *Host) BindBlock(_ context.Context, device, target string, options []string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	return h.bind(device, target, options)
}

func (h *Host) bind(source, target string, options []string) error {
	options = append([]string{"bind"}, slices.DeleteFunc(slices.Clone(options), func(o string) bool { return o == "bind" })...)
	if err := h.mounter.Mount(source, target, "", options); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

// Release removes the mount, however often it is stacked, and the path; absent is success. A path on
// which nothing is mounted is left.
//
// With the path the kernel removes the copies of the mount that containers have in mount namespaces of
// their own (detach_mounts in fs/namespace.c), which keep the device open.
func (h *Host) Release(ctx context.Context, target string) error {
	for released := false; ; released = true {
		_, mounted, err := h.Source(ctx, target)
		if err != nil {
			return err
		}
		if !mounted && released {
			return removePath(target)
		}
		if !mounted {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := h.mounter.Unmount(target); err != nil {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
}

// Unmount is Release, and removes the path in any case.
func (h *Host) Unmount(ctx context.Context, target string) error {
	if err := h.Release(ctx, target); err != nil {
		return err
	}
	return removePath(target)
}

func removePath(target string) error {
	// Not RemoveAll: what is in an unmounted directory is somebody's data.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// Source returns the number of the device whose filesystem, or which itself, is
// mounted at target.
func (h *Host) Source(_ context.Context, target string) (devno string, mounted bool, err error) {
	real, err := realPath(target)
	if err != nil {
		return "", false, err
	}
	infos, err := mountutils.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return "", false, fmt.Errorf("mount table: %w", err)
	}
	// The last entry is the topmost mount.
	for _, info := range slices.Backward(infos) {
		if info.MountPoint != real {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(real, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
			return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), true, nil
		}
		return fmt.Sprintf("%d:%d", info.Major, info.Minor), true, nil
	}
	return "", false, nil
}

// realPath resolves links in the path of the parent. The last element is left
// alone: on a filesystem that has failed, even a look at its root is an error.
func realPath(path string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Clean(path), nil
	}
	if err != nil {
		return "", fmt.Errorf("path %s: %w", path, err)
	}
	return filepath.Join(parent, filepath.Base(path)), nil
}

// Grow resizes the mounted filesystem to its device, online.
func (h *Host) Grow(_ context.Context, device, mountPath string) error {
	if _, err := mountutils.NewResizeFs(utilexec.New()).Resize(device, mountPath); err != nil {
		return fmt.Errorf("grow filesystem on %s: %w", device, err)
	}
	return nil
}

// Stats measures the filesystem or block device at path.
func (h *Host) Stats(_ context.Context, path string) (volume.Stats, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return volume.Stats{}, fmt.Errorf("%w: nothing is at %s", volume.ErrNotFound, path)
		}
		return volume.Stats{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		size, err := blockdev.Size(path)
		return volume.Stats{Block: true, TotalBytes: size}, err
	}
	var f unix.Statfs_t
	if err := unix.Statfs(path, &f); err != nil {
		return volume.Stats{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := int64(f.Frsize)
	return volume.Stats{
		TotalBytes: int64(f.Blocks) * block, UsedBytes: int64(f.Blocks-f.Bfree) * block, AvailableBytes: int64(f.Bavail) * block,
		TotalInodes: int64(f.Files), UsedInodes: int64(f.Files - f.Ffree), AvailableInodes: int64(f.Ffree),
	}, nil
}
