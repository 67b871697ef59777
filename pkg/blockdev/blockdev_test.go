package blockdev_test

import (
	"errors"
	"os"
	"path/filepath"
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
