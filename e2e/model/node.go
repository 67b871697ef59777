package model

import (
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/state"
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
	// Marked is whether the record that was read said PossiblyDirty.
	Marked bool
	// Fence is the publication's.
	Fence Fence
	// Act is the stage, and Fresh is true if the record is to be told of it.
	Act   Act
	Fresh bool
	// Reserved and Inherited are knownReservation.
	Reserved, Inherited bool
	// Unheard is true if the kubelet does not wait for the answer any more.
	Unheard bool
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

func planOf(p attach.StagePlan) CachePlan {
	switch p.Cache {
	case attach.PlanAdopt:
		return Adopt
	case attach.PlanReuse:
		return Reuse
	case attach.PlanRecover:
		return Recover
	case attach.PlanCreate:
		return Create
	default:
		return Uncached
	}
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
	OpDrop
	OpCount
	opCount
)

func opOf(a attach.DownAction) Op {
	switch a {
	case attach.DownFlush:
		return OpFlush
	case attach.DownRecover:
		return OpRecover
	case attach.DownRelease:
		return OpRelease
	case attach.DownDetach:
		return OpDetach
	case attach.DownWipe:
		return OpWipe
	default:
		return Idle
	}
}

// act is one step of a list. do returns false if it fails: the list ends there, and is
// decided anew. local is true if nobody but the node sees what it does and nobody else
// can change what comes of it: then the order of it and of what others do is no matter.
type act struct {
	do    func(w *World, n Node) (violation string, ok bool)
	local bool
}

func local(do func(w *World, n Node) (string, bool)) act  { return act{do: do, local: true} }
func shared(do func(w *World, n Node) (string, bool)) act { return act{do: do} }

// acts are production's lists, in its order: begin, build and makeCache of stage.go;
// flush, recoverForFlush, release, detach and discard of down.go, wipe of cache.go.
var acts = [opCount][]act{
	OpStage: {
		local(removeTop), shared(pend), local(stageWipe), local(stageIntent), shared(stageConnect), local(stageAllocate),
		shared(stageMark), local(stageActivate), local(untag), local(stageLoad), shared(confirm), shared(stageStaged),
	},
	OpAdopt:   {shared(confirm), shared(stageMark), local(adoptStaged), shared(adoptPolicy)},
	OpFlush:   {journalState(Flushing), local(loadCleaner), shared(writeBack), local(flushed)},
	OpRecover: {shared(reconnect), local(untag), local(recoverLoad), journalState(Flushing)},
	OpRelease: {local(removeTop), local(countMarked), local(tagStopped), local(disconnect), shared(takeBackMark), journalState(Retained)},
	OpDetach:  {journalState(Releasing), local(removeTop), local(countMarked), local(tagCount), local(disconnect), shared(takeBackMark), local(forget)},
	OpWipe:    {journalState(Wiping), local(removeTop), local(countMarked), local(tagCount), local(disconnect), shared(takeBackMark), local(wipe)},
	OpDrop:    {journalState(Wiping), local(wipe)},
	OpCount:   {local(countUp), local(tagCount), shared(recordCount)},
}

// step takes the next act of a node's work.
func step(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if m.Work.Op == Idle {
			return "", false
		}
		list := acts[m.Work.Op]
		violation, ok := list[m.Work.Step].do(w, n)
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
func (m *Machine) entry(n Node) *state.Entry {
	j := m.Journal
	if j.State == NoEntry {
		return nil
	}
	act := j.Act.activation()
	var lost *state.Lost
	if j.Lost {
		lost = &state.Lost{}
	}
	return &state.Entry{
		ActivationID: act.ID, ActivationCount: act.Count, Reserved: j.Reserved, Lost: lost,
		ID: "v", Fence: j.Fence.fence(n), State: state.State(stateNames[j.State]), Mode: modes[j.Mode],
		Activated: j.Activated, Clean: j.Clean, Marked: j.Marked,
	}
}

func (w *World) cacheFacts(n Node) attach.CacheFacts {
	s := w.at(n).SSD
	if w.Without&Stops != 0 {
		s.Stopped = s.Shut
	}
	if !s.Exists {
		return attach.CacheFacts{}
	}
	act := s.Act.activation()
	return attach.CacheFacts{
		ActivationID: act.ID, ActivationCount: act.Count,
		Whole: true, Fence: s.Fence.fence(n), Mode: modes[s.Mode], SuperblockClean: s.Shut, Stopped: s.Stopped, SuperblockBlank: s.Blank,
	}
}

// stage is NodeStageVolume up to its decision.
func stage(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if m.Work.Op != Idle || m.Pod || m.Attached == (Fence{}) || w.record().UID == 0 {
			return "", false
		}
		known := m.Journal.Fence
		if m.Journal.State == NoEntry {
			known = m.SSD.Fence
		}
		cache, rec := w.cacheFacts(n), w.shown()
		p := attach.DecideStage(attach.StageFacts{
			Proof: w.proof(n, known, m.Journal.State != NoEntry),
			Entry: attach.Believed(m.entry(n), cache, rec), SameBoot: m.Journal.SameBoot,
			TopActive: m.Top != TopNone, TopOurs: m.Top != TopNone && m.Journal.Fence == m.Attached,
			Cache: cache, Fence: m.Attached.fence(n), Record: rec, Node: n.String(),
		})
		if p.Refuse != nil {
			return "", false
		}
		m.Work = Work{Op: OpStage, Plan: Plan{Cache: planOf(p), Wipe: p.Wipe, Mode: modeOf(p.Mode), Marked: w.record().Dirty, Fence: m.Attached}}
		m.Work.Plan.Reserved = m.Journal.State != NoEntry && m.Journal.Fence == m.Attached && m.Journal.Reserved
		m.Work.Plan.Inherited = m.Work.Plan.Reserved && (m.Journal.Inherited || !m.Journal.SameBoot || !w.lastStage(n))
		m.Work.Plan.Act, m.Work.Plan.Fresh = w.nextAct(n, m.Work.Plan)
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
