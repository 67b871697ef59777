package model

import (
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// cutWork is what the node plugin is doing: the act that comes next of a list, and the record
// that it has read for it.
type cutWork struct {
	Op   cutOp
	Step uint8
	Seen held
	// Cache, Mode and Wipe are of the plan of a stage.
	Cache CachePlan
	Mode  Mode
	Wipe  bool
	// Failed is of a freeze that does not count.
	Failed bool
}

// cutOp is a list of acts.
type cutOp uint8

const (
	noOp cutOp = iota
	cutStage
	cutAbandoned
	cutAdopt
	cutClean
	cutUnmark
	cutMark
	cutRestore
	cutWriteback
	cutFlushed
	cutFlush
	cutRecover
	cutRelease
	cutWipe
	cutFreeze
	cutUnfreezable
	cutOps
)

// cutAct is one step of a list, as act of node.go is.
type cutAct struct {
	do    func(*Cutting) (violation string, ok bool)
	local bool
}

func here(do func(*Cutting) (string, bool)) cutAct   { return cutAct{do: do, local: true} }
func beside(do func(*Cutting) (string, bool)) cutAct { return cutAct{do: do} }

// cutActs are production's lists, in its order: those of a stage and of what follows it in
// node.go, with less between them, and the steps of online_change_act.go.
var cutActs = [cutOps][]cutAct{
	cutStage:     {here(intendCut), beside(markFor(stageMode)), here(activateCut), beside(stagedCut)},
	cutAbandoned: {here(intendCut), beside(activateCut), beside(markFor(stageMode)), beside(stagedCut)},
	cutAdopt:     {beside(drainUnmarked), beside(markFor(journalMode)), beside(stagedCut)},
	cutClean:     {here(cleanerCut), beside(cleanedCut)},
	cutUnmark:    {beside(cleanCut), here(unmarkedCut)},
	cutMark:      {beside(markFor(journalMode))},
	cutRestore:   {beside(markFor(journalMode)), here(restoreCut)},
	cutWriteback: {here(writebackCut), beside(markFor(journalMode)), here(restoreCut)},
	cutFlushed:   {beside(flushedCut), beside(reportCut)},
	cutFlush:     {here(flushingCut), beside(flushedDown)},
	cutRecover:   {beside(recoverCut)},
	cutRelease:   {here(takeDown), beside(cleanCut), here(retainCut)},
	cutWipe:      {here(takeDown), beside(cleanCut), here(wipeCut)},
	cutFreeze: {
		here(orderFreeze), beside(awaitFreeze), beside(reportFrozen), beside(whileAsked), beside(withdrawFreeze), beside(clearFreeze), beside(reportFreeze),
	},
	cutUnfreezable: {beside(reportFreeze)},
}

// nodeNext takes the next act of the node's work.
func nodeNext(w *Cutting) (string, bool) {
	k := &w.Node.Work
	if k.Op == noOp || w.waits() {
		return "", false
	}
	if k.Op != cutFreeze && w.Node.frozen() {
		return swapBelow, true
	}
	list := cutActs[k.Op]
	violation, ok := list[k.Step].do(w)
	if k.Step++; !ok || int(k.Step) >= len(list) {
		*k = cutWork{}
	}
	return violation, true
}

// entry is the production value, nil if there is none.
func (n *drained) entry() *state.Entry {
	j := n.Journal
	if j.State == NoEntry {
		return nil
	}
	return &state.Entry{
		ID: "v", Fence: cutFence, State: state.State(stateNames[j.State]), Mode: modes[j.Mode],
		Activated: j.Activated, Clean: j.Clean, Marked: j.Marked, FlushDone: j.FlushDone.String(),
	}
}

func (n *drained) facts() attach.CacheFacts {
	s := n.SSD
	if !s.Exists {
		return attach.CacheFacts{}
	}
	return attach.CacheFacts{Whole: true, Fence: cutFence, Mode: modes[s.Mode], SuperblockClean: s.Shut, Stopped: s.Stopped, SuperblockBlank: s.Blank}
}

// stageCut is NodeStageVolume up to its decision.
func stageCut(w *Cutting) (string, bool) {
	n := &w.Node
	if !w.idle() || n.Pod || n.Down || !n.Attached || w.Record.Gone {
		return "", false
	}
	rec := w.volume(w.Record)
	p := attach.DecideStage(attach.StageFacts{
		Entry: n.entry(), SameBoot: n.Journal.SameBoot, TopActive: n.Top != TopNone, TopOurs: n.Top != TopNone,
		Cache: n.facts(), Fence: cutFence, Record: *rec, Node: cutFence.Node,
		Proof: attach.Proof{GivenUp: attach.GivenUp(n.entry(), n.facts(), rec)},
	})
	if p.Refuse != nil {
		return "", false
	}
	n.Work = cutWork{Op: cutStage, Seen: held{Dirty: w.Record.Dirty, Hold: w.Record.Hold, Flush: w.Record.Flush}, Cache: planOf(p), Mode: modeOf(p.Mode), Wipe: p.Wipe}
	switch {
	case n.Work.Cache == Adopt:
		n.Work.Op = cutAdopt // which flushes below a hold
	case n.Work.Cache == Recover && !w.Record.Dirty && (w.Record.GivenUp || w.Record.Hold != 0):
		n.Work.Op = cutAbandoned
	}
	return "", true
}

// changeCut is a look of the node at what its record asks of an attached volume.
func changeCut(w *Cutting) (string, bool) {
	n := &w.Node
	if !w.idle() || n.Down || w.Record.Gone || n.Top == TopNone {
		return "", false
	}
	rec := w.volume(w.Record)
	f := attach.ChangeFacts{Entry: n.entry(), Record: *rec, LiveCache: true, Status: n.status(), Held: rec.Asked() != rec.Spec.Mode}
	f.Record.Spec.Mode = rec.Asked() // withhold
	ops := map[attach.ChangeStep]cutOp{
		attach.ChangeClean: cutClean, attach.ChangeUnmark: cutUnmark, attach.ChangeMark: cutMark,
		attach.ChangeRestore: cutRestore, attach.ChangeWriteback: cutWriteback, attach.ChangeFlushed: cutFlushed,
	}
	op := ops[attach.DecideChange(f)]
	if op == noOp {
		return "", false
	}
	n.Work = cutWork{Op: op}
	if op == cutClean || op == cutFlushed {
		n.Work.Seen.Flush, n.Work.Mode = w.Record.Flush, modeOf(rec.Asked())
	}
	return "", true
}

// status is what the kernel says of the cache.
func (n *drained) status() devmapper.CacheStatus {
	s := devmapper.CacheStatus{Policy: devmapper.PolicySMQ, Features: []string{string(devmapper.Writethrough)}}
	switch n.Top {
	case TopCleaner:
		s.Policy = devmapper.PolicyCleaner
	case TopWriteback:
		s.Features = []string{string(devmapper.Writeback)}
	}
	for _, dirty := range n.SSD.Dirty {
		if dirty {
			s.Dirty++
		}
	}
	return s
}

// downCut is a look of unstage or repair.
func downCut(w *Cutting) (string, bool) {
	n := &w.Node
	j := n.Journal
	if !w.idle() || n.Pod || n.Down || j.State == NoEntry || j.State == Retained ||
		n.Attached && j.State < Flushing && !(!j.SameBoot && n.Top == TopNone && !w.Record.Published) {
		return "", false
	}
	f := attach.DownFacts{Entry: n.entry(), SameBoot: j.SameBoot, TopActive: n.Top != TopNone}
	if n.Top == TopNone {
		f.Cache = n.facts()
	}
	f.Record = w.volume(w.Record)
	f.Proof = attach.Proof{Deleted: w.Record.Gone, GivenUp: attach.GivenUp(f.Entry, n.facts(), f.Record)}
	ops := map[attach.DownAction]cutOp{
		attach.DownFlush: cutFlush, attach.DownRecover: cutRecover, attach.DownRelease: cutRelease, attach.DownDetach: cutWipe, attach.DownWipe: cutWipe,
	}
	op := ops[attach.DecideDown(f)]
	if op == noOp {
		return "", false
	}
	n.Work = cutWork{Op: op}
	return "", true
}

// intendCut writes the intent of a stage.
func intendCut(w *Cutting) (violation string, ok bool) {
	n, k := &w.Node, w.Node.Work
	if k.Wipe || k.Cache == Create {
		violation = w.destroy()
		n.SSD = cutSSD{Exists: true, Mode: k.Mode, Blank: true}
	}
	if k.Cache == Reuse {
		n.SSD.Mode = k.Mode
	}
	n.Journal = cutJournal{
		State: Staging, Mode: k.Mode, Activated: k.Cache == Recover, Clean: k.Cache == Reuse, SameBoot: true,
		Marked: k.Seen.Dirty || k.Cache == Recover || k.Cache == Reuse && n.Journal.Marked,
	}
	return violation, true
}

// destroy tells whether the cache has the only copy of a write.
func (w *Cutting) destroy() string {
	n := &w.Node
	for b, dirty := range n.SSD.Dirty {
		if dirty && n.SSD.Cached[b] > max(w.Server.Origin[b], w.Truth.Given) {
			return destroyed
		}
	}
	return ""
}

func stageMode(w *Cutting) Mode   { return w.Node.Work.Mode }
func journalMode(w *Cutting) Mode { return w.Node.Journal.Mode }

// markFor marks the record if the mode is writeback. The API server refuses it below a hold.
func markFor(mode func(*Cutting) Mode) func(*Cutting) (string, bool) {
	return func(w *Cutting) (string, bool) {
		if mode(w) != Writeback {
			return "", true
		}
		r := &w.Record
		w.Node.Journal.Marked = true
		if r.Gone || !r.Published || !r.Dirty && r.Hold != 0 && w.Without&Refusal == 0 {
			return "", false
		}
		r.Dirty = true
		return "", true
	}
}

// activateCut loads the table. After an unclean stop every cached block counts as dirty. One
// whose writes were abandoned takes none before it is marked.
func activateCut(w *Cutting) (string, bool) {
	n, s := &w.Node, &w.Node.SSD
	if !w.connected() {
		return "", false
	}
	n.Journal.Activated, n.Journal.Clean = true, false
	if n.Top = n.Journal.Mode.top(); n.Work.Op == cutAbandoned {
		n.Top = TopCleaner
	}
	s.activate()
	return "", true
}

func (s *cutSSD) activate() {
	for b, v := range s.Cached {
		s.Dirty[b] = v != 0 && (!s.Shut || s.Dirty[b])
	}
	s.Shut, s.Stopped, s.Blank = false, false, false
}

// stagedCut is the end of a stage, also of one that adopts: the table of the journal, and a pod
// if the kubelet waits for it.
func stagedCut(w *Cutting) (string, bool) {
	n := &w.Node
	n.Journal.State, n.Journal.SameBoot, n.Journal.Activated, n.Journal.Clean = Staged, true, true, false
	n.Top = n.Journal.Mode.top()
	if n.Attached {
		n.Pod, w.Truth.Owed = true, true
	}
	return "", true
}

// drainUnmarked flushes a cache that takes writes below a record that says Clean and is held.
func drainUnmarked(w *Cutting) (string, bool) {
	n := &w.Node
	if seen := n.Work.Seen; seen.Hold == 0 || seen.Dirty || n.Journal.Mode != Writeback {
		return "", true
	}
	n.Top, n.Work.Mode = TopCleaner, Writethrough
	return cleanedCut(w)
}

func cleanerCut(w *Cutting) (string, bool) {
	w.Node.Top = TopCleaner
	return "", true
}

// cleanedCut waits for zero dirty blocks: cleanLive is called again until there are.
func cleanedCut(w *Cutting) (string, bool) {
	n := &w.Node
	if !n.SSD.clean() || !w.connected() {
		return "", false
	}
	n.Journal.FlushDone = n.Work.Seen.Flush
	if n.Work.Mode != Writeback {
		n.Journal.Mode = Writethrough
	}
	return "", true
}

// cleanCut takes the mark from the record.
func cleanCut(w *Cutting) (string, bool) {
	if !w.Node.Journal.Marked || !w.Record.Dirty {
		return "", true
	}
	w.Record.Dirty = false
	if w.destroy() != "" {
		return falseClean, true
	}
	return "", true
}

func unmarkedCut(w *Cutting) (string, bool) {
	w.Node.Journal.Marked = false
	return "", true
}

func restoreCut(w *Cutting) (string, bool) {
	w.Node.Top = w.Node.Journal.Mode.top()
	return "", true
}

func writebackCut(w *Cutting) (string, bool) {
	w.Node.SSD.Mode, w.Node.Journal.Mode = Writeback, Writeback
	return "", true
}

// flushedCut is a flush that is done: of a volume with nothing dirty, or Clean has just done it.
func flushedCut(w *Cutting) (string, bool) {
	j := &w.Node.Journal
	if j.FlushDone == w.Node.Work.Seen.Flush {
		return "", true
	}
	if !w.connected() {
		return "", false
	}
	j.FlushDone = w.Node.Work.Seen.Flush
	return "", true
}

func reportCut(w *Cutting) (string, bool) {
	if !w.Record.Gone {
		w.Record.Done = w.Node.Journal.FlushDone
	}
	return "", true
}

func flushingCut(w *Cutting) (string, bool) {
	n := &w.Node
	n.Journal.State, n.Journal.SameBoot = Flushing, true
	if n.Journal.Mode == Writeback {
		n.Top = TopCleaner
	}
	return "", true
}

func flushedDown(w *Cutting) (string, bool) {
	n := &w.Node
	if !n.SSD.clean() || !w.connected() {
		if !n.entry().MayBeDirty() && !(n.Journal.Marked && w.Record.Dirty) && !w.Record.Published {
			n.Journal.State = Wiping // shutOut
		}
		return "", false
	}
	n.Journal.Clean, n.Journal.State = true, Flushed
	return "", true
}

func recoverCut(w *Cutting) (string, bool) {
	n := &w.Node
	if !w.connected() {
		return "", false
	}
	n.SSD.activate()
	n.Top, n.Journal.State, n.Journal.SameBoot = TopCleaner, Flushing, true
	return "", true
}

func takeDown(w *Cutting) (string, bool) {
	n := &w.Node
	if n.Top > TopLinear {
		n.SSD.Shut, n.SSD.Stopped = true, n.Journal.State == Flushed
	}
	n.Top = TopNone
	return "", true
}

func retainCut(w *Cutting) (string, bool) {
	w.Node.Journal.Marked, w.Node.Journal.State = false, Retained
	return "", true
}

func wipeCut(w *Cutting) (string, bool) {
	violation := w.destroy()
	w.Node.SSD, w.Node.Journal = cutSSD{}, cutJournal{}
	return violation, true
}
