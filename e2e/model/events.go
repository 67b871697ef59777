package model

// events are all that may happen.
func events() []event {
	out := controlEvents()
	for _, n := range nodes {
		first := len(out)
		out = append(out, nodeEvents(n)...)
		out = append(out, podEvents(n)...)
		out = append(out, machineEvents(n)...)
		for i := first; i < len(out); i++ {
			out[i].on = n
		}
	}
	return append(out, etcdEvents()...)
}

// etcdEvents are what happens to API servers, and to who acts on them.
func etcdEvents() []event {
	return []event{
		{"controller: step to its epoch", swapEpoch(0), ordinary, NoNode},
		{"second cluster: step to its epoch", swapEpoch(1), ordinary, NoNode},
		{"controller swaps its epoch anew", swapAnew, chance, NoNode},
		{"administrator takes the server over", takeover, remedy, NoNode},
		{"another controller leads, and the first acts on", deposed, chance, NoNode},
		{"first controller: next act", controlOld, ordinary, NoNode},
		{"volume is not wanted any more", unwanted, chance, NoNode},
		{"administrator gives the writes up", abandon, remedy, NoNode},
		{"record is made anew", renew, remedy, NoNode},
		{"API server is backed up", func(w *World) (string, bool) {
			ok := w.Backup.UID == 0 && w.record().UID != 0 && w.Left.Restores+w.Left.Renewals+w.Left.Copies > 0
			w.Backup, w.BackupKnown, w.BackupEpochs = *w.record(), w.Known, w.Clusters[0].Epochs
			return "", ok
		}, chance, NoNode},
		{"API server is restored", func(w *World) (string, bool) {
			ok := w.Backup.UID != 0 && w.Backup != *w.record() && !w.Truth.Unwanted && spend(&w.Left.Restores)
			*w.record(), w.Known, w.Clusters[0].Epochs = w.Backup, w.BackupKnown, w.BackupEpochs
			w.record().Old = true
			// Controllers begin anew with it.
			w.Clusters[0].Control, w.Old, w.Clusters[0].Drawn, w.Clusters[0].Ready = Control{}, Control{}, false, false
			return "", ok
		}, chance, NoNode},
		{"record is restored under another UID", func(w *World) (string, bool) {
			ok := w.Backup.UID != 0 && w.record().UID == 0 && !w.Truth.Unwanted && spend(&w.Left.Renewals)
			*w.record(), w.Known = w.Backup, w.BackupKnown
			w.record().UID = 2
			return "", ok
		}, chance, NoNode},
		{"record is removed by hand", func(w *World) (string, bool) {
			ok := w.record().UID != 0 && spend(&w.Left.Removals)
			*w.record(), w.Known = Record{}, Acts{}
			return "", ok
		}, chance, NoNode},
		{"a second cluster begins from a copy of etcd", copied, chance, NoNode},
		{"second cluster: next act", control(1, false), ordinary, NoNode},
		{"second cluster: publish", begin(1, Publish, C), chance, NoNode},
		{"second cluster: unpublish from a", begin(1, Unpublish, A), chance, NoNode},
		{"second cluster: unpublish from b", begin(1, Unpublish, B), chance, NoNode},
		{"second cluster: settle", begin(1, Settle, NoNode), chance, NoNode},
		{"second cluster: delete", begin(1, Delete, NoNode), chance, NoNode},
	}
}

// controlEvents are the work of the controller.
func controlEvents() []event {
	return []event{
		{"controller: next act", control(0, false), ordinary, NoNode},
		{"controller: next act, and the answer is lost", control(0, true), chance, NoNode},
		{"controller ends", controllerEnds, chance, NoNode},
		{"controller settles", begin(0, Settle, NoNode), ordinary, NoNode},
		{"controller deletes", begin(0, Delete, NoNode), ordinary, NoNode},
	}
}

// nodeEvents are what programs do for or on a node.
func nodeEvents(n Node) []event {
	at := " on " + n.String()
	return []event{
		{"next act" + at, step(n), ordinary, NoNode},
		{"publish" + at, comeBack(n), ordinary, NoNode},
		{"move: publish" + at, move(n), chance, NoNode},
		{"unpublish" + at, begin(0, Unpublish, n), ordinary, NoNode},
		{"stage is decided" + at, stage(n), ordinary, NoNode},
		{"unstage or repair looks" + at, down(n), ordinary, NoNode},
		{"repair looks at a retained cache" + at, retainedCache(n), ordinary, NoNode},
		{"repair looks at an orphan" + at, orphan(n), ordinary, NoNode},
		{"administrator discards what is kept" + at, discard(n), remedy, NoNode},
	}
}

// podEvents are what pods, the kubelet and the kernel do on a node.
func podEvents(n Node) []event {
	at := " on " + n.String()
	return []event{
		{"pod writes" + at, write(n), chance, NoNode},
		{"pod reads" + at, readPod(n), chance, NoNode},
		{"cache writes back" + at, background(n), ordinary, NoNode},
		{"flush is asked for" + at, flushLive(n), chance, NoNode},
		{"reservation is looked at" + at, watch(n), ordinary, NoNode},
		{"count is due" + at, count(n), chance, NoNode},
		{"kernel writes the map" + at, commit(n), chance, NoNode},
		{"cache promotes" + at, promote(n), chance, NoNode},
		{"another pod begins" + at, publish(n), ordinary, NoNode},
		{"pod ends" + at, func(w *World) (string, bool) {
			m := w.at(n)
			ok := m.Pod && m.Attached != (Fence{})
			m.Pod, m.Attached = false, Fence{}
			return "", ok
		}, ordinary, NoNode},
		{"kubelet gives a stage up" + at, func(w *World) (string, bool) {
			m := w.at(n)
			ok := !m.Pod && m.Attached != (Fence{})
			m.Attached, m.Work.Plan.Unheard = Fence{}, m.Work.Op == OpStage || m.Work.Op == OpAdopt
			return "", ok
		}, ordinary, NoNode},
		{"forced detach" + at, func(w *World) (string, bool) {
			m := w.at(n)
			ok := m.Pod && m.Attached != (Fence{}) && spend(&w.Left.Forces)
			m.Attached = Fence{} // the pod goes on
			return "", ok
		}, chance, NoNode},
		{"kubelet ends a pod that it had lost" + at, func(w *World) (string, bool) {
			m := w.at(n)
			ok := m.Pod && m.Attached == (Fence{})
			m.Pod = false
			return "", ok
		}, ordinary, NoNode},
	}
}

// machineEvents are what befalls a node.
func machineEvents(n Node) []event {
	at := " on " + n.String()
	return []event{
		{"plugin is killed" + at, func(w *World) (string, bool) {
			m := w.at(n)
			ok := m.Work.Op != Idle && spend(&w.Left.Kills)
			m.Work = Work{}
			return "", ok
		}, chance, NoNode},
		{"crash" + at, crash(n), chance, NoNode},
		{"journal is lost" + at, func(w *World) (string, bool) {
			m := w.at(n)
			ok := m.Journal.State != NoEntry && m.Top == TopNone && spend(&w.Left.Journals)
			m.Journal, m.Work = Journal{}, Work{}
			return "", ok
		}, chance, NoNode},
		{"image is taken" + at, func(w *World) (string, bool) {
			m := w.at(n)
			ok := n == A && w.Image == (Disks{}) && w.Left.Images > 0 && m.Journal.State != NoEntry
			w.Image = m.Disks
			return "", ok
		}, chance, NoNode},
		{"image is restored" + at, restoreImage(n), chance, NoNode},
		{"a spare takes the name" + at, swapDisks(n), chance, NoNode},
	}
}

func spend(left *uint8) bool {
	if *left == 0 {
		return false
	}
	*left--
	return true
}

func controllerEnds(w *World) (string, bool) {
	c := &w.Clusters[0].Control
	ok := c.Task != NoTask && spend(&w.Left.Kills)
	*c = Control{}
	return "", ok
}

// renew is a new object for a volume whose own is lost.
func renew(w *World) (string, bool) {
	if w.record().UID != 0 || w.Truth.Unwanted {
		return "", false
	}
	w.record().UID = 2
	return "", true
}

func unwanted(w *World) (string, bool) {
	if w.Truth.Unwanted || w.at(A).Pod || w.at(B).Pod || !spend(&w.Left.Deletes) {
		return "", false
	}
	w.Truth.Unwanted = true
	w.abandon()
	return "", true
}

func abandon(w *World) (string, bool) {
	if r := w.record(); r.Published || !r.Dirty || !w.Consent {
		return "", false
	}
	w.record().Dirty, w.record().GivenUp = false, w.record().Generation
	w.abandon()
	return "", true
}

// abandon is consent to the loss of what is not on the origin.
func (w *World) abandon() {
	t := &w.Truth
	t.Floor, t.Given, t.Owner = min(t.Floor, t.Origin), t.Acked, NoNode
}
