package model

// events are all that may happen.
func events() []event {
	out := []event{
		{"controller: next act", control},
		{"controller ends", func(w *World) (string, bool) {
			ok := w.Control.Task != NoTask && spend(&w.Left.Kills)
			w.Control = Control{}
			return "", ok
		}},
		{"controller settles", begin(Settle, NoNode)},
		{"API server is backed up", func(w *World) (string, bool) {
			ok := w.Backup.UID == 0 && w.Record.UID != 0 && w.Left.Restores > 0
			w.Backup = w.Record
			return "", ok
		}},
		{"API server is restored", func(w *World) (string, bool) {
			ok := w.Backup.UID != 0 && w.Backup != w.Record && spend(&w.Left.Restores)
			w.Record = w.Backup
			return "", ok
		}},
		{"record is removed by hand", func(w *World) (string, bool) {
			ok := w.Record.UID != 0 && spend(&w.Left.Removals)
			w.Record = Record{}
			return "", ok
		}},
		{"record is made anew", func(w *World) (string, bool) {
			ok := w.Record.UID == 0
			w.Record = Record{UID: 2}
			return "", ok
		}},
		{"administrator gives the writes up", abandon},
	}
	for _, n := range nodes {
		out = append(out, nodeEvents(n)...)
	}
	return out
}

func nodeEvents(n Node) []event {
	at := " on " + n.String()
	return []event{
		{"publish" + at, begin(Publish, n)},
		{"unpublish" + at, begin(Unpublish, n)},
		{"stage is decided" + at, stage(n)},
		{"unstage or repair looks" + at, down(n)},
		{"next act" + at, step(n)},
		{"pod writes" + at, write(n)},
		{"pod reads" + at, readPod(n)},
		{"cache writes back" + at, background(n)},
		{"cache promotes" + at, promote(n)},
		{"pod ends" + at, func(w *World) (string, bool) {
			m := &w.Nodes[n]
			ok := m.Pod && spend(&w.Left.Moves)
			m.Pod, m.Attached = false, Fence{}
			return "", ok
		}},
		{"forced detach" + at, func(w *World) (string, bool) {
			m := &w.Nodes[n]
			ok := m.Attached != (Fence{}) && spend(&w.Left.Forces)
			m.Attached = Fence{} // the pod goes on, if it runs
			return "", ok
		}},
		{"plugin is killed" + at, func(w *World) (string, bool) {
			m := &w.Nodes[n]
			ok := m.Work.Op != Idle && spend(&w.Left.Kills)
			m.Work = Work{}
			return "", ok
		}},
		{"crash" + at, crash(n)},
		{"image is taken" + at, func(w *World) (string, bool) {
			m := &w.Nodes[n]
			ok := n == A && w.Image == (Disks{}) && w.Left.Images > 0 && m.Journal.State != NoEntry
			w.Image = m.Disks
			return "", ok
		}},
		{"image is restored" + at, restoreImage(n)},
	}
}

func spend(left *uint8) bool {
	if *left == 0 {
		return false
	}
	*left--
	return true
}

func abandon(w *World) (string, bool) {
	if w.Record.Published || !w.Record.Dirty || !spend(&w.Left.Abandons) {
		return "", false
	}
	w.Record.Dirty = false
	w.giveUp()
	return "", true
}

// giveUp is consent to the loss of what is not on the origin.
func (w *World) giveUp() { w.Floor, w.Given = min(w.Floor, w.Origin), w.Acked }

// entitled tells whether the record is on a node's side, as the pod was started.
func (w *World) entitled(n Node) bool {
	m := &w.Nodes[n]
	return w.Record.Owner == n && w.Record.UID == m.Journal.Fence.UID && w.Record.Generation == m.Journal.Fence.Generation
}

func write(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m, other := &w.Nodes[n], &w.Nodes[A+B-n]
		if !m.Pod || m.Top == TopNone || w.Left.Writes == 0 {
			return "", false
		}
		v := w.Acked + 1
		if m.Top == TopWriteback {
			if !w.entitled(n) {
				return "", false // what a pod writes that nobody wants any more is no loss
			}
			m.SSD.Cached, m.SSD.Dirty = v, true
		} else {
			if !w.connected(n) {
				return "", false
			}
			if other.Pod && w.entitled(A+B-n) {
				return "two nodes write", true
			}
			w.Origin = v
			if m.Top != TopLinear {
				m.SSD.Cached, m.SSD.Dirty = v, false
			}
		}
		w.Left.Writes--
		w.Acked, w.Floor = v, v
		return "", true
	}
}

// readPod is no change; it only judges.
func readPod(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		if !w.Nodes[n].Pod || !w.entitled(n) || !w.Record.Published {
			return "", false
		}
		v, ok := w.read(n)
		if ok && v < w.Floor {
			return "a pod reads what is older than an acknowledged write", true
		}
		return "", false
	}
}

// background is the kernel that writes dirty blocks back by itself.
func background(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := &w.Nodes[n]
		if m.Top < TopWritethrough || !m.SSD.Dirty || !w.connected(n) {
			return "", false
		}
		return writeBack(w, n)
	}
}

func promote(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := &w.Nodes[n]
		if !m.Pod || m.Top != TopWritethrough && m.Top != TopWriteback || m.SSD.Cached != 0 || !w.connected(n) || w.Origin == 0 {
			return "", false
		}
		m.SSD.Cached = w.Origin
		return "", true
	}
}

func (m *Machine) stop() {
	if m.Top > TopLinear {
		m.SSD.Stopped = false
	}
	m.Boot++
	m.Session, m.Top, m.Pod, m.Work = 0, TopNone, false, Work{}
}

func crash(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := &w.Nodes[n]
		if m.Top == TopNone && m.Session == 0 && m.Work.Op == Idle || !spend(&w.Left.Crashes) {
			return "", false
		}
		m.stop()
		return "", true
	}
}

func restoreImage(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := &w.Nodes[n]
		if n != A || w.Image == (Disks{}) || w.Image == m.Disks || !spend(&w.Left.Images) {
			return "", false
		}
		// What only these disks had is lost by consent: an image was put over them.
		if m.SSD.Dirty {
			w.giveUp()
		}
		m.stop()
		m.Disks = w.Image
		m.SSD.Stopped = w.Image.SSD.Stopped
		return "", true
	}
}
