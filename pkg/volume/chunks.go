package volume

import "math/bits"

// ChunkList is what a node has to send of a cache.
type ChunkList struct {
	// ChunkSectors is the size of a chunk in sectors of 512 bytes.
	ChunkSectors uint64
	// Blocks are the origin's that the cache holds, in units of a chunk, hottest first, and
	// Places where the cache has them. Nothing is there twice.
	Blocks []uint64
	Places []uint32
}

// Wanted says which chunks of a list are to be sent.
type Wanted struct {
	// From is the first, by its number in the list.
	From int
	// Skip has a bit for each that is to be left out; it may be shorter than the list.
	Skip Bits
	// Places are those of the list, if a chunk from another place is to be refused; else nil.
	Places []uint32
}

// Bits has one bit for each of a row of things, the first in the lowest bit of the first byte.
type Bits []byte

// NewBits has room for n things.
func NewBits(n uint64) Bits { return make(Bits, (n+7)/8) }

// Has reports whether a bit is set.
func (b Bits) Has(i uint64) bool { return i/8 < uint64(len(b)) && b[i/8]>>(i%8)&1 == 1 }

// Count is how many bits are set.
func (b Bits) Count() (n uint64) {
	for _, x := range b {
		n += uint64(bits.OnesCount8(x))
	}
	return n
}

// Set sets a bit that there is.
func (b Bits) Set(i uint64) { b[i/8] |= 1 << (i % 8) }
