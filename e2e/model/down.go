package model

import (
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/volume"
)

// down is a look of unstage or repair.
func down(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if m.Work.Op != Idle || m.Pod || m.Journal.State == NoEntry || !w.downDue(n) {
			return "", false
		}
		e := m.entry(n)
		f := attach.DownFacts{Entry: e, SameBoot: m.Journal.SameBoot, TopActive: m.Top != TopNone}
		if e.MayBeDirty() {
			f.Superseded, f.GivenUp = w.judge(e)
		}
		if e.Cached() && m.Top == TopNone {
			f.Cache = w.cacheFacts(n)
		}
		f.Past = e.MayBeDirty() && attach.PastWrites(e, f.Cache, w.shown())
		op := opOf(attach.DecideDown(f))
		m.Work = Work{Op: op}
		return "", op != Idle
	}
}

// judge is what gatherDown makes of the record.
func (w *World) judge(e *attach.Entry) (superseded, givenUp bool) {
	if w.record().UID == 0 {
		return true, false
	}
	rec := w.record().volume(w.Mode)
	return attach.Superseded(rec.Fence, e.Fence), rec.Fence == e.Fence && !rec.PossiblyDirty
}

// downDue: the kubelet asks for it once the pod is gone, and repair for what is left.
func (w *World) downDue(n Node) bool {
	m := w.at(n)
	switch {
	case m.Journal.State == Resident:
		return false
	case m.Attached == (Fence{}), m.Journal.State >= Flushing:
		return true
	}
	entitled := w.record().names(n, m.Journal.Fence) && w.record().Published
	return !entitled || !m.Journal.SameBoot && m.Top == TopNone
}

// residency is repair's look at a clean cache, checkResidency of repair.go.
func residency(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m, r := w.at(n), w.record()
		if m.Work.Op != Idle || m.Journal.State != Resident {
			return "", false
		}
		past := w.identity(m.Journal.Act) == volume.IdentityPast
		switch f := m.Journal.Fence; {
		case r.UID == f.UID && past && m.SSD.Exists && (m.SSD.Fence != f || m.SSD.Act != m.Journal.Act):
			m.Journal = Journal{} // it speaks of another cache (ssdAgrees)
		case r.UID == f.UID && past:
			m.Work = Work{Op: OpDrop}
		case r.names(n, f) && r.Dirty && m.Journal.Clean:
			return w.reportClean(n, f), true // takeBackRestored
		case r.names(n, f), !w.Static && r.UID == f.UID && r.Generation < f.Generation:
			return "", false
		default:
			m.Work = Work{Op: OpDrop}
		}
		return "", true
	}
}

// orphan is repair's look at a cache that no entry knows, wipeOrphan of repair.go.
func orphan(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m, r := w.at(n), w.record()
		if m.Work.Op != Idle || m.Journal.State != NoEntry || !m.SSD.Exists || m.Top != TopNone {
			return "", false
		}
		f := m.SSD.Fence
		if m.SSD.Mode == Writeback && r.UID != 0 &&
			(r.Dirty && r.names(n, f) || r.UID == f.UID && r.Generation < f.Generation) {
			return "", false
		}
		return destroy(w, n), true
	}
}
