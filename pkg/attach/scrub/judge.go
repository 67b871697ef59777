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
	// Discarded: they differ where the origin has zeroes only.
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

// compared is how finely differences are judged, in bytes: blocks of a filesystem.
const compared = 4096

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

// judgeContent judges a clean piece by what SSD and origin have.
func judgeContent(ssd, origin []byte) Judgement {
	if bytes.Equal(ssd, origin) {
		return Same
	}
	for at := 0; at < len(origin); at += compared {
		end := min(at+compared, len(origin))
		if !bytes.Equal(ssd[at:end], origin[at:end]) && !zeroes(origin[at:end]) {
			return Corrupted
		}
	}
	return Discarded
}

func zeroes(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }
