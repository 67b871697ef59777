package model

// cutEvents are all that may happen in the world of snapshots.
func cutEvents() []eventOf[Cutting] {
	leader, old := func(w *Cutting) *process { return &w.Leader }, func(w *Cutting) *process { return &w.Old }
	out := []eventOf[Cutting]{
		{"snapshot is asked for", beginCut(takeSnapshot), ordinary, NoNode},
		{"controller: next act", cutNext(leader), ordinary, NoNode},
		{"first controller: next act", cutNext(old), ordinary, NoNode},
		{"hold expires", expireHold, ordinary, NoNode},
		{"cuts are swept", beginCut(sweepCuts), ordinary, NoNode},
		{"node is waited for in vain", freezeInVain(leader), ordinary, NoNode},
		{"node is waited for in vain by the first controller", freezeInVain(old), ordinary, NoNode},
		{"controller settles", func(w *Cutting) (string, bool) { return "", settleCut(w) }, ordinary, NoNode},
		{"another controller leads, and the first acts on", deposedCut, chance, NoNode},
		{"call ends, and its order goes on", orderGoesOn, chance, NoNode},
		{"controller ends", func(w *Cutting) (string, bool) {
			ok := (w.Leader.Task != noTask || w.Leader.Ours != 0) && spend(&w.Left.Kills)
			w.Leader = process{}
			return "", ok
		}, chance, NoNode},
		{"storage server ends in the middle of a cut", serverStops, chance, NoNode},
		{"LVM goes on with what was cut off", lvmGoesOn, chance, NoNode},
		{"snapshot is deleted", beginCut(dropSnapshot), chance, NoNode},
		{"volume is deleted", deleteCutVolume, chance, NoNode},
		{"API server is backed up", func(w *Cutting) (string, bool) {
			ok := !w.Saved && w.Left.Restores > 0
			w.Saved, w.Backup = true, w.Record
			return "", ok
		}, chance, NoNode},
		{"API server is restored", restoreCutRecord, chance, NoNode},
		{"administrator gives the writes up", abandonCut, remedy, NoNode},
	}
	first := len(out)
	out = append(out, cutNodeEvents()...)
	for i := first; i < len(out); i++ {
		out[i].on = A
	}
	return out
}

// cutNodeEvents are what happens on the node.
func cutNodeEvents() []eventOf[Cutting] {
	out := []eventOf[Cutting]{
		{"publish", publishCut, ordinary, NoNode},
		{"unpublish", unpublishCut, ordinary, NoNode},
		{"stage is decided", stageCut, ordinary, NoNode},
		{"change is decided", changeCut, ordinary, NoNode},
		{"unstage or repair looks", downCut, ordinary, NoNode},
		{"next act of the node", nodeNext, ordinary, NoNode},
		{"another pod begins", anotherPod, ordinary, NoNode},
		{"pod writes", writeCut, chance, NoNode},
		{"pod ends", func(w *Cutting) (string, bool) {
			n := &w.Node
			ok := n.Pod && n.Attached && !w.Stays
			n.Pod, n.Attached = false, false
			return "", ok
		}, ordinary, NoNode},
		{"kubelet gives a stage up", func(w *Cutting) (string, bool) {
			n := &w.Node
			ok := !n.Pod && n.Attached && !w.Stays
			n.Attached = false
			return "", ok
		}, ordinary, NoNode},
		{"forced detach", func(w *Cutting) (string, bool) {
			n := &w.Node
			ok := n.Pod && n.Attached && spend(&w.Left.Forces)
			n.Attached = false // the pod goes on
			return "", ok
		}, chance, NoNode},
		{"kubelet ends a pod that it had lost", func(w *Cutting) (string, bool) {
			ok := w.Node.Pod && !w.Node.Attached
			w.Node.Pod = false
			return "", ok
		}, ordinary, NoNode},
		{"plugin is killed", func(w *Cutting) (string, bool) {
			ok := w.Node.Work.Op != noOp && spend(&w.Left.Kills)
			if ok {
				w.Node.Work = cutWork{}
				w.newPlugin()
			}
			return "", ok
		}, chance, NoNode},
		{"crash", func(w *Cutting) (string, bool) {
			n := &w.Node
			ok := !n.Down && n.Top != TopNone && spend(&w.Left.Crashes)
			n.Top, n.Pod, n.Work, n.Down, n.Journal.SameBoot, n.Guard = TopNone, false, cutWork{}, true, false, guard{}
			w.newPlugin()
			return "", ok
		}, chance, NoNode},
		{"node boots", func(w *Cutting) (string, bool) {
			ok := w.Node.Down
			w.Node.Down = false
			return "", ok
		}, ordinary, NoNode},
	}
	for b := range cutBlocks {
		out = append(out, eventOf[Cutting]{"cache writes back block " + string(rune('0'+b)), writeBackCut(b), ordinary, NoNode})
	}
	return append(out, freezeEvents()...)
}

// publishCut and unpublishCut are the controller's, at once: World has their acts.
func publishCut(w *Cutting) (string, bool) {
	r, n := &w.Record, &w.Node
	if r.Gone || n.Attached || n.Down {
		return "", false
	}
	if r.Hold != 0 && !r.Published && w.Without&Attached == 0 {
		r.Told, r.Said = r.Hold, saidFailed
	}
	r.Published, w.Server.Admitted, n.Attached = true, true, true
	return "", true
}

func unpublishCut(w *Cutting) (string, bool) {
	if r := &w.Record; r.Gone || !r.Published || w.Node.Attached {
		return "", false
	}
	w.Record.Published = false
	return "", true
}

// expireHold ends a hold, at whatever time.
func expireHold(w *Cutting) (string, bool) {
	ok := w.Record.Hold != 0 && w.Without&Expires == 0
	w.Record.hold(0)
	return "", ok
}

// restoreCutRecord is a restore of etcd, and the takeover of the storage server that follows:
// orders of before it are refused.
func restoreCutRecord(w *Cutting) (string, bool) {
	if !w.Saved || w.Record.Gone || w.Record == w.Backup || !spend(&w.Left.Restores) {
		return "", false
	}
	if c := w.cutting(); c != nil {
		return "", false // it has the lock of the server, and ends first
	}
	w.Record = w.Backup
	w.Record.Old = true
	ours := w.Leader.Ours
	if w.Leader, w.Old = (process{}), (process{}); w.Without&Takeovers != 0 {
		w.Leader.Ours = ours
	}
	return "", true
}

func abandonCut(w *Cutting) (string, bool) {
	if r := w.Record; r.Published || !r.Dirty || !w.Consent {
		return "", false
	}
	w.Record.Dirty, w.Record.GivenUp = false, true
	w.Truth.Given, w.Truth.Owed = w.Truth.Acked, false
	return "", true
}

// anotherPod comes to a kubelet that has the volume staged (admit).
func anotherPod(w *Cutting) (string, bool) {
	n, r := &w.Node, &w.Record
	if !n.Pod || !n.Attached || w.Truth.Owed || r.Gone || !r.Published {
		return "", false
	}
	if _, ok := markFor(journalMode)(w); n.Journal.State == Staged && !ok {
		return "", false
	}
	w.Truth.Owed = true
	return "", true
}

// writeCut is a write of the pod. One to a block that is dirty goes to the SSD alone in every
// mode (map_bio of drivers/md/dm-cache-target.c).
func writeCut(w *Cutting) (string, bool) {
	n, t := &w.Node, &w.Truth
	if !n.Pod || !t.Owed || n.Top == TopNone || n.frozen() || w.Left.Writes == 0 {
		return "", false
	}
	v := t.Acked + 1
	b := v % cutBlocks
	through := n.Top != TopWriteback && !n.SSD.Dirty[b]
	if through && !w.connected() {
		return "", false
	}
	w.Left.Writes--
	t.Acked, n.SSD.Cached[b], n.SSD.Dirty[b] = v, v, !through
	if through {
		w.Server.Origin[b] = v
	}
	return "", true
}

// writeBackCut is the kernel that writes a dirty block back by itself, in whatever order.
func writeBackCut(b int) func(*Cutting) (string, bool) {
	return func(w *Cutting) (string, bool) {
		n := &w.Node
		if n.Top <= TopLinear || !n.SSD.Dirty[b] || !w.connected() {
			return "", false
		}
		if n.SSD.Cached[b] < w.Server.Origin[b] {
			return overwritten, true
		}
		w.Server.Origin[b], n.SSD.Dirty[b] = n.SSD.Cached[b], false
		return "", true
	}
}
