package model

// The acts of the lists in node.go, each as production does it.

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
	j.Reserved, j.Inherited = m.Work.Plan.Reserved, m.Work.Plan.Inherited
	m.Journal = j
	return "", true
}

// login connects the origin, and compares the LUN with the ownership (checkLUN).
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

// podBegins starts a pod if the kubelet waits for the volume. It calls NodePublishVolume behind
// the stage.
func (w *World) podBegins(n Node) {
	if m := w.at(n); !m.Work.Plan.Unheard && w.admits(n) {
		m.Pod, w.Truth.Owner = true, n
	}
}

// publish is NodePublishVolume for another pod. To a kubelet that has the volume staged it
// comes without a stage.
func publish(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if !m.Pod || m.Attached == (Fence{}) || w.Truth.Owner == n || !w.admits(n) {
			return "", false
		}
		w.Truth.Owner = n
		return "", true
	}
}

// admits is NodePublishVolume's look at the record: admit, and keepMark.
func (w *World) admits(n Node) bool {
	r, j := w.record(), &w.at(n).Journal
	named := r.names(n, j.Fence) && r.Published
	if r.UID != 0 && w.Without&Admits == 0 && (!named || j.Lost) {
		return false
	}
	if named && w.Without&Kept == 0 && j.Mode == Writeback && j.State == Staged {
		r.Dirty, j.Marked = true, true
	}
	return true
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
		if w.Without&Leaves == 0 && !m.entry(n).MayBeDirty() && !(j.Marked && r.names(n, j.Fence) && r.Dirty) && !(r.names(n, j.Fence) && r.Published) {
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
