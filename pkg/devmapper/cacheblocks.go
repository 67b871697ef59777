package devmapper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
)

// ErrMetadata: a cache's metadata are not what the kernel writes.
var ErrMetadata = errors.New("not the metadata of a cache")

// Where a cache's superblock has the roots of its map and of its dirty bits, and the form of
// both (drivers/md/dm-cache-metadata.c).
const (
	sbMappingRoot = 192
	sbDirtyRoot   = 284

	mappingBytes = 8
	mappingValid = 1 << 0
	mappingDirty = 1 << 1
	// mappingShift is behind the flags of a mapping.
	mappingShift = 16
	// maxDepth is more than the tree of any array has.
	maxDepth = 8
)

// CacheBlock is what the metadata say of one block of a cache.
type CacheBlock struct {
	// Mapped is false of a block that holds nothing.
	Mapped bool
	// Origin is the block of the origin that it holds.
	Origin uint64
	// Dirty is true if the origin does not have what it holds. The kernel writes that down when a
	// device is suspended, and at no other time.
	Dirty bool
}

// ReadCacheBlocks reads what the metadata say of some blocks of a cache, in a few reads of 4 KiB
// each. It is exact while the device is suspended (cache_postsuspend in dm-cache-target.c). Every
// block that it goes by has the right checksum and the right place. Its buffers are aligned, so
// that r may be a file opened with O_DIRECT.
//
// Errors: ErrNoSuperblock, ErrMetadata, ErrInvalid for a block that the cache does not have; the
// error of r.
func ReadCacheBlocks(r io.ReaderAt, blocks []uint64) ([]CacheBlock, error) {
	raw := alignedBlock()
	if _, err := r.ReadAt(raw, 0); err != nil {
		return nil, fmt.Errorf("read dm-cache superblock: %w", err)
	}
	sb, err := parseSuperblock(raw)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	m := metadata{r: r, blocks: map[uint64][]byte{}}
	mapping, dirty := le.Uint64(raw[sbMappingRoot:]), le.Uint64(raw[sbDirtyRoot:])
	out := make([]CacheBlock, len(blocks))
	for i, b := range blocks {
		if b >= uint64(sb.CacheBlocks) {
			return nil, fmt.Errorf("%w: block %d of a cache of %d", ErrInvalid, b, sb.CacheBlocks)
		}
		value, err := m.value(mapping, b)
		if err != nil {
			return nil, err
		}
		out[i] = CacheBlock{Mapped: value&mappingValid != 0, Origin: value >> mappingShift, Dirty: value&mappingDirty != 0}
		if sb.FormatVersion >= 2 {
			word, err := m.value(dirty, b/64)
			if err != nil {
				return nil, err
			}
			out[i].Dirty = word>>(b%64)&1 != 0
		}
	}
	return out, nil
}

// metadata reads each block once.
type metadata struct {
	r      io.ReaderAt
	blocks map[uint64][]byte
}

// value reads a value of 64 bits of an array (dm-array.c): the keys of its tree (dm-btree.c) are
// the numbers of blocks of values.
func (m metadata) value(root, index uint64) (uint64, error) {
	const perBlock = (metaBlock - arrayHeader) / mappingBytes
	le, at := binary.LittleEndian, root
	for range maxDepth {
		node, err := m.block(at, nodeXOR, 8)
		if err != nil {
			return 0, err
		}
		n, most := uint64(le.Uint32(node[16:])), uint64(le.Uint32(node[20:]))
		if le.Uint32(node[24:]) != 8 || most > nodeMaxEntries || n == 0 || n > most {
			return 0, fmt.Errorf("%w: block %d is no node with values of 8 bytes", ErrMetadata, at)
		}
		key := func(i int) uint64 { return le.Uint64(node[nodeHeader+8*i:]) }
		i := sort.Search(int(n), func(i int) bool { return key(i) > index/perBlock }) - 1
		if i < 0 {
			return 0, fmt.Errorf("%w: block %d has nothing for value %d", ErrMetadata, at, index)
		}
		below := le.Uint64(node[nodeHeader+8*most+8*uint64(i):])
		switch flags := le.Uint32(node[4:]); {
		case flags&nodeInternal != 0:
			at = below
		case flags&nodeLeaf == 0 || key(i) != index/perBlock:
			return 0, fmt.Errorf("%w: block %d has no leaf for value %d", ErrMetadata, at, index)
		default:
			return m.entry(below, index%perBlock)
		}
	}
	return 0, fmt.Errorf("%w: the tree of block %d is deeper than %d", ErrMetadata, root, maxDepth)
}

// entry reads a value of a block of an array.
func (m metadata) entry(at, i uint64) (uint64, error) {
	b, err := m.block(at, arrayXOR, 16)
	if err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	n := uint64(le.Uint32(b[8:]))
	if le.Uint32(b[12:]) != mappingBytes || n > (metaBlock-arrayHeader)/mappingBytes || i >= n {
		return 0, fmt.Errorf("%w: block %d has no value %d of 8 bytes", ErrMetadata, at, i)
	}
	return le.Uint64(b[arrayHeader+mappingBytes*i:]), nil
}

// block reads a block and checks its checksum and its number, which is at an offset.
func (m metadata) block(at uint64, xor uint32, number int) ([]byte, error) {
	if b := m.blocks[at]; b != nil {
		return b, nil
	}
	b := alignedBlock()
	if at == 0 || at > maxMetadataBlock {
		return nil, fmt.Errorf("%w: it points to block %d", ErrMetadata, at)
	}
	if _, err := m.r.ReadAt(b, int64(at)*metaBlock); err != nil {
		return nil, fmt.Errorf("read block %d of the metadata: %w", at, err)
	}
	le := binary.LittleEndian
	if sum := ^crc32.Checksum(b[4:], crc32.MakeTable(crc32.Castagnoli)) ^ xor; le.Uint32(b) != sum || le.Uint64(b[number:]) != at {
		return nil, fmt.Errorf("%w: block %d has a wrong checksum or number", ErrMetadata, at)
	}
	m.blocks[at] = b
	return b, nil
}

// maxMetadataBlock is the largest number of a block of metadata (DM_CACHE_METADATA_MAX_SECTORS).
const maxMetadataBlock = 255 * (1 << 14)
