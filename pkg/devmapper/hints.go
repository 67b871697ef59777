package devmapper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
)

// Where a cache's superblock has what concerns hints, and the forms of an array
// (drivers/md/dm-cache-metadata.c, drivers/md/persistent-data/dm-btree-internal.h and
// dm-array.c).
const (
	sbHintRoot = 200
	metaBlock  = 4096

	nodeXOR      = 121107
	nodeInternal = 1
	nodeLeaf     = 2
	nodeHeader   = 32
	// Keys and values of an array's tree are 64 bits each; the number of entries is a
	// multiple of three.
	nodeMaxEntries = (metaBlock - nodeHeader) / 16 / 3 * 3

	arrayXOR    = 595846735
	arrayHeader = 24
	hintBytes   = 4
	arrayMax    = (metaBlock - arrayHeader) / hintBytes
)

// AddHints makes a copy of a cache's metadata readable for cache_dump(8) that was taken
// before the cache was suspended for the first time: the kernel has not made its array
// of hints yet, and the program does not expect that. It appends an array in which
// every block is equally cold. Other copies stay as they are.
// Errors: ErrNoSuperblock.
func AddHints(file string) (err error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sb := make([]byte, metaBlock)
	if _, err := f.ReadAt(sb, 0); err != nil {
		return fmt.Errorf("%w: %w", ErrNoSuperblock, err)
	}
	le := binary.LittleEndian
	if le.Uint32(sb) != superblockChecksum(sb) {
		return fmt.Errorf("%w: wrong checksum", ErrNoSuperblock)
	}
	if le.Uint64(sb[sbHintRoot:]) != 0 {
		return nil
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	a := array{next: uint64(info.Size()+metaBlock-1) / metaBlock}
	start := int64(a.next) * metaBlock
	root := a.build(uint64(le.Uint32(sb[sbCacheBlocks:])))
	if _, err := f.WriteAt(a.out, start); err != nil {
		return err
	}
	le.PutUint64(sb[sbHintRoot:], root)
	le.PutUint32(sb, superblockChecksum(sb))
	_, err = f.WriteAt(sb, 0)
	return err
}

// array builds blocks that follow one another.
type array struct {
	out  []byte
	next uint64
}

// build makes an array of n zeroes and returns its root.
func (a *array) build(n uint64) uint64 {
	var level []uint64
	for at := uint64(0); at < n; at += arrayMax {
		level = append(level, a.values(min(n-at, arrayMax)))
	}
	// The keys of a leaf count blocks of the array; those of a node above it are the
	// first keys of its children.
	span, flags := uint64(1), uint32(nodeLeaf)
	for {
		var above []uint64
		for at := 0; at < max(len(level), 1); at += nodeMaxEntries {
			above = append(above, a.node(flags, uint64(at)*span, span, level[min(at, len(level)):min(at+nodeMaxEntries, len(level))]))
		}
		if len(above) == 1 {
			return above[0]
		}
		level, span, flags = above, span*nodeMaxEntries, nodeInternal
	}
}

// block appends one block; fill writes all but the checksum and the number.
func (a *array) block(number int, xor uint32, fill func(b []byte)) uint64 {
	b, le, at := make([]byte, metaBlock), binary.LittleEndian, a.next
	fill(b)
	le.PutUint64(b[number:], at)
	le.PutUint32(b, ^crc32.Checksum(b[4:], crc32.MakeTable(crc32.Castagnoli))^xor)
	a.out, a.next = append(a.out, b...), at+1
	return at
}

func (a *array) values(n uint64) uint64 {
	return a.block(16, arrayXOR, func(b []byte) {
		le := binary.LittleEndian
		le.PutUint32(b[4:], arrayMax)
		le.PutUint32(b[8:], uint32(n))
		le.PutUint32(b[12:], hintBytes)
	})
}

func (a *array) node(flags uint32, first, span uint64, values []uint64) uint64 {
	return a.block(8, nodeXOR, func(b []byte) {
		le := binary.LittleEndian
		le.PutUint32(b[4:], flags)
		le.PutUint32(b[16:], uint32(len(values)))
		le.PutUint32(b[20:], nodeMaxEntries)
		le.PutUint32(b[24:], 8)
		for i, v := range values {
			le.PutUint64(b[nodeHeader+8*i:], first+uint64(i)*span)
			le.PutUint64(b[nodeHeader+8*nodeMaxEntries+8*i:], v)
		}
	})
}
