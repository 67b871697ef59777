package checker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// History is what is known outside about one volume. It may be used from several
// goroutines.
type History struct {
	volume string

	mu     sync.Mutex
	mode   Mode
	blocks []block
	last   uint64
	// stopping is true while the storage server may lose power at any moment.
	stopping bool
	where    map[uint64]int64 // the block of each write that was not answered
	copies   []*Copy          // that are under way
}

// NewHistory begins with a volume that has never been written to.
func NewHistory(volume string, blocks int64, m Mode) *History {
	h := &History{volume: volume, mode: m, blocks: make([]block, blocks), where: map[uint64]int64{}}
	for i := range h.blocks {
		h.blocks[i] = newBlock()
	}
	return h
}

// Volume is the name in the blocks.
func (h *History) Volume() string { return h.volume }

// Blocks is the number of blocks that belong to the checker.
func (h *History) Blocks() int64 { return int64(len(h.blocks)) }

// SetMode notes that the volume is in another mode from now on. What was
// acknowledged before keeps what it was promised.
func (h *History) SetMode(m Mode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mode = m
}

// Issue notes a write and returns its number. It comes before the write is asked for.
func (h *History) Issue(at int64) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	h.where[h.last] = at
	for _, c := range h.copies {
		c.issue(h.last)
	}
	h.blocks[at] = h.blocks[at].issue(h.last)
	return h.last
}

// Ack notes that a write was acknowledged. Writes of one block are acknowledged in
// their order.
func (h *History) Ack(seq uint64) error {
	return h.answer(seq, func(at int64, b block) block {
		if b = b.ack(seq, h.mode); h.stopping {
			b = b.stop()
		}
		for _, c := range h.copies {
			c.ack(seq, at)
		}
		return b
	})
}

// StorageStops notes that the storage server is about to lose power under load, and
// StorageIsBack that it has. What is acknowledged between the two may be of before.
func (h *History) StorageStops() {
	h.mu.Lock()
	h.stopping = true
	h.mu.Unlock()
	h.each(block.stop)
}

// StorageIsBack is the end of what StorageStops began.
func (h *History) StorageIsBack() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = false
}

// Fail notes that a write returned an error while its user lives on.
func (h *History) Fail(seq uint64) error {
	return h.answer(seq, func(_ int64, b block) block { return b.fail() })
}

func (h *History) answer(seq uint64, f func(at int64, b block) block) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.where[seq]
	if !ok {
		return fmt.Errorf("answer to write %d, which is not under way", seq)
	}
	delete(h.where, seq)
	h.blocks[at] = f(at, h.blocks[at])
	return nil
}

// Flushed notes that a flush was acknowledged which began when every write that is
// acknowledged now was.
func (h *History) Flushed() { h.each(func(b block) block { return b.flush(h.mode) }) }

// Drained notes that the driver said that the storage server has everything.
func (h *History) Drained() { h.each(func(b block) block { return b.drain(h.mode) }) }

func (h *History) each(f func(block) block) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.blocks {
		h.blocks[i] = f(h.blocks[i])
	}
}

// Report is the judgement of a whole volume.
type Report struct {
	// Verdicts counts the blocks of each.
	Verdicts map[Verdict]int
	// Violations are those that break the contract.
	Violations []Violation
}

// ErrViolation is wrapped by Report.Err.
var ErrViolation = errors.New("the contract is broken")

// Err is nil if everything read is allowed.
func (r Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	const shown = 5
	var lines []string
	for _, v := range r.Violations[:min(shown, len(r.Violations))] {
		lines = append(lines, v.String())
	}
	return fmt.Errorf("%w in %d blocks: %s", ErrViolation, len(r.Violations), strings.Join(lines, "; "))
}

// String counts the verdicts on one line.
func (r Report) String() string {
	var parts []string
	for _, v := range slices.Sorted(maps.Keys(r.Verdicts)) {
		parts = append(parts, fmt.Sprintf("%s %d", v, r.Verdicts[v]))
	}
	return strings.Join(parts, ", ")
}

// Judge decides about every block as read after a loss. What is allowed is what
// counts from then on; nothing may be under way meanwhile, and what was is given up.
func (h *History) Judge(l Loss, read []Content) (Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := Report{Verdicts: map[Verdict]int{}}
	if len(read) != len(h.blocks) {
		return r, fmt.Errorf("%d blocks were read of %d", len(read), len(h.blocks))
	}
	clear(h.where)
	for i, c := range read {
		b := h.blocks[i]
		v := judge(b, l, c)
		r.Verdicts[v]++
		if v.Violation() {
			r.Violations = append(r.Violations, Violation{Block: int64(i), Verdict: v, Read: c, Newest: b.newest, Oldest: b.oldest(l)})
			continue
		}
		h.blocks[i] = b.observe(l, h.mode, c.Seq)
	}
	for _, c := range h.copies {
		c.took(read)
	}
	return r, nil
}
