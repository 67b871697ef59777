package model

import "github.com/nearflash/nearflash/pkg/volume"

// write is one of the pod. What a pod writes that nobody wants any more is owed to
// nobody, but must not reach the origin beside the writes of the next one.
func write(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m, t := w.at(n), &w.Truth
		if !m.Pod || m.Top == TopNone || m.Top == TopError || w.Left.Writes == 0 {
			return "", false
		}
		through := m.Top != TopWriteback
		if through && !w.connected(n) {
			return "", false
		}
		if through && w.taken(n) {
			return twoWriters, true
		}
		if t.Owner != n {
			return "", false
		}
		w.Left.Writes--
		t.Acked++
		t.Floor = t.Acked
		if through {
			t.Origin = t.Acked
		}
		if m.Top != TopLinear {
			m.SSD.Cached, m.SSD.Dirty = t.Acked, !through
		}
		return "", true
	}
}

// taken reports whether a pod on the other node began after this node's: what this node's
// writes to the origin is older, also when the other one has left.
func (w *World) taken(n Node) bool { return w.Truth.Owner == n.other() }

// readPod is no change; it only judges.
func readPod(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		if m := w.at(n); !m.Pod || !w.record().names(n, m.Journal.Fence) || !w.record().Published {
			return "", false
		}
		if v, ok := w.sees(n); ok && v < w.Truth.Floor {
			return stale, true
		}
		return "", false
	}
}

// background is the kernel that writes dirty blocks back by itself.
func background(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if m.Top < TopWritethrough || m.Top == TopError || !m.SSD.Dirty || !w.connected(n) {
			return "", false
		}
		return writeBack(w, n)
	}
}

// flushLive is a flush that was asked for beside a running pod: the cleaner, and the
// table of before.
func flushLive(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if m.Top != TopWriteback || !w.connected(n) || !spend(&w.Left.Swaps) {
			return "", false
		}
		violation, ok := writeBack(w, n)
		m.swap(TopWriteback)
		return violation, ok
	}
}

// commit is the kernel that writes its map.
func commit(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if m.Top <= TopLinear || m.Top == TopError || !m.SSD.Shut {
			return "", false
		}
		m.SSD.Shut, m.SSD.Marks = false, false
		return "", true
	}
}

func promote(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		cache := m.Top == TopWritethrough || m.Top == TopWriteback
		if !m.Pod || !cache || m.SSD.Cached != 0 || !w.connected(n) || w.Truth.Origin == 0 {
			return "", false
		}
		m.SSD.Cached = w.Truth.Origin
		return "", true
	}
}

// stop is the end of a machine, at any moment.
func (m *Machine) stop() {
	m.Journal.SameBoot = false
	m.Session, m.Top, m.Pod, m.Work = 0, TopNone, false, Work{}
}

func crash(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if m.Top == TopNone && m.Session == 0 && m.Work.Op == Idle || !spend(&w.Left.Crashes) {
			return "", false
		}
		m.stop()
		return "", true
	}
}

// restoreImage puts an earlier state of its disks on a node. What only the disks had
// is lost by consent.
func restoreImage(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if n != A || w.Image == (Disks{}) || w.Image == m.Disks || w.young() || !spend(&w.Left.Images) {
			return "", false
		}
		if m.SSD.Dirty {
			w.abandon()
		}
		m.stop()
		m.Disks = w.Image
		m.Journal.SameBoot = false
		return "", true
	}
}

// young tells an image that was taken while the cache could be dirty, and so lately that
// the count has not grown since: it is not told from the disks themselves ("What
// remains").
func (w *World) young() bool {
	e := (&Machine{Disks: w.Image}).entry(A)
	return w.Without&Activations == 0 && e.MayBeDirty() && w.identity(w.Image.Journal.Act) != volume.IdentityPast
}

// swapDisks puts another machine in a node's place, that has its name, or the first one
// back. Nothing is lost by it.
func swapDisks(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if n != A || w.Left.Images > 0 || !spend(&w.Left.Spares) {
			return "", false
		}
		m.stop()
		m.Disks, w.Image = w.Image, m.Disks
		m.Journal.SameBoot = false
		return "", true
	}
}
