package checker

import (
	"errors"
	"testing"
)

// told is a history of one block as a test tells it.
type told struct {
	b block
	m Mode
}

func history() *told { return &told{b: newBlock()} }

func (h *told) issue(seq uint64) *told           { h.b = h.b.issue(seq); return h }
func (h *told) ack(seq uint64, m Mode) *told     { h.b, h.m = h.b.ack(seq, m), m; return h }
func (h *told) written(seq uint64, m Mode) *told { return h.issue(seq).ack(seq, m) }
func (h *told) failed(seq uint64) *told          { h.issue(seq); h.b = h.b.fail(); return h }
func (h *told) flushed(m Mode) *told             { h.b = h.b.flush(m); return h }
func (h *told) stopped() *told                   { h.b = h.b.stop(); return h }
func (h *told) drained(m Mode) *told             { h.b = h.b.drain(m); return h }
func (h *told) seen(l Loss, seq uint64) *told    { h.b = h.b.observe(l, h.m, seq); return h }

func whole(seq uint64) Content {
	if seq == 0 {
		return Content{Kind: Blank}
	}
	return Content{Kind: Whole, Seq: seq}
}

// TestModel is the table of docs/explanation/guarantees.md.
func TestModel(t *testing.T) {
	const wt, wb, ub = Writethrough, Writeback, WritebackUnsafe
	tests := map[string]struct {
		history *told
		loss    Loss
		want    map[uint64]Verdict
	}{
		"never written": {history(), LossNode | LossStorage | LossCache, map[uint64]Verdict{0: Acknowledged, 1: Invented}},
		"an unanswered write may be there or not": {history().written(1, wt).issue(2), LossNothing,
			map[uint64]Verdict{0: Stale, 1: Acknowledged, 2: InFlight, 3: Invented}},
		"acknowledged survives everything that is no loss": {history().written(1, wb).written(2, wb), LossNothing,
			map[uint64]Verdict{0: Stale, 1: Stale, 2: Acknowledged}},
		"writethrough: acknowledged survives the node": {history().written(1, wt).written(2, wt), LossNode,
			map[uint64]Verdict{0: Stale, 1: Stale, 2: Acknowledged}},
		"writethrough: acknowledged survives the SSD": {history().written(1, wt).written(2, wt), LossNode | LossCache,
			map[uint64]Verdict{1: Stale, 2: Acknowledged}},
		"writethrough: only a flush survives the server's loss of power": {history().written(1, wt).flushed(wt).written(2, wt).written(3, wt), LossStorage,
			map[uint64]Verdict{0: Stale, 1: LostByContract, 2: LostByContract, 3: Acknowledged}},
		"none is like writethrough": {history().written(1, None).flushed(None).written(2, None), LossNode,
			map[uint64]Verdict{1: Stale, 2: Acknowledged}},
		"none: no driver flushes at the end": {history().written(1, None).drained(None), LossStorage,
			map[uint64]Verdict{0: LostByContract, 1: Acknowledged}},
		"writeback: only a flush survives the node": {history().written(1, wb).flushed(wb).written(2, wb).written(3, wb).issue(4), LossNode,
			map[uint64]Verdict{0: Stale, 1: LostByContract, 2: LostByContract, 3: Acknowledged, 4: InFlight}},
		"unsafe: a flush survives nothing": {history().written(1, ub).drained(ub).written(2, ub).flushed(ub).written(3, ub).flushed(ub), LossNode,
			map[uint64]Verdict{0: Stale, 1: LostByContract, 2: LostByContract, 3: Acknowledged}},
		"unsafe: nothing is lost with nothing": {history().written(1, ub).written(2, ub), LossNothing,
			map[uint64]Verdict{0: Stale, 1: Stale, 2: Acknowledged}},
		"unsafe: a flush of writeback afterwards counts": {history().written(1, ub).flushed(ub).written(2, wb).flushed(wb), LossNode,
			map[uint64]Verdict{0: Stale, 1: Stale, 2: Acknowledged}},
		"writeback: a flush does not survive the SSD": {history().written(1, wb).drained(wb).written(2, wb).flushed(wb), LossCache,
			map[uint64]Verdict{0: Stale, 1: LostByContract, 2: Acknowledged}},
		"writeback: drained survives everything": {history().written(1, wb).written(2, wb).drained(wb), LossNode | LossStorage | LossCache,
			map[uint64]Verdict{0: Stale, 1: Stale, 2: Acknowledged}},
		"writeback: a flush does not reach the server's disks": {history().written(1, wb).flushed(wb), LossStorage,
			map[uint64]Verdict{0: LostByContract, 1: Acknowledged}},
		"what was lost does not come back": {history().written(1, wb).flushed(wb).written(2, wb).written(3, wb).seen(LossNode, 2), LossNode,
			map[uint64]Verdict{1: LostByContract, 2: Acknowledged, 3: Resurrected}},
		"unless the SSD alone had lost it": {history().written(1, wb).flushed(wb).written(2, wb).written(3, wb).seen(LossNode, 2), LossCache,
			map[uint64]Verdict{0: LostByContract, 1: LostByContract, 2: Acknowledged, 3: LostByContract}},
		"until the server has everything": {history().written(1, wb).flushed(wb).written(2, wb).written(3, wb).seen(LossNode, 2).drained(wb), LossCache,
			map[uint64]Verdict{1: Stale, 2: Acknowledged, 3: Resurrected}},
		"what was in flight and not there does not come back": {history().written(1, wt).issue(2).seen(LossNode, 1), LossNode,
			map[uint64]Verdict{1: Acknowledged, 2: Resurrected}},
		"what was in flight and there stays": {history().written(1, wt).issue(2).seen(LossNode, 2), LossNothing,
			map[uint64]Verdict{1: Stale, 2: Acknowledged}},
		"a write after a loss counts from there": {history().written(1, wb).flushed(wb).written(2, wb).seen(LossNode, 1).written(3, wb), LossNothing,
			map[uint64]Verdict{1: Stale, 2: Resurrected, 3: Acknowledged}},
		"an error leaves both possible": {history().written(1, wt).failed(2).seen(LossNothing, 2), LossNothing,
			map[uint64]Verdict{1: Acknowledged, 2: InFlight}},
		"until the next acknowledged write": {history().written(1, wt).failed(2).seen(LossNothing, 1).written(3, wt), LossNode,
			map[uint64]Verdict{1: Stale, 2: Stale, 3: Acknowledged}},
		"the server has lost what the SSD still shows": {history().written(1, wt).flushed(wt).written(2, wt).seen(LossStorage, 2).drained(wt), LossNothing,
			map[uint64]Verdict{0: Stale, 1: LostByContract, 2: Acknowledged}},
		"until the next write there": {history().written(1, wt).flushed(wt).written(2, wt).seen(LossStorage, 2).written(3, wt), LossNothing,
			map[uint64]Verdict{1: Stale, 2: Stale, 3: Acknowledged}},
		"a flush after the server's loss of power": {history().written(1, wt).flushed(wt).written(2, wt).stopped().flushed(wt), LossStorage,
			map[uint64]Verdict{0: Stale, 1: LostByContract, 2: Acknowledged}},
		"a write and a flush after it": {history().written(1, wt).flushed(wt).written(2, wt).stopped().written(3, wt).flushed(wt), LossStorage,
			map[uint64]Verdict{1: Stale, 2: Stale, 3: Acknowledged}},
		"the end of unstage after it": {history().written(1, wb).drained(wb).written(2, wb).stopped().drained(wb), LossStorage,
			map[uint64]Verdict{0: Stale, 1: LostByContract, 2: Acknowledged}},
		"flushed before it": {history().written(1, wt).flushed(wt).stopped().flushed(wt), LossStorage,
			map[uint64]Verdict{0: Stale, 1: Acknowledged}},
		"writeback that was writethrough": {history().written(1, wt).written(2, wb), LossNode | LossCache,
			map[uint64]Verdict{0: Stale, 1: LostByContract, 2: Acknowledged}},
		"writethrough that was writeback, drained between": {history().written(1, wb).drained(wb).written(2, wt), LossCache,
			map[uint64]Verdict{1: Stale, 2: Acknowledged}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for seq, want := range tc.want {
				if got := judge(tc.history.b, tc.loss, whole(seq)); got != want {
					t.Errorf("write %d is %s, want %s; %+v", seq, got, want, tc.history.b)
				}
			}
			for kind, want := range map[Kind]Verdict{Torn: Damaged, Foreign: Damaged, Corrupt: Damaged, Unreadable: Failed} {
				if got := judge(tc.history.b, tc.loss, Content{Kind: kind}); got != want || !got.Violation() {
					t.Errorf("%s content is %s", kind, got)
				}
			}
		})
	}
}

// TestPure: a history is not changed by what follows from it.
func TestPure(t *testing.T) {
	before := history().written(1, Writeback).issue(2).b
	for _, f := range []func(block) block{
		func(b block) block { return b.issue(9) },
		func(b block) block { return b.ack(2, Writeback) },
		func(b block) block { return b.flush(Writeback).drain(Writeback) },
		func(b block) block { return b.observe(LossStorage, Writeback, 1).issue(10) },
	} {
		f(before)
		for seq, want := range map[uint64]Verdict{0: LostByContract, 1: Acknowledged, 2: InFlight, 9: Invented} {
			if got := judge(before, LossNode, whole(seq)); got != want {
				t.Errorf("write %d is %s, want %s", seq, got, want)
			}
		}
	}
}

// TestStorageStops: of what is acknowledged while the storage server may lose power, a
// later flush proves nothing; of what comes after it, it does.
func TestStorageStops(t *testing.T) {
	h := NewHistory(testVolume, 3, Writethrough)
	write := func(at int64) {
		t.Helper()
		if err := h.Ack(h.Issue(at)); err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	h.StorageStops()
	write(1)
	h.StorageIsBack()
	write(2)
	h.Flushed()
	r, err := h.Judge(LossStorage, []Content{whole(0), whole(0), whole(0)})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.String(); got != "lost by contract 2, stale 1" || len(r.Violations) != 1 || r.Violations[0].Block != 2 {
		t.Errorf("report %q, violations %v", got, r.Violations)
	}
}

func TestJudgeReports(t *testing.T) {
	h := NewHistory(testVolume, 3, Writeback)
	for at := range int64(3) {
		if err := h.Ack(h.Issue(at)); err != nil {
			t.Fatal(err)
		}
	}
	h.Flushed()
	if err := h.Ack(h.Issue(2)); err != nil {
		t.Fatal(err)
	}
	r, err := h.Judge(LossNode, []Content{whole(1), whole(0), whole(3)})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Violations) != 1 || r.Violations[0].Block != 1 || r.Violations[0].Verdict != Stale || !errors.Is(r.Err(), ErrViolation) {
		t.Errorf("violations %v, error %v", r.Violations, r.Err())
	}
	if got := r.String(); got != "acknowledged 1, lost by contract 1, stale 1" {
		t.Errorf("report %q", got)
	}
	if _, err := h.Judge(LossNode, nil); err == nil {
		t.Error("a volume that was not read was judged")
	}
	if err := h.Ack(99); err == nil {
		t.Error("an answer to no question was taken")
	}
}
