package model

import (
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Work is what the node plugin is doing with the volume: the act that comes next of a list.
type Work struct {
	Op   Op
	Step uint8
	Plan Plan
}

// Plan is what of attach.StagePlan the acts need.
type Plan struct {
	Cache CachePlan
	Wipe  bool
	Mode  Mode
}

// CachePlan is attach's, by number.
type CachePlan uint8

// The plans.
const (
	Uncached CachePlan = iota
	Adopt
	Reuse
	Recover
	Create
)

var cachePlans = map[any]CachePlan{
	attach.PlanUncached: Uncached, attach.PlanAdopt: Adopt, attach.PlanReuse: Reuse, attach.PlanRecover: Recover, attach.PlanCreate: Create,
}

// Op is a list of acts.
type Op uint8

// The lists.
const (
	Idle Op = iota
	OpStage
	OpAdopt
	OpFlush
	OpRecover
	OpRelease
	OpDetach
	OpWipe
)

var downOps = map[attach.DownAction]Op{
	attach.DownFlush: OpFlush, attach.DownRecover: OpRecover, attach.DownRelease: OpRelease,
	attach.DownDetach: OpDetach, attach.DownWipe: OpWipe,
}

// act is one step of a list. ok is false if it fails: the list ends there, and is
// decided anew.
type act func(w *World, n Node) (violation string, ok bool)

// acts are production's lists, in its order: begin, build and makeCache of stage.go;
// flush, recoverForFlush, release, detach and discard of down.go.
var acts = map[Op][]act{
	OpStage:   {removeTop, stageWipe, stageIntent, stageConnect, stageAllocate, stageMark, stageActivate, stageLoad, stageStaged},
	OpAdopt:   {stageMark, adoptStaged, adoptPolicy},
	OpFlush:   {journalState(Flushing), loadCleaner, writeBack, flushed},
	OpRecover: {reconnect, recoverLoad, journalState(Flushing)},
	OpRelease: {removeTop, takeBackMark, disconnect, journalState(Resident)},
	OpDetach:  {journalState(Releasing), removeTop, takeBackMark, disconnect, forget},
	OpWipe:    {journalState(Wiping), removeTop, takeBackMark, disconnect, wipe},
}

// step takes the next act of a node's work.
func step(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := &w.Nodes[n]
		if m.Work.Op == Idle {
			return "", false
		}
		list := acts[m.Work.Op]
		violation, ok := list[m.Work.Step](w, n)
		if !ok {
			m.Work = Work{}
			return violation, true
		}
		if m.Work.Step++; int(m.Work.Step) == len(list) {
			m.Work = Work{}
		}
		return violation, true
	}
}

// entry is the production value, nil if there is none.
func (m *Machine) entry(n Node) *attach.Entry {
	j := m.Journal
	if j.State == NoEntry {
		return nil
	}
	return &attach.Entry{
		ID: "v", Fence: j.Fence.fence(n), State: attach.State(stateNames[j.State]), Mode: modes[j.Mode],
		Activated: j.Activated, Clean: j.Clean, Marked: j.Marked,
	}
}

func (m *Machine) cacheFacts(n Node) attach.CacheFacts {
	s := m.SSD
	if !s.Exists {
		return attach.CacheFacts{}
	}
	return attach.CacheFacts{
		Whole: true, Fence: s.Fence.fence(n), Mode: modes[s.Mode], SuperblockClean: s.Stopped, Stopped: s.Stopped, SuperblockBlank: s.Blank,
	}
}

// stage is NodeStageVolume up to its decision.
func stage(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := &w.Nodes[n]
		if m.Work.Op != Idle || m.Pod || m.Attached == (Fence{}) || w.Record.UID == 0 {
			return "", false
		}
		p := attach.DecideStage(attach.StageFacts{
			Entry: m.entry(n), SameBoot: m.Journal.Boot == m.Boot,
			TopActive: m.Top != TopNone, TopOurs: m.Top != TopNone && m.Journal.Fence == m.Attached,
			Cache: m.cacheFacts(n), Fence: m.Attached.fence(n), Record: w.Record.volume(w.Mode), Node: n.String(),
		})
		if p.Refuse != nil {
			return "", false
		}
		m.Work = Work{Op: OpStage, Plan: Plan{Cache: cachePlans[p.Cache], Wipe: p.Wipe, Mode: modeOf(p.Mode)}}
		if m.Work.Plan.Cache == Adopt {
			m.Work.Op = OpAdopt
		}
		return "", true
	}
}

func modeOf(m volume.CacheMode) Mode {
	for i := range modes {
		if modes[i] == m {
			return Mode(i)
		}
	}
	panic("mode " + m)
}

func removeTop(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if m.Top == TopNone {
		return "", true
	}
	if m.Pod {
		return "", false // it is open
	}
	if m.Top != TopLinear {
		m.SSD.Stopped = true
	}
	m.Top = TopNone
	return "", true
}

// destroy removes the cache. What is dirty may be the only copy of a write.
func destroy(w *World, n Node) string {
	m := &w.Nodes[n]
	s := m.SSD
	m.SSD = SSD{}
	if s.Dirty && s.Cached > max(w.Origin, w.Given) {
		return "an unflushed write was destroyed without proof"
	}
	return ""
}

func stageWipe(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if !m.Work.Plan.Wipe {
		return "", true
	}
	violation := destroy(w, n)
	m.Journal = Journal{}
	return violation, true
}

func stageIntent(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	j := Journal{State: Staging, Fence: m.Attached, Mode: m.Work.Plan.Mode, Boot: m.Boot}
	switch m.Work.Plan.Cache {
	case Reuse:
		j.Clean, j.Marked = true, m.Journal.Marked
	case Recover:
		j.Activated, j.Marked = true, true
	default:
		j.Marked = w.Record.Dirty
	}
	m.Journal = j
	return "", true
}

// login connects the origin, and compares the unit with the ownership (checkUnit).
func login(w *World, n Node) bool {
	m := &w.Nodes[n]
	if w.Static {
		m.Session = m.Journal.Fence.Generation
		return true
	}
	g := w.Server.Admitted[n]
	if g == 0 || g > m.Journal.Fence.Generation {
		return false
	}
	m.Session = g
	return true
}

func stageConnect(w *World, n Node) (string, bool) { return "", login(w, n) }

func stageAllocate(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if m.Work.Plan.Cache != Create || m.Journal.Mode == None {
		return "", true
	}
	violation := destroy(w, n)
	m.SSD = SSD{Exists: true, Fence: m.Journal.Fence, Mode: m.Journal.Mode, Blank: true}
	return violation, true
}

func stageMark(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if m.Journal.Mode != Writeback {
		return "", true
	}
	r := &w.Record
	if r.UID != m.Journal.Fence.UID || r.Generation != m.Journal.Fence.Generation || r.Owner != n || !r.Published {
		return "", false
	}
	r.Dirty, m.Journal.Marked = true, true
	return "", true
}

func stageActivate(w *World, n Node) (string, bool) {
	j := &w.Nodes[n].Journal
	if j.Mode != None {
		j.Activated, j.Clean = true, false
	}
	return "", true
}

func stageLoad(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if m.Journal.Mode == None {
		m.Top = TopLinear
		return "", true
	}
	m.load(map[Mode]Top{Writethrough: TopWritethrough, Writeback: TopWriteback}[m.Journal.Mode])
	return "", true
}

// load activates the cache: after an unclean stop every cached block counts as dirty.
func (m *Machine) load(t Top) {
	if !m.SSD.Stopped && m.SSD.Cached != 0 {
		m.SSD.Dirty = true
	}
	m.SSD.Stopped, m.SSD.Blank, m.Top = false, false, t
}

func stageStaged(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	m.Journal.State, m.Journal.Boot = Staged, m.Boot
	m.Pod = true
	return "", true
}

func adoptStaged(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if m.Journal.Mode != None {
		m.Journal.Activated, m.Journal.Clean = true, false
	}
	m.Journal.State, m.Journal.Boot = Staged, m.Boot
	return "", m.Session != 0
}

func adoptPolicy(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if m.Top == TopCleaner {
		m.Top = map[Mode]Top{Writethrough: TopWritethrough, Writeback: TopWriteback}[m.Journal.Mode]
	}
	m.Pod = true
	return "", true
}

func journalState(s State) act {
	return func(w *World, n Node) (string, bool) {
		m := &w.Nodes[n]
		m.Journal.State, m.Journal.Boot = s, m.Boot
		return "", true
	}
}

func loadCleaner(w *World, n Node) (string, bool) {
	if m := &w.Nodes[n]; m.Journal.Mode == Writeback {
		m.Top = TopCleaner
	}
	return "", true
}

// writeBack writes what is dirty to the origin. A block that is older than the origin's
// is a lost update.
func writeBack(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if !w.connected(n) {
		return "", !m.SSD.Dirty && m.Session != 0 && w.Static
	}
	violation := ""
	if m.SSD.Dirty {
		if m.SSD.Cached < w.Origin {
			violation = "a flush wrote an old block over a newer one"
		}
		w.Origin, m.SSD.Dirty = m.SSD.Cached, false
	}
	return violation, true
}

func flushed(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	m.Journal.Clean, m.Journal.State = true, Flushed
	return "", true
}

func reconnect(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if !m.SSD.Exists || m.SSD.Fence != m.Journal.Fence {
		return "", false
	}
	return "", login(w, n)
}

func recoverLoad(w *World, n Node) (string, bool) {
	w.Nodes[n].load(TopCleaner)
	return "", true
}

func takeBackMark(w *World, n Node) (string, bool) {
	m := &w.Nodes[n]
	if !m.Journal.Marked {
		return "", true
	}
	r := &w.Record
	if r.UID == m.Journal.Fence.UID && r.Generation == m.Journal.Fence.Generation && r.Owner == n {
		r.Dirty = false
	}
	m.Journal.Marked = false
	return "", true
}

func disconnect(w *World, n Node) (string, bool) {
	w.Nodes[n].Session = 0
	return "", true
}

func forget(w *World, n Node) (string, bool) {
	w.Nodes[n].Journal = Journal{}
	return "", true
}

func wipe(w *World, n Node) (string, bool) {
	violation := destroy(w, n)
	w.Nodes[n].Journal = Journal{}
	return violation, true
}

// down is a look of unstage or repair.
func down(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := &w.Nodes[n]
		if m.Work.Op != Idle || m.Pod || m.Journal.State == NoEntry || !w.downDue(n) {
			return "", false
		}
		e := m.entry(n)
		f := attach.DownFacts{Entry: e, SameBoot: m.Journal.Boot == m.Boot, TopActive: m.Top != TopNone}
		if e.MayBeDirty() {
			f.Superseded, f.GivenUp = w.judge(e)
		}
		if e.Cached() && m.Top == TopNone {
			f.Cache = m.cacheFacts(n)
		}
		op, some := downOps[attach.DecideDown(f)]
		if some {
			m.Work = Work{Op: op}
		}
		return "", some
	}
}

// judge is what gatherDown makes of the record.
func (w *World) judge(e *attach.Entry) (superseded, givenUp bool) {
	if w.Record.UID == 0 {
		return true, false
	}
	rec := w.Record.volume(w.Mode)
	return attach.Superseded(rec.Fence, e.Fence), rec.Fence == e.Fence && !rec.PossiblyDirty
}

// downDue: the kubelet asks for it once the pod is gone, and repair for what is left.
func (w *World) downDue(n Node) bool {
	m := &w.Nodes[n]
	if m.Journal.State == Resident {
		return false
	}
	entitled := w.Record.UID == m.Journal.Fence.UID && w.Record.Generation == m.Journal.Fence.Generation && w.Record.Owner == n && w.Record.Published
	return m.Attached == (Fence{}) || !entitled || m.Journal.Boot != m.Boot && m.Top == TopNone || m.Journal.State >= Flushing
}
