package blockdev_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

func TestWrittenTo(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "dev/block/253:4"), 0o700); err != nil {
		t.Fatal(err)
	}
	stat := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "dev/block/253:4/stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stat("     446        0    16194      104       77        3      640       21        5       96      125        0        0        0        0        9       11\n")
	got, err := blockdev.WrittenTo(dir, "253:4")
	if want := (blockdev.Written{Requests: 77, Sectors: 640, InFlight: 5}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := blockdev.WrittenTo(dir, "253:5"); err == nil {
		t.Error("a device that is not there was read")
	}
	stat("1 2 3")
	if _, err := blockdev.WrittenTo(dir, "253:4"); err == nil {
		t.Error("half a file was read")
	}
	stat("1 2 3 4 x 6 7 8 9")
	if _, err := blockdev.WrittenTo(dir, "253:4"); err == nil {
		t.Error("a word was read as a number")
	}
}

func TestReadFrom(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "dev/block/253:4"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "dev/block/253:4", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("stat", "     446        0    16194      104       77        3      640       21        5       96      125\n")
	if _, err := blockdev.ReadFrom(dir, "253:4"); err == nil {
		t.Error("half of the counts were read")
	}
	write("inflight", "       2        3\n")
	before, err := blockdev.ReadFrom(dir, "253:4")
	if want := (blockdev.Reads{Requests: 446, Took: 104 * time.Millisecond, InFlight: 2}); err != nil || before != want {
		t.Errorf("got %+v, %v, want %+v", before, err, want)
	}
	if idle, err := blockdev.Idle(dir, "253:4"); err != nil || idle {
		t.Errorf("idle %t, %v", idle, err)
	}
	write("stat", "     456        0    16194      164       77        3      640       21        5       96      125\n")
	write("inflight", "       0        1\n")
	if idle, err := blockdev.Idle(dir, "253:4"); err != nil || idle {
		t.Errorf("with a write under way: idle %t, %v", idle, err)
	}
	write("inflight", "       0        0\n")
	if idle, err := blockdev.Idle(dir, "253:4"); err != nil || !idle {
		t.Errorf("idle %t, %v", idle, err)
	}
	after, err := blockdev.ReadFrom(dir, "253:4")
	if since := after.Since(before); err != nil || since != (blockdev.Reads{Requests: 10, Took: 60 * time.Millisecond}) || since.Mean() != 6*time.Millisecond {
		t.Errorf("%+v, %v in the mean, %v", since, since.Mean(), err)
	}
	if since := before.Since(after); since != (blockdev.Reads{InFlight: 2}) || since.Mean() != 0 {
		t.Errorf("of another device: %+v", since)
	}
	write("inflight", "none\n")
	if _, err := blockdev.Idle(dir, "253:4"); err == nil {
		t.Error("a word was read as a number")
	}
}

func TestChunks(t *testing.T) {
	const chunk = 256
	before := blockdev.Written{Requests: 100, Sectors: 5000}
	cases := map[string]struct {
		now  blockdev.Written
		want uint64
	}{
		"nothing":       {before, 0},
		"one small":     {blockdev.Written{Requests: 101, Sectors: 5008}, 2},
		"one large":     {blockdev.Written{Requests: 101, Sectors: 5000 + 3*chunk}, 5},
		"under way":     {blockdev.Written{Requests: 100, Sectors: 5000, InFlight: 4}, 8},
		"another stack": {blockdev.Written{Requests: 3, Sectors: 8}, ^uint64(0) >> 1},
	}
	for name, tc := range cases {
		if got := tc.now.Chunks(before, chunk); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestDiscards(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "dev/block/254:1")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]uint64{"1 0 8 0 2 0 16 0 0 0 0 5 0 0 0": 5, "1 0 8 0 2 0 16 0 0 0 0": 0} {
		if err := os.WriteFile(filepath.Join(path, "stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := blockdev.Discards(dir, "254:1"); n != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}
