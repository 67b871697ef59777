package checker

import (
	"fmt"
	"slices"
)

// Mode is how writes pass through the cache.
type Mode string

// The modes; docs/reference/storageclass.md.
const (
	None         Mode = "none"
	Writethrough Mode = "writethrough"
	Writeback    Mode = "writeback"
	// WritebackUnsafe is writeback whose flushes prove nothing.
	WritebackUnsafe Mode = "writeback-unsafe"
)

// takesWrites reports whether the SSD alone may have an acknowledged write.
func (m Mode) takesWrites() bool { return m == Writeback || m == WritebackUnsafe }

// Loss is what a disaster may have taken: the zero Loss, nothing, or a set.
type Loss uint8

// The losses. docs/explanation/guarantees.md says which disaster is which.
const (
	// LossNode is an unclean stop of the node: what only its memory, or the write
	// cache of its SSD, had.
	LossNode Loss = 1 << iota
	// LossStorage is an unclean stop of the storage server: what only its memory, or
	// the write cache of its disks, had.
	LossStorage
	// LossCache is the cache given up with consent, or its SSD destroyed.
	LossCache

	lossKinds = 3
	// LossNothing is everything that must not cost a write.
	LossNothing Loss = 0
)

// block is the history of one block. Its functions are pure: they return what the
// history is then.
type block struct {
	// writes are those whose content may still be read, after some loss; ascending.
	// Write 0 is the blank block.
	writes []uint64
	// gone are the writes that a disaster has taken, as a read has shown; behind those of
	// them that the storage server may have all the same: in writeback the SSD may lose
	// what the kernel has copied to the server already.
	gone, behind []uint64
	// newest is the newest write that must be there when nothing is lost.
	newest uint64
	// floor is the oldest write that may be read, for each kind of loss.
	floor [lossKinds]uint64
	// failed says that a write newer than newest returned an error: until one is
	// acknowledged it may be there or not, and that may change.
	failed bool
	// split says that the storage server has lost power since newest: it may have an
	// older write, while the SSD shows newest for as long as the block is cached.
	// below is the oldest that the server may have. The next acknowledged write ends it.
	split bool
	below uint64
}

func newBlock() block { return block{writes: []uint64{0}} }

// issue notes a write that is about to be asked for.
func (b block) issue(seq uint64) block {
	b.writes = append(slices.Clone(b.writes), seq)
	return b
}

// ack notes that a write was acknowledged in a mode: with nothing between the pod and
// the storage server, or written to both, only the server can still lose it.
func (b block) ack(seq uint64, m Mode) block {
	b.newest, b.failed, b.split = seq, false, false
	if !m.takesWrites() {
		b = b.settle()
		b.floor[index(LossNode)], b.floor[index(LossCache)] = seq, seq
	}
	return b.forget()
}

// stop notes that the storage server may have lost power since the newest write was
// acknowledged. The kernel does not notice: a flush that is acknowledged afterwards
// proves nothing about that write.
func (b block) stop() block {
	b.below, b.split = b.oldest(LossStorage), true
	return b
}

// fail notes that a write returned an error.
func (b block) fail() block {
	b.failed = true
	return b
}

// flush notes that a flush was acknowledged which began after the newest write was
// acknowledged. In writeback it proves that the SSD has the write. It proves nothing
// about the storage server: the kernel copies blocks there without a flush, and may
// then give up the SSD's copy.
func (b block) flush(m Mode) block {
	if m == WritebackUnsafe {
		return b
	}
	kind := LossStorage
	if m == Writeback {
		kind = LossNode
	}
	b.floor[index(kind)] = b.sure()
	return b.forget()
}

// drain notes that the driver has said that the storage server has everything: at the
// end of unstage, and of a flush that was asked for. An uncached volume has no such
// moment.
func (b block) drain(m Mode) block {
	if m == None {
		return b
	}
	for i := range b.floor {
		b.floor[i] = b.sure()
	}
	return b.settle().forget()
}

// settle notes that the storage server has nothing but what is read.
func (b block) settle() block {
	b.gone, b.behind = slices.Concat(b.gone, b.behind), nil
	return b
}

// sure is the oldest write that may be read when nothing is lost.
func (b block) sure() uint64 {
	if b.split {
		return min(b.below, b.newest)
	}
	return b.newest
}

// forget drops what cannot be read any more.
func (b block) forget() block {
	lowest := min(b.sure(), slices.Min(b.floor[:]))
	b.writes = slices.DeleteFunc(slices.Clone(b.writes), func(seq uint64) bool { return seq < lowest })
	return b
}

func index(single Loss) int {
	i := 0
	for single > 1 {
		single >>= 1
		i++
	}
	return i
}

// oldest is the oldest write that may be read after a loss.
func (b block) oldest(l Loss) uint64 {
	out := b.sure()
	for i := range b.floor {
		if l&(1<<i) != 0 {
			out = min(out, b.floor[i])
		}
	}
	return out
}

// Verdict is what the model says of a block that was read.
type Verdict string

// The verdicts; the first three are allowed, the others never are.
const (
	// Acknowledged is the newest write that was acknowledged.
	Acknowledged Verdict = "acknowledged"
	// InFlight is a newer one that never was answered.
	InFlight Verdict = "in flight"
	// LostByContract is an older one, which the loss allows.
	LostByContract Verdict = "lost by contract"
	// Stale is a write older than the loss allows.
	Stale Verdict = "stale"
	// OutOfOrder is a write older than one that was acknowledged before another block of the
	// same copy was written.
	OutOfOrder Verdict = "out of order"
	// Resurrected is a write that an earlier disaster had taken.
	Resurrected Verdict = "resurrected"
	// Invented is a write that nobody has asked for.
	Invented Verdict = "invented"
	// Damaged is Torn, Foreign or Corrupt content.
	Damaged Verdict = "damaged"
	// Failed is a block that cannot be read.
	Failed Verdict = "unreadable"
)

// Violation reports whether the verdict breaks the contract.
func (v Verdict) Violation() bool {
	return v != Acknowledged && v != InFlight && v != LostByContract
}

// judge is the model: whether a block with this history may read like this after a
// loss.
func judge(b block, l Loss, c Content) Verdict {
	switch c.Kind {
	case Blank, Whole:
	case Unreadable:
		return Failed
	default:
		return Damaged
	}
	switch oldest := b.oldest(l); {
	case c.Seq == b.newest:
		return Acknowledged
	case slices.Contains(b.gone, c.Seq):
		return Resurrected
	case slices.Contains(b.behind, c.Seq):
		if l&LossCache != 0 {
			return LostByContract
		}
		return Resurrected
	case c.Seq < oldest:
		return Stale
	case !slices.Contains(b.writes, c.Seq):
		return Invented
	case c.Seq > b.newest:
		return InFlight
	}
	return LostByContract
}

// observe notes an allowed read after a disaster: what was read stays, and what is
// newer never comes back. It proves nothing about where it is: another loss of the
// same kind may take it, unless it was safe from that before.
func (b block) observe(l Loss, m Mode, seq uint64) block {
	if l&LossStorage != 0 {
		b.below, b.split = b.oldest(l), true
		for i := range b.floor {
			b.floor[i] = min(b.floor[i], b.below)
		}
	}
	if b.failed && seq >= b.newest {
		return b
	}
	newer := func(w uint64) bool { return w > seq }
	taken := slices.DeleteFunc(slices.Clone(b.writes), func(w uint64) bool { return !newer(w) })
	b.writes = append(slices.DeleteFunc(slices.Clone(b.writes), func(w uint64) bool { return w >= seq }), seq)
	b.behind = slices.DeleteFunc(slices.Concat(b.behind, taken), func(w uint64) bool { return w == seq })
	if !m.takesWrites() || l&LossCache != 0 {
		b = b.settle()
	}
	b.newest, b.failed = seq, false
	for i := range b.floor {
		b.floor[i] = min(b.floor[i], seq)
	}
	return b.forget()
}

// Violation is one block that breaks the contract.
type Violation struct {
	Block   int64
	Verdict Verdict
	Read    Content
	// Newest is the newest acknowledged write, Oldest the oldest allowed one.
	Newest, Oldest uint64
}

// String describes it on one line.
func (v Violation) String() string {
	return fmt.Sprintf("block %d is %s: read %q, write %d was acknowledged, %d is the oldest allowed", v.Block, v.Verdict, v.Read, v.Newest, v.Oldest)
}
