package devmapper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"unsafe"
)

// ErrNoSuperblock: the device does not begin with the superblock of a cache.
var ErrNoSuperblock = errors.New("no dm-cache superblock")

// Superblock is what the first block of a cache's metadata says.
type Superblock struct {
	// Blank is true if the block is all zeroes, which the kernel formats.
	Blank bool
	// FormatVersion is 1, or 2 with the feature metadata2.
	FormatVersion uint32
	// CleanShutdown is set by the kernel at suspend and cleared when a table opens
	// metadata that no live table has open, and by each commit: false means that every
	// block counts as dirty at the next load. After a swap of live tables it stays set
	// until the next commit, so that it alone proves no clean stop.
	CleanShutdown bool
	// NeedsCheck: the kernel will not load these metadata writable.
	NeedsCheck bool
	// PolicyName, the major part of PolicyVersion and HintSize must be what the
	// kernel has, or hints are ignored.
	PolicyName    string
	PolicyVersion Version
	HintSize      uint32

	// DataBlockSectors is the cache block size.
	DataBlockSectors uint32
	// MetadataBlockSectors is the unit of the metadata device.
	MetadataBlockSectors uint32
	// CacheBlocks is the length of the cache device in blocks.
	CacheBlocks uint32

	ReadHits, ReadMisses, WriteHits, WriteMisses uint32
}

// Layout of struct cache_disk_superblock, drivers/md/dm-cache-metadata.c. All
// numbers are little endian; the checksum covers the block behind it.
const (
	superblockBytes = 4096
	superblockMagic = 0o6142003
	superblockXOR   = 9031977

	sbChecksum      = 0
	sbFlags         = 4
	sbBlockNumber   = 8
	sbMagic         = 32
	sbVersion       = 40
	sbPolicyName    = 44
	sbPolicyNameEnd = 60
	sbHintSize      = 60
	sbDataBlock     = 232
	sbMetadataBlock = 236
	sbCacheBlocks   = 240
	sbReadHits      = 256
	sbReadMisses    = 260
	sbWriteHits     = 264
	sbWriteMisses   = 268
	sbPolicyVersion = 272

	sbFlagCleanShutdown = 1 << 0
	sbFlagNeedsCheck    = 1 << 1
)

// ReadCacheSuperblock reads and checks the superblock. Its buffer is aligned, so
// that r may be a file opened with O_DIRECT.
//
// Errors: ErrNoSuperblock (with Blank set or not) for anything but a whole
// superblock with the right checksum; the error of r.
func ReadCacheSuperblock(r io.ReaderAt) (Superblock, error) {
	block := alignedBlock()
	if n, err := r.ReadAt(block, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return Superblock{}, fmt.Errorf("%w: device has %d bytes, a superblock %d", ErrNoSuperblock, n, superblockBytes)
		}
		return Superblock{}, fmt.Errorf("read dm-cache superblock: %w", err)
	}
	return parseSuperblock(block)
}

// MarkUnclean takes the clean-shutdown flag out of a superblock, so that the kernel counts
// every block as dirty when it loads the map. Metadata without the flag are left as they
// are. The caller makes it durable. Buffers are aligned as for ReadCacheSuperblock.
//
// Errors: those of ReadCacheSuperblock.
func MarkUnclean(rw interface {
	io.ReaderAt
	io.WriterAt
}) error {
	block := alignedBlock()
	if _, err := rw.ReadAt(block, 0); err != nil {
		return fmt.Errorf("read dm-cache superblock: %w", err)
	}
	sb, err := parseSuperblock(block)
	if err != nil || !sb.CleanShutdown {
		return err
	}
	le := binary.LittleEndian
	le.PutUint32(block[sbFlags:], le.Uint32(block[sbFlags:])&^sbFlagCleanShutdown)
	le.PutUint32(block[sbChecksum:], superblockChecksum(block))
	if _, err := rw.WriteAt(block, 0); err != nil {
		return fmt.Errorf("write dm-cache superblock: %w", err)
	}
	return nil
}

// alignedBlock returns a buffer that O_DIRECT accepts for any block size up to
// that of the superblock.
func alignedBlock() []byte {
	buf := make([]byte, 2*superblockBytes)
	skip := superblockBytes - int(uintptr(unsafe.Pointer(&buf[0]))%superblockBytes)
	return buf[skip : skip+superblockBytes]
}

func parseSuperblock(b []byte) (Superblock, error) {
	if len(b) != superblockBytes {
		return Superblock{}, fmt.Errorf("%w: %d bytes", ErrNoSuperblock, len(b))
	}
	if bytes.Count(b, []byte{0}) == len(b) {
		return Superblock{Blank: true}, fmt.Errorf("%w: blank", ErrNoSuperblock)
	}
	le := binary.LittleEndian
	if magic := le.Uint64(b[sbMagic:]); magic != superblockMagic {
		return Superblock{}, fmt.Errorf("%w: magic %#x", ErrNoSuperblock, magic)
	}
	if n := le.Uint64(b[sbBlockNumber:]); n != 0 {
		return Superblock{}, fmt.Errorf("%w: it is the copy of block %d", ErrNoSuperblock, n)
	}
	if got, want := le.Uint32(b[sbChecksum:]), superblockChecksum(b); got != want {
		return Superblock{}, fmt.Errorf("%w: checksum %#x, computed %#x", ErrNoSuperblock, got, want)
	}
	version := le.Uint32(b[sbVersion:])
	if version < 1 || version > 2 {
		return Superblock{}, fmt.Errorf("%w: format version %d, known are 1 and 2", ErrNoSuperblock, version)
	}
	flags := le.Uint32(b[sbFlags:])
	name, _, _ := bytes.Cut(b[sbPolicyName:sbPolicyNameEnd], []byte{0})
	return Superblock{
		FormatVersion: version,
		CleanShutdown: flags&sbFlagCleanShutdown != 0,
		NeedsCheck:    flags&sbFlagNeedsCheck != 0,
		PolicyName:    string(name),
		PolicyVersion: Version{
			Major: int(le.Uint32(b[sbPolicyVersion:])),
			Minor: int(le.Uint32(b[sbPolicyVersion+4:])),
			Patch: int(le.Uint32(b[sbPolicyVersion+8:])),
		},
		HintSize:             le.Uint32(b[sbHintSize:]),
		DataBlockSectors:     le.Uint32(b[sbDataBlock:]),
		MetadataBlockSectors: le.Uint32(b[sbMetadataBlock:]),
		CacheBlocks:          le.Uint32(b[sbCacheBlocks:]),
		ReadHits:             le.Uint32(b[sbReadHits:]),
		ReadMisses:           le.Uint32(b[sbReadMisses:]),
		WriteHits:            le.Uint32(b[sbWriteHits:]),
		WriteMisses:          le.Uint32(b[sbWriteMisses:]),
	}, nil
}

// superblockChecksum is dm_bm_checksum: CRC-32C without the final inversion,
// mixed with a constant of the metadata's kind.
func superblockChecksum(b []byte) uint32 {
	return ^crc32.Checksum(b[sbFlags:], crc32.MakeTable(crc32.Castagnoli)) ^ superblockXOR
}
