package devmapper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// builtMetadata are metadata of so many blocks of a cache: block b holds 3b of the origin, unless it
// is free; those that are multiples of five are dirty, of seven free.
func builtMetadata(t *testing.T, blocks uint64) []byte {
	t.Helper()
	le := binary.LittleEndian
	out := []byte(golden(t, "superblock-running.bin"))[:metaBlock]
	a := array{next: 1}
	mapping := a.words(blocks, func(b uint64) uint64 {
		if b%7 == 0 {
			return 0
		}
		return 3*b<<mappingShift | mappingValid
	})
	dirty := a.words((blocks+63)/64, func(w uint64) (bits uint64) {
		for i := range uint64(64) {
			if b := w*64 + i; b%5 == 0 && b%7 != 0 && b < blocks {
				bits |= 1 << i
			}
		}
		return bits
	})
	le.PutUint64(out[sbMappingRoot:], mapping)
	le.PutUint64(out[sbDirtyRoot:], dirty)
	le.PutUint32(out[sbCacheBlocks:], uint32(blocks))
	le.PutUint32(out, superblockChecksum(out))
	return append(out, a.out...)
}

// words makes an array of values of 8 bytes.
func (a *array) words(n uint64, value func(uint64) uint64) uint64 {
	const most = (metaBlock - arrayHeader) / mappingBytes
	var level []uint64
	for at := uint64(0); at < n; at += most {
		level = append(level, a.block(16, arrayXOR, func(b []byte) {
			le, count := binary.LittleEndian, min(n-at, most)
			le.PutUint32(b[4:], most)
			le.PutUint32(b[8:], uint32(count))
			le.PutUint32(b[12:], mappingBytes)
			for i := range count {
				le.PutUint64(b[arrayHeader+mappingBytes*i:], value(at+i))
			}
		}))
	}
	span, flags := uint64(1), uint32(nodeLeaf)
	for {
		var above []uint64
		for at := 0; at < len(level); at += nodeMaxEntries {
			above = append(above, a.node(flags, uint64(at)*span, span, level[at:min(at+nodeMaxEntries, len(level))]))
		}
		if len(above) == 1 {
			return above[0]
		}
		level, span, flags = above, span*nodeMaxEntries, nodeInternal
	}
}

// TestReadCacheBlocks: that the kernel's own metadata are read as cache_dump reads them is tested in
// e2e/kernel.
func TestReadCacheBlocks(t *testing.T) {
	const perBlock = (metaBlock - arrayHeader) / mappingBytes
	for _, blocks := range []uint64{1, perBlock, perBlock + 1, perBlock*nodeMaxEntries + 1} {
		raw := builtMetadata(t, blocks)
		want := map[uint64]CacheBlock{}
		for _, b := range []uint64{0, 1, 5, 7, 35, 64, perBlock - 1, perBlock, blocks / 2, blocks - 1} {
			if b < blocks {
				want[b] = CacheBlock{Mapped: b%7 != 0, Dirty: b%5 == 0 && b%7 != 0}
				if b%7 != 0 {
					want[b] = CacheBlock{Mapped: true, Origin: 3 * b, Dirty: b%5 == 0}
				}
			}
		}
		for b, w := range want {
			got, err := ReadCacheBlocks(bytes.NewReader(raw), []uint64{b})
			if err != nil || got[0] != w {
				t.Errorf("block %d of %d: %+v, %v, want %+v", b, blocks, got, err, w)
			}
		}
		if _, err := ReadCacheBlocks(bytes.NewReader(raw), []uint64{blocks}); !errors.Is(err, ErrInvalid) {
			t.Errorf("a block behind the end: %v", err)
		}
	}
}

// TestReadCacheBlocksTorn: whatever bit of the metadata is wrong, no mapping is made of it.
func TestReadCacheBlocksTorn(t *testing.T) {
	raw := builtMetadata(t, 2000)
	for at := 3; at < len(raw); at += 509 {
		torn := bytes.Clone(raw)
		torn[at] ^= 0x10
		got, err := ReadCacheBlocks(bytes.NewReader(torn), []uint64{1111})
		if err == nil && got[0] != (CacheBlock{Mapped: true, Origin: 3333}) {
			t.Errorf("a wrong bit of byte %d: %+v", at, got)
		}
		if err != nil && !errors.Is(err, ErrMetadata) && !errors.Is(err, ErrNoSuperblock) {
			t.Errorf("a wrong bit of byte %d: %v", at, err)
		}
	}
	_, err := ReadCacheBlocks(bytes.NewReader(raw[:2*metaBlock]), []uint64{1111})
	if err == nil {
		t.Error("metadata that are cut off have a mapping")
	}
}
