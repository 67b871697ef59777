package lvol

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BlockDevice is what is done to a volume's device itself.
type BlockDevice interface {
	// Zero makes the first size bytes read as zeros, durably.
	Zero(ctx context.Context, path string, size int64) error
	// Discard gives the first size bytes back to what is below.
	Discard(ctx context.Context, path string, size int64) error
}

// chunkBytes is how much one ioctl covers. The kernel ends such a call early only
// for a fatal signal, so this is what a cancelled context waits for.
const chunkBytes = 64 << 20

type kernelDevice struct{}

// NewBlockDevice returns the BlockDevice of the kernel.
func NewBlockDevice() BlockDevice {
	return kernelDevice{}
}

// Zero uses BLKZEROOUT, which writes zeros itself where the device has no command
// for it, and never merely discards (block/blk-lib.c, BLKDEV_ZERO_NOUNMAP).
func (kernelDevice) Zero(ctx context.Context, path string, size int64) error {
	return ranges(ctx, path, size, unix.BLKZEROOUT)
}

// Discard uses BLKDISCARD.
func (kernelDevice) Discard(ctx context.Context, path string, size int64) error {
	return ranges(ctx, path, size, unix.BLKDISCARD)
}

func ranges(ctx context.Context, path string, size int64, request uintptr) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for at := int64(0); at < size; at += chunkBytes {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := [2]uint64{uint64(at), uint64(min(chunkBytes, size-at))} // both positive
		// the ioctl takes a pointer to two integers
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&part))); errno != 0 {
			return fmt.Errorf("%s: at byte %d: %w", path, at, errno)
		}
	}
	// Zeros in a volatile cache of the disk are not durable yet.
	return f.Sync()
}
