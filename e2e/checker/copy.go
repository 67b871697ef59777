package checker

import (
	"fmt"
	"maps"
	"slices"
)

// Copy judges a copy of a volume, which is made at some moment after BeginCopy while the volume
// is written to: it is crash-consistent if it has what a storage that stops at one moment has.
type Copy struct {
	h *History
	// clock counts what has happened since: the writes that were issued, with the time of each,
	// and those that were acknowledged.
	clock  uint64
	issued map[uint64]uint64
	acked  map[uint64]acknowledgement
	// floor is the oldest write that each block may have, and known are those of before that
	// it may have besides.
	floor []uint64
	known [][]uint64
}

type acknowledgement struct {
	block int64
	when  uint64
}

// BeginCopy notes that a copy was asked for. Done has to follow.
func (h *History) BeginCopy() *Copy {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &Copy{h: h, issued: map[uint64]uint64{}, acked: map[uint64]acknowledgement{}}
	for _, b := range h.blocks {
		c.floor, c.known = append(c.floor, b.sure()), append(c.known, b.writes)
	}
	h.copies = append(h.copies, c)
	return c
}

// Done ends what BeginCopy began.
func (c *Copy) Done() {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	c.h.copies = slices.DeleteFunc(c.h.copies, func(o *Copy) bool { return o == c })
}

func (c *Copy) issue(seq uint64) {
	c.clock++
	c.issued[seq] = c.clock
}

func (c *Copy) ack(seq uint64, block int64) {
	c.clock++
	c.acked[seq] = acknowledgement{block: block, when: c.clock}
}

// took notes what a disaster has left: what was newer a copy may have, and need not.
func (c *Copy) took(read []Content) {
	for at, b := range read {
		c.floor[at] = min(c.floor[at], b.Seq)
	}
	maps.DeleteFunc(c.acked, func(w uint64, a acknowledgement) bool { return w > read[a.block].Seq })
}

// Judge decides about every block of the copy as it was read: it has every write that was
// acknowledged when it was asked for, and none without those that were acknowledged before that
// was issued.
func (c *Copy) Judge(read []Content) (Report, error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	r := Report{Verdicts: map[Verdict]int{}}
	if len(read) != len(c.floor) {
		return r, fmt.Errorf("%d blocks were read of %d", len(read), len(c.floor))
	}
	newest := uint64(0) // when the last write was issued that the copy has
	for _, b := range read {
		newest = max(newest, c.issued[b.Seq])
	}
	missing := make([]uint64, len(read)) // the newest write that each block lacks
	for w, a := range c.acked {
		if a.when < newest && w > read[a.block].Seq {
			missing[a.block] = max(missing[a.block], w)
		}
	}
	for i, b := range read {
		v := c.judge(i, b, missing[i])
		r.Verdicts[v]++
		if v.Violation() {
			r.Violations = append(r.Violations, Violation{Block: int64(i), Verdict: v, Read: b, Newest: max(missing[i], c.floor[i]), Oldest: c.floor[i]})
		}
	}
	return r, nil
}

func (c *Copy) judge(at int, b Content, missing uint64) Verdict {
	_, since := c.issued[b.Seq]
	switch {
	case b.Kind == Unreadable:
		return Failed
	case b.Kind != Blank && b.Kind != Whole:
		return Damaged
	case b.Seq < c.floor[at]:
		return Stale
	case missing != 0:
		return OutOfOrder
	case !since && !slices.Contains(c.known[at], b.Seq):
		return Invented
	case since:
		return InFlight
	}
	return Acknowledged
}
