package blockdevtest

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

const pageBytes = 4096

// zeroes is a page of them.
var zeroes [pageBytes]byte

// Disk keeps bytes. What was never written, or was discarded, is zero.
type Disk struct {
	mu    sync.Mutex
	size  int64
	pages map[int64]*[pageBytes]byte
	// flushed is OnFlush.
	flushed func()
}

var _ Device = (*Disk)(nil)

// NewDisk returns a blank disk.
func NewDisk(size int64) *Disk { return &Disk{size: size, pages: map[int64]*[pageBytes]byte{}} }

// Size implements Device.
func (d *Disk) Size() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.size
}

// Grow makes the disk larger.
func (d *Disk) Grow(size int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.size = max(d.size, size)
}

// ReadAt implements io.ReaderAt.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := max(min(int64(len(p)), d.size-off), 0)
	for at := int64(0); at < n; {
		page, in := (off+at)/pageBytes, (off+at)%pageBytes
		step := min(pageBytes-in, n-at)
		if b := d.pages[page]; b != nil {
			copy(p[at:at+step], b[in:])
		} else {
			clear(p[at : at+step])
		}
		at += step
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// WriteAt implements io.WriterAt.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if off < 0 || off+int64(len(p)) > d.size {
		return 0, fmt.Errorf("write of %d bytes at %d of %d: %w", len(p), off, d.size, unix.ENOSPC)
	}
	for at := int64(0); at < int64(len(p)); {
		page, in := (off+at)/pageBytes, (off+at)%pageBytes
		part := p[at:min(at+pageBytes-in, int64(len(p)))]
		at += int64(len(part))
		if d.pages[page] == nil {
			// Caches are filled with what was never written: pages of zeroes were most of what
			// tests kept, and of the time that they took.
			if bytes.Equal(part, zeroes[:len(part)]) {
				continue
			}
			d.pages[page] = new([pageBytes]byte)
		}
		copy(d.pages[page][in:], part)
	}
	return len(p), nil
}

// OnFlush has something called at each flush from now on, for what else the disk keeps.
func (d *Disk) OnFlush(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushed = do
}

// Flush implements Device: every write was kept at once.
func (d *Disk) Flush() error {
	d.mu.Lock()
	do := d.flushed
	d.mu.Unlock()
	if do != nil {
		do()
	}
	return nil
}

// Discard implements Device.
func (d *Disk) Discard(off, n int64) error { return zero(d, off, n) }

// zero writes zeroes over a part of a device; over a disk without keeping them.
func zero(d Device, off, n int64) error {
	disk, ok := d.(*Disk)
	for at := off; at < off+n; {
		step := min(pageBytes-at%pageBytes, off+n-at)
		if ok && step == pageBytes {
			disk.drop(at / pageBytes)
		} else if _, err := d.WriteAt(zeroes[:step], at); err != nil {
			return err
		}
		at += step
	}
	return d.Flush()
}

// Forget makes the disk blank and lets its memory go, for tests that are over while somebody who never
// ends still has it.
func (d *Disk) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pages = map[int64]*[pageBytes]byte{}
}

func (d *Disk) drop(page int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pages, page)
}
