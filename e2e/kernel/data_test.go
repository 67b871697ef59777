//go:build kernel

package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// pattern is reproducible data of n bytes.
func pattern(seed uint64, n int64) []byte {
	b := aligned(n)
	r := rand.New(rand.NewPCG(seed, seed))
	for i := 0; i+8 <= len(b); i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

// aligned is a buffer that O_DIRECT accepts.
func aligned(n int64) []byte {
	const unit = 4096
	b := make([]byte, n+unit)
	skip := unit - int(uintptr(unsafe.Pointer(&b[0]))%unit)
	return b[skip : int64(skip)+n : int64(skip)+n]
}

func openDirect(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	mustPass(t, "open", err)
	return f
}

// sameDevices compares two devices past the page cache: what was once read of an
// origin stays there while the cache above it writes.
func sameDevices(t *testing.T, a, b string) {
	t.Helper()
	fa, fb := openDirect(t, a), openDirect(t, b)
	defer func() { _, _ = fa.Close(), fb.Close() }()
	pa, pb := aligned(mib), aligned(mib)
	for at := int64(0); ; {
		n, err := fa.ReadAt(pa, at)
		m, err2 := fb.ReadAt(pb, at)
		if n != m || !bytes.Equal(pa[:n], pb[:m]) {
			t.Fatalf("%s and %s differ at or after offset %d", a, b, at)
		}
		at += int64(n)
		if errors.Is(err, io.EOF) && errors.Is(err2, io.EOF) {
			break
		}
		mustPass(t, "read", errors.Join(err, err2))
	}
}

// write writes past the page cache; sync makes the device flush.
func write(t *testing.T, path string, data []byte, at int64, sync bool) {
	t.Helper()
	f := openDirect(t, path)
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatalf("write: %v", err)
	}
	if sync {
		mustPass(t, "fsync", f.Sync())
	}
}

func check(t *testing.T, path string, want []byte, at int64) {
	t.Helper()
	if err := compare(path, want, at); err != nil {
		t.Error(err)
	}
}

func compare(path string, want []byte, at int64) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	got := aligned(int64(len(want)))
	if _, err := f.ReadAt(got, at); err != nil {
		return fmt.Errorf("read %s at %d: %w", path, at, err)
	}
	if !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		return fmt.Errorf("%s: data at offset %d are not what was written", path, at+int64(i))
	}
	return nil
}

// reads reads n blocks of 4 KiB at random places below limit.
func reads(t *testing.T, path string, seed uint64, n int, limit int64) {
	t.Helper()
	f := openDirect(t, path)
	defer func() { _ = f.Close() }()
	buf := aligned(4096)
	r := rand.New(rand.NewPCG(seed, 7))
	for range n {
		if _, err := f.ReadAt(buf, r.Int64N(limit/4096)*4096); err != nil {
			t.Fatalf("read: %v", err)
		}
	}
}

// movedWarm has a load fill A's cache, and moves the volume to B.
func (v *movers) movedWarm() *load {
	t := v.m.t
	t.Helper()
	v.stage()
	l := startLoad(t, v.device(), 64*mib)
	l.until(v.disk, func(st devmapper.CacheStatus) bool { return st.CacheUsed > 100 })
	l.end()
	v.unstage()
	v.publishTo(v.b, otherName)
	v.arrive()
	return l
}

// leaveChecked ends the volume's life after the origin alone has shown what a load wrote.
func (v *movers) leaveChecked(l *load) {
	t := v.m.t
	t.Helper()
	v.unstage()
	v.ask(mode(volume.ModeNone))
	v.stage()
	l.check(v.device())
	v.unstage()
	mustPass(t, "repair", v.a.Repair(t.Context()))
	v.remove()
	mustPass(t, "repair", v.a.Repair(t.Context()))
}

// resumeLoad goes on with what an ended load has written.
func resumeLoad(l *load, path string) *load {
	n := &load{t: l.t, path: path, blocks: l.blocks, versions: l.versions, done: make(chan error, 1), unsure: l.unsure}
	go func() { n.done <- n.run() }()
	return n
}

func mustPass(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
