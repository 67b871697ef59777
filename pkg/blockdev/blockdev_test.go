package blockdev_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

// What a discard does to a device is tested on a real kernel in pkg/cachemap.
func TestDiscardRefusesOtherFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	ranges := [][2]uint64{{0, 512}}
	if err := blockdev.Discard(t.Context(), file, ranges); !errors.Is(err, unix.ENOTBLK) {
		t.Errorf("a file: %v, want ENOTBLK", err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if err := blockdev.Discard(t.Context(), file+"x", ranges); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no file: %v, want ENOENT", err)
	}
	if err := blockdev.Discard(t.Context(), file+"x", nil); err != nil {
		t.Errorf("nothing to discard: %v", err)
	}
}

// TestModels: a disk has a name, a device over several has that of each, and a disk of
// another kind has none.
func TestModels(t *testing.T) {
	sys := t.TempDir()
	put := func(file, text string) {
		t.Helper()
		path := filepath.Join(sys, "dev/block", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("8:0/device/model", "nearflash-1     \n")
	put("253:0/slaves/sda/device/model", "one\n")
	put("253:0/slaves/dm-1/slaves/sdb/device/model", "two\n")
	put("254:0/size", "8\n")
	for devno, want := range map[string][]string{"8:0": {"nearflash-1"}, "253:0": {"one", "two"}, "254:0": nil, "1:1": nil} {
		got, err := blockdev.Models(sys, devno)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", devno, got, err, want)
		}
	}
	if err := os.MkdirAll(filepath.Join(sys, "dev/block/8:16/device/model"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := blockdev.Models(sys, "8:16"); err == nil {
		t.Errorf("a name that cannot be read: %q", got)
	}
}
