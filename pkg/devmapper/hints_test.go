package devmapper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestAddHints: the array has one value for each cache block, whatever the number of
// its levels, and a copy that has an array stays as it is. That cache_dump reads it is
// tested on a real kernel in e2e/kernel.
func TestAddHints(t *testing.T) {
	le := binary.LittleEndian
	for _, blocks := range []uint32{0, 1, arrayMax, arrayMax + 1, arrayMax * nodeMaxEntries, arrayMax*nodeMaxEntries + 1} {
		file := filepath.Join(t.TempDir(), "meta")
		raw := make([]byte, 3*metaBlock)
		le.PutUint32(raw[sbCacheBlocks:], blocks)
		le.PutUint32(raw, superblockChecksum(raw[:metaBlock]))
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := AddHints(file); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if le.Uint32(got) != superblockChecksum(got[:metaBlock]) {
			t.Errorf("%d blocks: wrong checksum of the superblock", blocks)
		}
		if n := countHints(t, got, le.Uint64(got[sbHintRoot:]), 0); n != blocks {
			t.Errorf("%d hints of %d blocks", n, blocks)
		}
		if err := AddHints(file); err != nil {
			t.Fatal(err)
		}
		if again, err := os.ReadFile(file); err != nil || !bytes.Equal(got, again) {
			t.Errorf("%d blocks: a copy that has hints was changed, %v", blocks, err)
		}
		got[100] ^= 1
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := AddHints(file); !errors.Is(err, ErrNoSuperblock) {
			t.Errorf("a torn superblock: %v", err)
		}
	}
}

// countHints walks the tree; first is the least key that may be in the node.
func countHints(t *testing.T, meta []byte, at uint64, first uint64) uint32 {
	t.Helper()
	le, b := binary.LittleEndian, meta[at*metaBlock:][:metaBlock]
	if le.Uint64(b[8:]) != at {
		t.Fatalf("node %d says that it is %d", at, le.Uint64(b[8:]))
	}
	n := uint32(0)
	for i := range uint64(le.Uint32(b[16:])) {
		key, value := le.Uint64(b[nodeHeader+8*i:]), le.Uint64(b[nodeHeader+8*nodeMaxEntries+8*i:])
		if i == 0 && key != first {
			t.Fatalf("node %d begins with %d, want %d", at, key, first)
		}
		if le.Uint32(b[4:]) == nodeInternal {
			n += countHints(t, meta, value, key)
			continue
		}
		if key != first+i {
			t.Fatalf("key %d of node %d is %d", i, at, key)
		}
		block := meta[value*metaBlock:][:metaBlock]
		if le.Uint64(block[16:]) != value {
			t.Fatalf("block %d says that it is %d", value, le.Uint64(block[16:]))
		}
		n += le.Uint32(block[8:])
	}
	return n
}
