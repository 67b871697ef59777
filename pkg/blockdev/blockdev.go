// Package blockdev is what is done to a block device itself, without a tool.
package blockdev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// File is an open block device.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync returns when everything that was written is on stable storage.
	Sync() error
}

// Opener opens a block device with flags of open(2); Host is one.
type Opener interface {
	Open(path string, flags int) (File, error)
}

// Sync has a block device write back what it holds, and all that it has below.
func Sync(o Opener, path string) error {
	f, err := o.Open(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Host are the block devices of this machine; its methods are the functions of their
// names.
type Host struct{}

// Open implements attach.Blocks.
func (Host) Open(path string, flags int) (File, error) {
	f, err := Open(path, flags)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ZeroHead implements attach.Blocks.
func (Host) ZeroHead(ctx context.Context, path string, n int64) error {
	return ZeroHead(ctx, path, n)
}

// Discard implements attach.Blocks.
func (Host) Discard(ctx context.Context, path string, ranges [][2]uint64) error {
	return Discard(ctx, path, ranges)
}

// SetFlushes implements attach.Blocks.
func (Host) SetFlushes(devno string, pass bool) error { return SetFlushes(devno, pass) }

// PassesFlushes implements attach.Blocks.
func (Host) PassesFlushes(devno string) (bool, error) { return PassesFlushes(devno) }

// RefuseDiscards implements attach.Blocks.
func (Host) RefuseDiscards(devno string) error { return RefuseDiscards(devno) }

// Size is the size of a block device in bytes.
func Size(path string) (int64, error) {
	f, err := Open(path, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	return sizeOf(f)
}

func sizeOf(f *os.File) (int64, error) {
	var size uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return 0, fmt.Errorf("size of %s: %w", f.Name(), errno)
	}
	return int64(size), nil
}

// ZeroHead writes zeroes over the first n bytes of a block device, or over all
// of it if it is smaller, and returns when they are on stable storage.
func ZeroHead(ctx context.Context, path string, n int64) error {
	f, err := Open(path, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size, err := sizeOf(f)
	if err != nil {
		return err
	}
	zeroes := make([]byte, 1<<20)
	for off := int64(0); off < min(n, size); {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("zero head of %s: %w", path, err)
		}
		w, err := f.WriteAt(zeroes[:min(int64(len(zeroes)), min(n, size)-off)], off)
		if err != nil {
			return fmt.Errorf("zero head of %s: %w", path, err)
		}
		off += int64(w)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("zero head of %s: %w", path, err)
	}
	return nil
}

// Discard discards ranges of a block device, each an offset and a length in bytes,
// both multiples of 512, in any order, and returns when the device has done so for all of them.
// What is read from there afterwards is for the device to say; a dm-clone counts
// whole regions as copied (dm-clone.rst).
//
// Errors: that of the open; EOPNOTSUPP of a device that knows no discard; the
// context's, which is looked at between two ranges.
func Discard(ctx context.Context, path string, ranges [][2]uint64) error {
	if len(ranges) == 0 {
		return nil
	}
	f, err := Open(path, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fd := f.Fd()
	// Each request waits until the device has looked at it. A clone answers all that wait
	// at once (dm-clone-target.c, process_deferred_discards), and of scattered chunks there
	// are hundreds of thousands.
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(discardsAtOnce, len(ranges)) {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(ranges)); i = next.Add(1) - 1 {
				if err := ctx.Err(); err != nil {
					return fmt.Errorf("discard %s: %w", path, err)
				}
				if err := discard(fd, ranges[i]); err != nil {
					return fmt.Errorf("discard %d bytes at %d of %s: %w", ranges[i][1], ranges[i][0], path, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// discardsAtOnce is how many requests Discard has under way.
const discardsAtOnce = 16

func discard(fd uintptr, r [2]uint64) error {
	if r[1] == 0 {
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.BLKDISCARD, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return errno
	}
	return nil
}

// IsPartition reports whether a block device is a partition of another one
// (Documentation/ABI/stable/sysfs-block, partition).
func IsPartition(path string) (bool, error) {
	devno, err := DevNo(path)
	if err != nil {
		return false, err
	}
	return there("/sys/dev/block/" + devno + "/partition")
}

// Exists reports whether the kernel has a block device, given as "major:minor"; not one that was taken
// away and that somebody still has open. sysfs is where sysfs is mounted.
func Exists(sysfs, devno string) (bool, error) {
	return there(sysfs + "/dev/block/" + devno)
}

func there(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// LogicalBlock is the size of a device's logical blocks in bytes, the smallest unit that it
// reads and writes. The device is given as "major:minor", sysfs is where sysfs is mounted.
func LogicalBlock(sysfs, devno string) (int, error) {
	dir := sysfs + "/dev/block/" + devno
	text, err := os.ReadFile(dir + "/queue/logical_block_size")
	if errors.Is(err, os.ErrNotExist) {
		// A partition has the queue of its disk.
		text, err = os.ReadFile(dir + "/../queue/logical_block_size")
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("logical block size of device %s: %w", devno, err)
	}
	return n, nil
}

// Models are what the disks below a device call themselves (SCSI INQUIRY, product), one for
// each path of a multipath device; none for disks that have no such name. The device is
// given as "major:minor", sysfs is where sysfs is mounted.
func Models(sysfs, devno string) ([]string, error) {
	return models(sysfs + "/dev/block/" + devno)
}

func models(dir string) ([]string, error) {
	text, err := os.ReadFile(dir + "/device/model")
	switch {
	case err == nil:
		return []string{strings.TrimSpace(string(text))}, nil
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	below, err := os.ReadDir(dir + "/slaves")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, d := range below {
		found, merr := models(dir + "/slaves/" + d.Name())
		out, err = append(out, found...), errors.Join(err, merr)
	}
	return out, err
}

// DevNo is the number of a block device as "major:minor".
func DevNo(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}

// RefuseDiscards makes the kernel answer EOPNOTSUPP to whoever discards blocks of a device
// ("major:minor") through it (Documentation/ABI/stable/sysfs-block, discard_max_bytes).
// The device mapper forgets it with the next table.
func RefuseDiscards(devno string) error {
	if err := os.WriteFile("/sys/dev/block/"+devno+"/queue/discard_max_bytes", []byte("0"), 0); err != nil {
		return fmt.Errorf("refuse discards of device %s: %w", devno, err)
	}
	return nil
}

// SetFlushes has a device ("major:minor") pass flushes on to what it is on, or end them itself as if
// it had no write cache (Documentation/ABI/stable/sysfs-block, write_cache; submit_bio_noacct in
// block/blk-core.c takes REQ_PREFLUSH and REQ_FUA away then). The device mapper forgets it with the
// next table of a cache, which passes them.
func SetFlushes(devno string, pass bool) error {
	word := throughWord
	if pass {
		word = backWord
	}
	if err := os.WriteFile(writeCache(devno), []byte(word), 0); err != nil {
		return fmt.Errorf("have device %s pass flushes (%t): %w", devno, pass, err)
	}
	switch passes, err := PassesFlushes(devno); {
	case err != nil:
		return err
	case passes != pass:
		return fmt.Errorf("have device %s pass flushes (%t): the kernel took %q and did not follow", devno, pass, word)
	}
	return nil
}

// PassesFlushes reports whether a device ("major:minor") passes flushes on.
func PassesFlushes(devno string) (bool, error) {
	b, err := os.ReadFile(writeCache(devno))
	if err != nil {
		return false, fmt.Errorf("flushes of device %s: %w", devno, err)
	}
	return strings.TrimSpace(string(b)) == backWord, nil
}

// What the kernel calls the caches of devices.
const (
	backWord    = "write back"
	throughWord = "write through"
)

func writeCache(devno string) string { return "/sys/dev/block/" + devno + "/queue/write_cache" }

// Open opens a block device and nothing else: a path that devtmpfs has not
// made yet must not become a file in /dev.
func Open(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		_ = f.Close()
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.ENOTBLK}
	}
	return f, nil
}
