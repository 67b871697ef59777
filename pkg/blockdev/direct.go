package blockdev

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// directAlign is enough for every device: O_DIRECT wants the logical block size.
const directAlign = 4096

// OpenDirect opens a block device for reading past the page cache. Reads take
// buffers of AlignedBuffer.
func OpenDirect(path string) (*os.File, error) { return Open(path, unix.O_RDONLY|unix.O_DIRECT) }

// AlignedBuffer returns n bytes, a multiple of 4096, aligned for OpenDirect.
func AlignedBuffer(n int) []byte {
	buf := make([]byte, n+directAlign)
	off := 0
	if rest := int(uintptr(unsafe.Pointer(&buf[0])) % directAlign); rest != 0 {
		off = directAlign - rest
	}
	return buf[off : off+n : off+n]
}
