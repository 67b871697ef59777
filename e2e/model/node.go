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
	// Marked is whether the record that was read said PossiblyDirty.
	Marked bool
	// Fence is the publication's.
	Fence Fence
	// Act is the stage, and Fresh is true if the record is to be told of it.
	Act   Act
	Fresh bool
	// OwnKey is true if a reservation with the own key is one that this node made.
	OwnKey bool
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
	OpRelease: {local(removeTop), local(countMarked), local(tagStopped), shared(takeBackMark), local(disconnect), journalState(Resident)},
	OpDetach:  {journalState(Releasing), local(removeTop), local(countMarked), local(tagCount), shared(takeBackMark), local(disconnect), local(forget)},
	OpWipe:    {journalState(Wiping), local(removeTop), local(countMarked), local(tagCount), shared(takeBackMark), local(disconnect), local(wipe)},
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
func (m *Machine) entry(n Node) *attach.Entry {
	j := m.Journal
	if j.State == NoEntry {
		return nil
	}
	act := j.Act.activation()
	var lost *attach.Lost
	if j.Lost {
		lost = &attach.Lost{}
	}
	return &attach.Entry{
		ActivationID: act.ID, ActivationCount: act.Count, Reserved: j.Reserved, Lost: lost,
		ID: "v", Fence: j.Fence.fence(n), State: attach.State(stateNames[j.State]), Mode: modes[j.Mode],
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
		m.Work.Plan.OwnKey = m.Journal.Fence == m.Attached && m.Journal.Reserved && !m.Journal.Inherited
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

func removeTop(w *World, n Node) (string, bool) {
	m := w.at(n)
	if m.Top == TopNone {
		return "", true
	}
	if m.Pod {
		return "", false // it is open
	}
	m.swap(TopNone)
	return "", true
}

// swap takes a table out, for another or for none. The kernel writes the map then.
func (m *Machine) swap(t Top) {
	if m.Top > TopLinear {
		m.SSD.Shut, m.SSD.Marks = true, m.SSD.Dirty
	}
	m.Top = t
}

// tagStopped notes a clean stop.
func tagStopped(w *World, n Node) (string, bool) {
	m := w.at(n)
	if m.SSD.Exists && m.Journal.State == Flushed {
		m.SSD.Stopped, m.SSD.Act = true, m.Journal.Act
	}
	return "", true
}

// untag takes the note of the last stop away. Without one the superblock is made to say
// that there was none.
func untag(w *World, n Node) (string, bool) {
	s := &w.at(n).SSD
	s.Act = w.at(n).Journal.Act
	if !s.Stopped && w.Without&Stops == 0 {
		s.Shut = false
	}
	s.Stopped = false
	return "", true
}

// destroy removes the cache. What is dirty may be the only copy of a write.
func destroy(w *World, n Node) string {
	m := w.at(n)
	s := m.SSD
	m.SSD = SSD{}
	if !w.Truth.Unwanted && s.Dirty && s.Cached > max(w.Truth.Origin, w.Truth.Given) {
		return destroyed
	}
	return ""
}

func stageWipe(w *World, n Node) (string, bool) {
	m := w.at(n)
	if !m.Work.Plan.Wipe {
		return "", true
	}
	violation := destroy(w, n)
	if m.Journal.State != NoEntry {
		m.Journal.State, m.Journal.SameBoot = Wiping, true
	}
	if w.Without&Wiped != 0 {
		m.Journal = Journal{}
	}
	return violation, true
}

func stageIntent(w *World, n Node) (string, bool) {
	m := w.at(n)
	j := Journal{State: Staging, Fence: m.Work.Plan.Fence, Act: m.Work.Plan.Act, Mode: m.Work.Plan.Mode, SameBoot: true}
	switch m.Work.Plan.Cache {
	case Reuse:
		j.Clean, j.Marked = true, m.Journal.Marked
	case Recover:
		j.Activated, j.Marked = true, true
	default:
		j.Marked = m.Work.Plan.Marked
	}
	m.Journal = j
	return "", true
}

// login connects the origin, and compares the unit with the ownership (checkUnit).
func login(w *World, n Node) bool {
	m := w.at(n)
	if w.Static {
		m.Session = m.Journal.Fence.Generation
		return true
	}
	g := w.Server.Admitted[n-1]
	if g == 0 || w.Server.Deleted || g > m.Journal.Fence.Generation {
		return false
	}
	m.Session = g
	return true
}

func stageConnect(w *World, n Node) (string, bool) {
	return "", login(w, n) && (!w.reserves() || w.reserve(n))
}

func stageAllocate(w *World, n Node) (string, bool) {
	m := w.at(n)
	if m.Work.Plan.Cache != Create || m.Journal.Mode == None {
		return "", true
	}
	violation := destroy(w, n)
	m.SSD = SSD{Exists: true, Act: m.Journal.Act, Fence: m.Journal.Fence, Mode: m.Journal.Mode, Blank: true}
	return violation, true
}

func stageMark(w *World, n Node) (string, bool) {
	m := w.at(n)
	if m.Journal.Mode != Writeback {
		return "", true
	}
	r := w.record()
	if !r.names(n, m.Journal.Fence) || !r.Published {
		return "", false
	}
	r.Dirty, m.Journal.Marked = true, true
	return "", true
}

func stageActivate(w *World, n Node) (string, bool) {
	j := &w.at(n).Journal
	if j.Mode != None {
		j.Activated, j.Clean = true, false
	}
	return "", true
}

func stageLoad(w *World, n Node) (string, bool) {
	m := w.at(n)
	if m.Journal.Mode == None {
		m.Top = TopLinear
		return "", true
	}
	m.load(m.Journal.Mode.top())
	return "", true
}

// top is the table of a cache in a mode.
func (m Mode) top() Top {
	if m == Writeback {
		return TopWriteback
	}
	return TopWritethrough
}

// load activates the cache: after an unclean stop every cached block counts as dirty, and
// otherwise those that the map says.
func (m *Machine) load(t Top) {
	m.SSD.Dirty = m.SSD.Cached != 0 && (!m.SSD.Shut || m.SSD.Marks)
	m.SSD.Shut, m.SSD.Marks, m.SSD.Blank, m.Top = false, false, false, t
}

func stageStaged(w *World, n Node) (string, bool) {
	m := w.at(n)
	m.Journal.State, m.Journal.SameBoot = Staged, true
	w.podBegins(n)
	return "", true
}

// podBegins starts a pod if the kubelet waits for the volume.
func (w *World) podBegins(n Node) {
	if m := w.at(n); !m.Work.Plan.Unheard {
		m.Pod, w.Truth.Owner = true, n
	}
}

// publish is NodePublishVolume for another pod. To a kubelet that has the volume staged it
// comes without a stage.
func publish(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if !m.Pod || m.Attached == (Fence{}) || m.Attached != m.Journal.Fence || w.Truth.Owner == n {
			return "", false
		}
		if r := w.record(); r.UID != 0 && w.Without&Kept == 0 { // admit
			if !r.names(n, m.Journal.Fence) || !r.Published {
				return "", false
			}
			r.Dirty = r.Dirty || m.Journal.Mode == Writeback
		}
		w.Truth.Owner = n
		return "", true
	}
}

func adoptStaged(w *World, n Node) (string, bool) {
	m := w.at(n)
	if m.Journal.Mode != None {
		m.Journal.Activated, m.Journal.Clean = true, false
	}
	m.Journal.State, m.Journal.SameBoot = Staged, true
	return "", m.Session != 0
}

func adoptPolicy(w *World, n Node) (string, bool) {
	m := w.at(n)
	if m.Top == TopCleaner {
		m.swap(m.Journal.Mode.top())
	}
	w.podBegins(n)
	return "", true
}

func journalState(s State) act {
	return local(func(w *World, n Node) (string, bool) {
		m := w.at(n)
		m.Journal.State, m.Journal.SameBoot = s, true
		return "", true
	})
}

func loadCleaner(w *World, n Node) (string, bool) {
	if m := w.at(n); m.Journal.Mode == Writeback {
		m.swap(TopCleaner)
	}
	return "", true
}

// writeBack writes what is dirty to the origin. A block that is older than the origin's
// is a lost update.
func writeBack(w *World, n Node) (string, bool) {
	m := w.at(n)
	if !w.connected(n) {
		j, r := &m.Journal, w.record()
		if w.Without&Leaves == 0 && !m.entry(n).MayBeDirty() && !j.Marked && !(r.names(n, j.Fence) && r.Published) {
			j.State = Wiping // shutOut
		}
		return "", false
	}
	violation := ""
	if m.SSD.Dirty {
		if m.SSD.Cached < w.Truth.Origin {
			violation = overwritten
		}
		w.Truth.Origin, m.SSD.Dirty = m.SSD.Cached, false
	}
	return violation, true
}

func flushed(w *World, n Node) (string, bool) {
	m := w.at(n)
	m.Journal.Clean, m.Journal.State = true, Flushed
	return "", true
}

func reconnect(w *World, n Node) (string, bool) {
	m := w.at(n)
	if !m.SSD.Exists || m.SSD.Fence != m.Journal.Fence {
		return "", false
	}
	return "", login(w, n) && (!w.reserves() || w.reserveAgain(n))
}

func recoverLoad(w *World, n Node) (string, bool) {
	w.at(n).load(TopCleaner)
	return "", true
}

func takeBackMark(w *World, n Node) (string, bool) {
	m := w.at(n)
	if !m.Journal.Marked {
		return "", true
	}
	if r := w.record(); r.names(n, m.Journal.Fence) && !w.setAct(n, m.Journal.Fence, m.Journal.Act) {
		return "", false // of the past: nothing is known of what came later
	}
	m.Journal.Marked = false
	if r := w.record(); r.Owner == n && r.Generation == m.Journal.Fence.Generation {
		return w.reportClean(n, r.fence()), true // also of a record that was made anew
	}
	return "", true
}

// reportClean takes the mark of a node's ownership from the record.
func (w *World) reportClean(n Node, f Fence) string {
	if !w.record().names(n, f) || !w.record().Dirty {
		return ""
	}
	w.record().Dirty = false
	if w.Truth.Floor > w.Truth.Origin {
		return falseClean
	}
	return ""
}

func disconnect(w *World, n Node) (string, bool) {
	w.give(n)
	w.at(n).Session = 0
	return "", true
}

func forget(w *World, n Node) (string, bool) {
	w.at(n).Journal = Journal{}
	return "", true
}

func wipe(w *World, n Node) (string, bool) {
	violation := destroy(w, n)
	w.at(n).Journal = Journal{}
	return violation, true
}
