package blockdevtest

import (
	"bytes"
	"testing"
)

// TestZeroes: zeroes are kept over what was written, and take no memory where nothing was.
func TestZeroes(t *testing.T) {
	d := NewDisk(4 * pageBytes)
	write := func(b []byte, off int64) {
		t.Helper()
		if n, err := d.WriteAt(b, off); n != len(b) || err != nil {
			t.Fatalf("%d bytes at %d: %d, %v", len(b), off, n, err)
		}
	}
	full := bytes.Repeat([]byte{7}, pageBytes)
	write(make([]byte, 3*pageBytes-10), 5)
	if len(d.pages) > 0 {
		t.Errorf("%d pages of zeroes", len(d.pages))
	}
	write(full, pageBytes+100)
	write(make([]byte, pageBytes), pageBytes+50)
	want := make([]byte, 4*pageBytes)
	copy(want[pageBytes+100:], full)
	clear(want[pageBytes+50 : 2*pageBytes+50])
	got := bytes.Repeat([]byte{9}, len(want))
	if n, err := d.ReadAt(got, 0); n != len(got) || err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d, %v, the same: %v", n, err, bytes.Equal(got, want))
	}
	if len(d.pages) != 2 {
		t.Errorf("%d pages, want 2", len(d.pages))
	}
}
