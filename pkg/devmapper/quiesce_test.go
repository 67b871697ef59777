package devmapper

import (
	"errors"
	"slices"
	"testing"
)

// still is a kernel with one device.
type still struct {
	suspended bool
	asked     []uint32
}

func (k *still) ask(_ uintptr, _ string, flags uint32) error {
	k.asked = append(k.asked, flags)
	k.suspended = flags&flagSuspended != 0
	return nil
}

func (k *still) info(name string) (Info, error) { return Info{Name: name, Suspended: k.suspended}, nil }
func (k *still) status(string) (string, error)  { return "", ErrNotExist }
func (k *still) table(string) (string, error) {
	return "0 8192 cache 253:1 253:2 253:3 512 2 metadata2 writeback smq 0\n", nil
}
func (k *still) close() {}

// TestSuspender: a suspension that is somebody else's is not taken for one's own.
func TestSuspender(t *testing.T) {
	k := &still{}
	s := &Suspender{c: k}
	if err := s.Suspend("nf-v"); err != nil || !slices.Equal(k.asked, []uint32{flagSuspended | flagSkipLockFS}) {
		t.Errorf("%v, asked %x", err, k.asked)
	}
	if err := s.Suspend("nf-v"); !errors.Is(err, ErrBusy) || len(k.asked) != 1 {
		t.Errorf("of a suspended device: %v, asked %x", err, k.asked)
	}
	if err := s.Resume("nf-v"); err != nil || k.suspended {
		t.Errorf("%v, suspended %t", err, k.suspended)
	}
	table, err := s.Table("nf-v")
	if c, ok := table.Cache(); err != nil || !ok || c.Data != "253:2" || c.ChunkSectors != 512 || c.Mode != Writeback {
		t.Errorf("%v, %v", table, err)
	}
}

func TestDevPath(t *testing.T) {
	if p, err := DevPath("253:7"); err != nil || p != "/dev/dm-7" {
		t.Errorf("%q, %v", p, err)
	}
	if _, err := DevPath("/dev/sda"); !errors.Is(err, ErrParse) {
		t.Errorf("got %v", err)
	}
}
