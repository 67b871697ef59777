package blockdev_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

// TestFlushes: those of all disks below a device count, if all of them tell.
func TestFlushes(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, "dev/block", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const counts = "     446        0    16194      104       77        3      640       21        5       96      125        0        0        0        0        9       11\n"
	put("8:0/queue/write_cache", "write back\n")
	put("8:0/stat", counts)
	put("8:16/queue/write_cache", "write back\n")
	put("8:16/stat", counts)
	put("8:32/queue/write_cache", "write through\n")
	put("8:32/stat", counts)
	put("8:48/queue/write_cache", "write back\n")
	put("8:48/stat", "1 2 3 4 5 6 7 8 9 10 11\n")
	below := func(device string, disks ...string) {
		t.Helper()
		for _, d := range disks {
			if err := os.MkdirAll(filepath.Join(dir, "dev/block", device, "slaves"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join(dir, "dev/block", d), filepath.Join(dir, "dev/block", device, "slaves", d)); err != nil {
				t.Fatal(err)
			}
		}
	}
	below("253:0", "8:0", "8:16")
	below("253:1", "253:0")
	below("253:2", "8:0", "8:32")
	for device, want := range map[string]uint64{"8:0": 9, "253:0": 18, "253:1": 18} {
		if got, err := blockdev.Flushes(dir, device); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", device, got, err, want)
		}
	}
	for device, want := range map[string]error{"8:32": blockdev.ErrNoFlushes, "253:2": blockdev.ErrNoFlushes, "8:48": blockdev.ErrNoFlushes, "8:64": os.ErrNotExist} {
		if _, err := blockdev.Flushes(dir, device); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", device, err, want)
		}
	}
}
