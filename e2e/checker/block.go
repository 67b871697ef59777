package checker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"unsafe"
)

const (
	// BlockSize is the unit of writing and judging, in bytes.
	BlockSize = 4096
	// sectorSize is the unit in which a block could be torn: each says by itself
	// what it belongs to.
	sectorSize = 512
	sectors    = BlockSize / sectorSize

	// A sector: magic, checksum of the rest, write, block, sector, volume, filler.
	magic     = 0x6e66686b
	crcAt     = 4
	seqAt     = 8
	blockAt   = 16
	sectorAt  = 24
	nameAt    = 25
	nameBytes = 64 // length, then the name
	fillerAt  = nameAt + nameBytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode fills buf, which has BlockSize bytes, with write seq of a block of a
// volume. seq is positive; the name has at most 63 bytes.
func Encode(buf []byte, volume string, block int64, seq uint64) {
	for i := range sectors {
		encodeSector(buf[i*sectorSize:(i+1)*sectorSize], volume, block, seq, i)
	}
}

func encodeSector(s []byte, volume string, block int64, seq uint64, index int) {
	clear(s)
	binary.LittleEndian.PutUint32(s, magic)
	binary.LittleEndian.PutUint64(s[seqAt:], seq)
	binary.LittleEndian.PutUint64(s[blockAt:], uint64(block))
	s[sectorAt] = byte(index)
	s[nameAt] = byte(copy(s[nameAt+1:fillerAt], volume))
	// The filler differs in every sector of every write, so that no part of one can
	// pass for a part of another.
	x := seq*0x9e3779b97f4a7c15 ^ uint64(block)<<8 ^ uint64(index)
	for i := fillerAt; i < sectorSize; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		s[i] = byte(x)
	}
	binary.LittleEndian.PutUint32(s[crcAt:], crc32.Checksum(s[seqAt:], castagnoli))
}

// Kind says what a block turned out to be.
type Kind string

// The kinds of content.
const (
	// Blank is a block of zeros: nobody has written it.
	Blank Kind = "blank"
	// Whole is one write of this block, complete.
	Whole Kind = "whole"
	// Torn is parts of several writes of this block, or of one and zeros.
	Torn Kind = "torn"
	// Foreign is, or has parts of, another block or another volume.
	Foreign Kind = "foreign"
	// Corrupt is something that nobody has written.
	Corrupt Kind = "corrupt"
	// Unreadable is a block whose read failed.
	Unreadable Kind = "unreadable"
)

// Content is what was read of one block.
type Content struct {
	Kind Kind
	// Seq is the write, if the kind is Whole.
	Seq uint64
	// Detail says more of what should not be there.
	Detail string
}

// Decode tells what a block of a volume holds.
func Decode(buf []byte, volume string, block int64) Content {
	seqs := map[uint64]int{}
	for i := range sectors {
		s := buf[i*sectorSize : (i+1)*sectorSize]
		if bytes.Count(s, []byte{0}) == sectorSize {
			seqs[0]++
			continue
		}
		seq, problem := decodeSector(s, volume, block, i)
		if problem.Kind != "" {
			return problem
		}
		seqs[seq]++
	}
	if len(seqs) > 1 {
		return Content{Kind: Torn, Detail: fmt.Sprintf("sectors of writes %v", seqs)}
	}
	for seq := range seqs {
		if seq > 0 {
			return Content{Kind: Whole, Seq: seq}
		}
	}
	return Content{Kind: Blank}
}

func decodeSector(s []byte, volume string, block int64, index int) (uint64, Content) {
	if binary.LittleEndian.Uint32(s) != magic || binary.LittleEndian.Uint32(s[crcAt:]) != crc32.Checksum(s[seqAt:], castagnoli) {
		return 0, Content{Kind: Corrupt, Detail: fmt.Sprintf("sector %d", index)}
	}
	n := min(int(s[nameAt]), nameBytes-1)
	name := string(s[nameAt+1 : nameAt+1+n])
	seq, at := binary.LittleEndian.Uint64(s[seqAt:]), int64(binary.LittleEndian.Uint64(s[blockAt:]))
	if name != volume || at != block || int(s[sectorAt]) != index {
		return 0, Content{Kind: Foreign, Detail: fmt.Sprintf("sector %d is sector %d of block %d of volume %s, write %d", index, s[sectorAt], at, name, seq)}
	}
	return seq, Content{}
}

// String is the content on one line, and parseContent its inverse.
func (c Content) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %d %s", c.Kind, c.Seq, c.Detail))
}

func parseContent(s string) (Content, error) {
	f := strings.SplitN(s, " ", 3)
	if len(f) < 2 {
		return Content{}, fmt.Errorf("content %q", s)
	}
	seq, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		return Content{}, fmt.Errorf("content %q: %w", s, err)
	}
	c := Content{Kind: Kind(f[0]), Seq: seq}
	if len(f) == 3 {
		c.Detail = f[2]
	}
	return c, nil
}

// aligned is a buffer that O_DIRECT accepts.
func aligned(n int) []byte {
	b := make([]byte, n+BlockSize)
	skip := BlockSize - int(uintptr(unsafe.Pointer(&b[0]))%BlockSize)
	return b[skip : skip+n : skip+n]
}
