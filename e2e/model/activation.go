package model

import (
	"slices"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Act is a volume.Activation: one stage of the volume. Its name is a number here.
type Act struct{ ID, Generation, Count uint8 }

// Acts are what the record knows: the last stage and one that is about to be.
type Acts struct{ Current, Pending Act }

var actNames = [14]string{"", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13"}

func (a Act) activation() volume.Activation {
	return volume.Activation{ID: actNames[a.ID], Generation: int64(a.Generation), Count: int64(a.Count)}
}

// identity is what the record says of an activation that some disks know. Without activations
// it says of each that it is the one.
func (w *World) identity(a Act) volume.Identity {
	if w.Without&Activations != 0 {
		return volume.IdentityCurrent
	}
	return w.shown().Identify(a.activation())
}

// slots are all places of the world that know an activation.
func (w *World) slots() [12]*Act {
	a, b := w.at(A), w.at(B)
	return [...]*Act{
		&w.Known.Current, &w.Known.Pending, &w.BackupKnown.Current, &w.BackupKnown.Pending,
		&a.Journal.Act, &a.SSD.Act, &a.Work.Plan.Act, &b.Journal.Act, &b.SSD.Act, &b.Work.Plan.Act,
		&w.Image.Journal.Act, &w.Image.SSD.Act,
	}
}

// normal gives activations the lowest names and counts that say the same: their names
// are random, and of counts it is asked only which is higher, and whether by one.
func (w *World) normal() {
	w.normalEpochs()
	slots := w.slots()
	var names [len(actNames)]uint8
	next := uint8(1)
	var counts []uint8
	for _, s := range slots {
		if s.ID != 0 && names[s.ID] == 0 {
			names[s.ID] = next
			next++
		}
		counts = append(counts, s.Count)
	}
	slices.Sort(counts)
	var low [256]uint8
	last, to := uint8(0), uint8(0)
	for _, c := range counts {
		to += min(c-last, 2)
		low[c], last = to, c
	}
	for _, s := range slots {
		s.ID, s.Count = names[s.ID], low[s.Count]
	}
}

// fresh is an activation that nobody knows yet, with a higher count than the record and
// the journal know.
func (w *World) fresh(n Node) Act {
	a := Act{Count: max(w.Known.Current.Count, w.Known.Pending.Count, w.at(n).Journal.Act.Count) + 1}
	for _, s := range w.slots() {
		a.ID = max(a.ID, s.ID)
	}
	a.ID++
	return a
}

// nextAct is newActivation of identity.go.
func (w *World) nextAct(n Node, p Plan) (a Act, fresh bool) {
	j := w.at(n).Journal
	switch {
	case w.Without&Activations != 0:
		return Act{}, false
	case p.Cache == Recover && j.State != NoEntry:
		return j.Act, false
	case p.Cache == Recover:
		return w.at(n).SSD.Act, false
	case j.State != NoEntry && j.Fence == p.Fence && j.Act.ID != 0 && w.Known.Pending == j.Act:
		return j.Act, false
	}
	a = w.fresh(n)
	a.Generation = p.Fence.Generation
	return a, true
}

// pend makes the record know of a stage before anything on the node does.
func pend(w *World, n Node) (string, bool) {
	p := &w.at(n).Work.Plan
	if !p.Fresh {
		return "", true
	}
	if !w.record().names(n, p.Fence) || !w.record().Published {
		return "", false
	}
	w.Known.Pending = p.Act
	return "", true
}

// setAct is SetActivation of the record.
func (w *World) setAct(n Node, f Fence, a Act) bool {
	switch {
	case w.record().UID == 0:
		return true
	case !w.record().names(n, f), w.identity(a) == volume.IdentityPast:
		return false
	case a.ID == 0:
		return true
	}
	w.Known.Current = a
	if w.Known.Pending.ID == a.ID {
		w.Known.Pending = Act{}
	}
	return true
}

// confirm makes the stage the record's, now that the devices are there.
func confirm(w *World, n Node) (string, bool) {
	j := w.at(n).Journal
	return "", j.Act.ID == 0 || w.Known.Current == j.Act || w.setAct(n, j.Fence, j.Act)
}

// countUp lets the count grow in the journal, tagCount on the SSD.
func countUp(w *World, n Node) (string, bool) {
	if j := &w.at(n).Journal; j.Act.ID != 0 {
		j.Act.Count++
	}
	return "", true
}

func tagCount(w *World, n Node) (string, bool) {
	if m := w.at(n); m.SSD.Exists && m.Journal.Act.ID != 0 && m.SSD.Act.ID == m.Journal.Act.ID {
		m.SSD.Act = m.Journal.Act
	}
	return "", true
}

// countMarked is countUp where there is a mark to take back.
func countMarked(w *World, n Node) (string, bool) {
	if !w.at(n).Journal.Marked {
		return "", true
	}
	return countUp(w, n)
}

func recordCount(w *World, n Node) (string, bool) {
	j := w.at(n).Journal
	return "", w.setAct(n, j.Fence, j.Act)
}

// count is what the plugin does now and then while unflushed writes may be made.
func count(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		due := m.Work.Op == Idle && m.Journal.State == Staged && m.Journal.SameBoot && m.entry(n).MayBeDirty()
		if !due || !spend(&w.Left.Counts) {
			return "", false
		}
		m.Work = Work{Op: OpCount}
		return "", true
	}
}
