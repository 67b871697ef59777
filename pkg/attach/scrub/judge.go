package scrub

import (
	"bytes"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// Piece is a part of a block of a cache.
type Piece struct {
	// Cache is the block of the cache, Origin the block of the origin that it is said to hold.
	Cache  uint64 `json:"cache"`
	Origin uint64 `json:"origin"`
	// Offset and Length are the part of the block, in bytes.
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// Judgement is what a piece is, as of a moment in which the device is suspended.
type Judgement string

const (
	// Unknown: something could not be read, or there was no time.
	Unknown Judgement = "Unknown"
	// Moved: the block of the cache holds another one of the origin, or none.
	Moved Judgement = "Moved"
	// Dirty: the origin does not have what the block of the cache holds.
	Dirty Judgement = "Dirty"
	// Same: both have the same.
	Same Judgement = "Same"
	// Discarded: they differ as by right after a discard.
	Discarded Judgement = "Discarded"
	// Corrupted: they differ.
	Corrupted Judgement = "Corrupted"
	// Renewed: what was Discarded or Corrupted was replaced by what the origin has.
	Renewed Judgement = "Renewed"
	// NotKept: it was replaced, and the SSD has something else all the same.
	NotKept Judgement = "NotKept"
)

// differs tells the judgements of pieces that are to be replaced.
func (j Judgement) differs() bool { return j == Discarded || j == Corrupted }

const (
	// compared is how finely differences are judged, in bytes: blocks of a filesystem.
	compared = 4096
	// few bytes of such a block differ if it was written, and lost a little. Of one that was
	// discarded the SSD has what its place held before.
	few = 64
)

// judgeMap judges a piece by the metadata; "" leaves it to its content.
func judgeMap(p Piece, b devmapper.CacheBlock) Judgement {
	switch {
	case !b.Mapped || b.Origin != p.Origin:
		return Moved
	case b.Dirty:
		return Dirty
	}
	return ""
}

// judgeContent judges a clean piece by what SSD and origin have, as far as the volume's order tells whether parts
// of it were discarded.
func judgeContent(ssd, origin []byte, o Order) Judgement {
	if bytes.Equal(ssd, origin) {
		return Same
	}
	for at := 0; at < len(origin); at += compared {
		end := min(at+compared, len(origin))
		n := different(ssd[at:end], origin[at:end])
		if n > 0 && (o.Raw || !zeroes(origin[at:end])) && (!o.Discards || n <= few) {
			return Corrupted
		}
	}
	return Discarded
}

// different counts the bytes that differ.
func different(a, b []byte) (n int) {
	if bytes.Equal(a, b) {
		return 0
	}
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

func zeroes(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }
