package devmappertest

import "golang.org/x/sys/unix"

// The targets that keep nothing.

type linear struct {
	lower
	start int64
}

func (t linear) read(p []byte, off int64) error  { return t.lower.read(p, t.start+off) }
func (t linear) write(p []byte, off int64) error { return t.lower.write(p, t.start+off) }
func (t linear) discard(off, n int64) error      { return t.lower.discard(t.start+off, n) }

type failing struct{}

func (failing) read([]byte, int64) error   { return unix.EIO }
func (failing) write([]byte, int64) error  { return unix.EIO }
func (failing) flush() error               { return unix.EIO }
func (failing) discard(int64, int64) error { return unix.EIO }

type zeroes struct{}

func (zeroes) read(p []byte, _ int64) error {
	clear(p)
	return nil
}
func (zeroes) write([]byte, int64) error  { return nil }
func (zeroes) flush() error               { return nil }
func (zeroes) discard(int64, int64) error { return nil }
