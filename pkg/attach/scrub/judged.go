package scrub

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// judged takes in what a guard found of the first suspects. It returns the offsets in the volume of
// those that are corrupted, in bytes, and whether one was dirty: then the metadata say more of that
// than the map that the scrub goes by. What a cache in writeback mode has is not replaced: it may be the right copy.
func (r *run) judged(batch []suspect, js []Judgement, c Cache) (corrupted []int64, dirty bool) {
	for i, j := range js {
		s := batch[i]
		switch j {
		case Corrupted:
			corrupted = append(corrupted, int64(s.Origin*c.ChunkSectors)*devmapper.SectorSize+s.Offset)
			r.corrupted[s.Origin] = true
			if r.found.Untouched = !c.Writethrough; c.Writethrough {
				r.renew = append(r.renew, s)
			}
		case Discarded:
			if c.Writethrough {
				r.renew = append(r.renew, s)
			} else {
				r.found.Discarded++
			}
		case Dirty:
			dirty = true
		case Unknown:
			r.unknown(s)
		case Moved, Same, Renewed, NotKept:
		}
	}
	r.found.Corrupted = int64(len(r.corrupted))
	return corrupted, dirty
}

// unknown has a suspect judged another time, unless that was tried often enough.
func (r *run) unknown(s suspect) {
	if s.seen++; s.seen >= looks {
		r.found.Unjudged++
		return
	}
	r.suspects = append(r.suspects, s)
}

// renewed takes in what a guard has replaced, and reports whether the SSD has kept it.
func (r *run) renewed(batch []suspect, js []Judgement) (kept bool) {
	kept = true
	for i, j := range js {
		switch j {
		case Renewed:
			r.found.Renewed++
			if !r.corrupted[batch[i].Origin] {
				r.found.Discarded++
			}
		case NotKept:
			kept = false
		case Unknown, Corrupted, Discarded:
			if s := batch[i]; s.seen < looks {
				s.seen++
				r.renew = append(r.renew, s)
			} else {
				r.found.Unjudged++
			}
		case Moved, Dirty, Same:
		}
	}
	return kept
}

// finding says what is corrupted, and what is done about it.
func finding(writethrough bool, where string) string {
	if writethrough {
		return fmt.Sprintf("the SSD returns something else than was written to it, at byte %s of the volume; the cache's copy is replaced by what the storage server has", where)
	}
	return fmt.Sprintf("SSD and storage server have something else of what was flushed, at byte %s of the volume: one of them has lost it; nothing is replaced, because the SSD may have the only right copy. "+
		"Check and save the application's data; then kubectl nearflash drop gives the cache up, and the pod reads what the storage server has", where)
}

// where says at which offsets of a volume something was found.
func where(offsets []int64) string {
	const named = 4
	slices.Sort(offsets)
	var words []string
	for _, at := range offsets[:min(named, len(offsets))] {
		words = append(words, fmt.Sprint(at))
	}
	if more := len(offsets) - named; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

func pieces(batch []suspect) []Piece {
	out := make([]Piece, len(batch))
	for i, s := range batch {
		out[i] = s.Piece
	}
	return out
}
