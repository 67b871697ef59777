package model

import (
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/state"
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
			f.Record, f.Proof = w.found(), w.proof(n, m.Journal.Fence, true)
		}
		f.Taken = m.Journal.Lost // gatherDown
		if e.Cached() && m.Top == TopNone {
			f.Cache = w.cacheFacts(n)
		}
		f.Past = e.MayBeDirty() && attach.PastWrites(e, f.Cache, w.shown())
		op := opOf(attach.DecideDown(f))
		m.Work = Work{Op: op}
		return "", op != Idle
	}
}

// found is what findRecord finds.
func (w *World) found() *volume.Volume {
	if w.record().UID == 0 {
		return nil
	}
	rec := w.record().volume(w.Mode)
	return &rec
}

// proof is what prove finds of writes that were made under known. The volume of the name
// never is another one here. Only a journal knows where to ask for the LUN.
func (w *World) proof(n Node, known Fence, journalled bool) attach.Proof {
	m := w.at(n)
	p := attach.Proof{Deleted: m.Told.UID == known.UID && m.Told.UID != 0 && known.Generation <= m.Told.Generation}
	if w.Without&Proofs != 0 {
		p.Deleted = p.Deleted || w.record().UID != known.UID
	}
	if rec := w.shown(); w.record().UID != 0 && rec.Fence == known.fence(n) {
		var e *state.Entry
		if journalled {
			e = attach.Believed(m.entry(n), w.cacheFacts(n), rec)
		}
		p.GivenUp = attach.GivenUp(e, w.cacheFacts(n), &rec) || w.Without&Consents != 0 && !rec.PossiblyDirty
	}
	if journalled && !w.Static && !w.Server.Deleted {
		p.LUN, p.SameLUN = int64(w.Server.Admitted[n-1]), true
	}
	return p
}

// downDue: the kubelet asks for it once the pod is gone, and repair for what is left.
func (w *World) downDue(n Node) bool {
	m := w.at(n)
	switch {
	case m.Journal.State == Retained:
		return false
	case m.Attached == (Fence{}), m.Journal.State >= Flushing:
		return true
	}
	entitled := w.record().names(n, m.Journal.Fence) && w.record().Published
	return !entitled || !m.Journal.SameBoot && m.Top == TopNone
}

// retainedCache is repair's look at a clean cache, checkRetainedCache of repair.go.
func retainedCache(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m, r := w.at(n), w.record()
		if m.Work.Op != Idle || m.Journal.State != Retained {
			return "", false
		}
		past := w.identity(m.Journal.Act) == volume.IdentityPast
		switch f := m.Journal.Fence; {
		case r.UID == f.UID && past && m.SSD.Exists && (m.SSD.Fence != f || m.SSD.Act != m.Journal.Act):
			m.Journal = Journal{} // it speaks of another cache (ssdAgrees)
		case r.UID == f.UID && past:
			m.Work = Work{Op: OpDrop}
		case r.Owner == n && r.Generation == f.Generation && r.Dirty && m.Journal.Clean:
			return w.reportClean(n, r.fence()), true // takeBackRestored, under another UID too
		case w.Without&Proofs == 0 && r.UID != f.UID && !w.proof(n, f, false).Deleted:
			return "", false
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
		m := w.at(n)
		if m.Work.Op != Idle || m.Journal.State != NoEntry || !m.SSD.Exists || m.Top != TopNone {
			return "", false
		}
		// Its superblock is not read.
		if m.SSD.Mode == Writeback && !w.cacheFacts(n).Stopped && w.wanted(n, m.SSD.Fence, false) {
			return "", false
		}
		return destroy(w, n), true
	}
}

// wanted reports whether unflushed writes that were made under f are not to be destroyed.
func (w *World) wanted(n Node, f Fence, journalled bool) bool {
	o := attach.DecideOwnership(f.fence(n), w.Static, w.found(), w.proof(n, f, journalled))
	return o == attach.OwnedHere || o == attach.OwnedUnproven
}

// discard is an administrator's word about writes that a node keeps. What a pod has open no
// node reports as kept.
func discard(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		f, journalled := m.Journal.Fence, m.Journal.State != NoEntry
		if !journalled {
			f = m.SSD.Fence
		}
		if !w.Consent || m.Pod || !m.SSD.Exists || m.SSD.Mode != Writeback ||
			attach.DecideOwnership(f.fence(n), w.Static, w.found(), w.proof(n, f, journalled)) != attach.OwnedUnproven {
			return "", false
		}
		m.Told = f
		w.abandon()
		return "", true
	}
}
