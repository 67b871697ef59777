package blockdevtest

import (
	"errors"
	"os"
	"testing"
)

// TestExit: a process that has ended has nothing open, and opens nothing.
func TestExit(t *testing.T) {
	m := New()
	m.Add("8:1", "/dev/sda", NewDisk(1<<20))
	b := m.Blocks(nil)
	f, err := b.Open("/dev/sda", 0)
	if err != nil || m.Openers("/dev/sda") != 1 {
		t.Fatalf("%d openers, %v", m.Openers("/dev/sda"), err)
	}
	b.Exit()
	if n := m.Openers("/dev/sda"); n != 0 {
		t.Errorf("%d openers after the end", n)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	_, err = b.Open("/dev/sda", 0)
	if n := m.Openers("/dev/sda"); n != 0 || !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("%d openers of a process that has ended, %v", n, err)
	}
}
