package extents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From include/uapi/linux/fiemap.h and fs.h.
const (
	fiemapCommand = 0xC020660B // FS_IOC_FIEMAP
	fiemapAll     = ^uint64(0)
	extentsAtOnce = 128

	flagLast = 0x1
	// Data that are not on the device at these places: unknown, delayed, encoded, within the
	// inode, in a tail; or not written yet.
	flagsElsewhere = 0x2 | 0x4 | 0x8 | 0x200 | 0x400 | 0x800
)

// fiemap is struct fiemap with room for extents.
type fiemap struct {
	start, length                  uint64
	flags, mapped, count, reserved uint32
	extents                        [extentsAtOnce]fiemapExtent
}

// fiemapExtent is struct fiemap_extent.
type fiemapExtent struct {
	logical, physical, length uint64
	reserved                  [2]uint64
	flags                     uint32
	reservedToo               [3]uint32
}

// extentsOf calls do with the extents of a file. It has nothing written for that: what is not on the device
// yet is not told.
func extentsOf(ctx context.Context, f *os.File, do func(Extent) error) error {
	m := &fiemap{length: fiemapAll, count: extentsAtOnce}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		m.mapped, m.flags = 0, 0
		m.length = fiemapAll - m.start
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemapCommand, uintptr(unsafe.Pointer(m))); errno != 0 {
			if errors.Is(errno, unix.EOPNOTSUPP) || errors.Is(errno, unix.ENOTTY) {
				return fmt.Errorf("the filesystem does not tell where its files are (FIEMAP): %w", errno)
			}
			return fmt.Errorf("extents of %s: %w", f.Name(), errno)
		}
		n := min(m.mapped, extentsAtOnce)
		for _, x := range m.extents[:n] {
			if x.flags&flagsElsewhere == 0 && x.length > 0 {
				if err := do(Extent{Start: x.physical, Length: x.length}); err != nil {
					return err
				}
			}
			if x.flags&flagLast != 0 {
				return nil
			}
		}
		if n == 0 {
			return nil
		}
		last := m.extents[n-1]
		next := last.logical + last.length
		if next <= m.start {
			return nil
		}
		m.start = next
	}
}
