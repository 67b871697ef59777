package model

import "github.com/nearflash/nearflash/pkg/reservation"

// key is that of an ownership.
func (f Fence) key() reservation.Key {
	if f == (Fence{}) {
		return 0
	}
	return reservation.KeyOf(uids[f.UID], int64(f.Generation))
}

// reserves reports whether ownership is fenced by reservations.
func (w *World) reserves() bool { return w.Static && w.Without&Reservations == 0 }

// lun is what a node's path shows of the LUN's reservation.
func (w *World) lun(n Node) reservation.Facts {
	s := &w.Server
	f := reservation.Facts{Own: w.at(n).Journal.Fence.key(), Paths: 1, Found: s.Holder != Fence{}}
	for _, k := range s.Keys {
		if k != (Fence{}) {
			f.Keys = append(f.Keys, k.key())
		}
	}
	if f.Found {
		f.Held = reservation.Held{Key: s.Holder.key(), Type: reservation.WriteExclusiveRegistrantsOnly}
	}
	return f
}

// take registers a node, reserves the LUN for it and preempts everybody else.
func (w *World) take(n Node) {
	j := &w.at(n).Journal
	w.Server.Holder, w.Server.Keys = j.Fence, [2]Fence{}
	w.Server.Keys[n-1] = j.Fence
	j.Reserved = true
}

// reserve is what stage does before it uses a path.
func (w *World) reserve(n Node) bool {
	f := w.lun(n)
	step, _ := reservation.DecideTake(f)
	if step == reservation.StepForeign || step == reservation.StepLater {
		return false
	}
	j := &w.at(n).Journal
	j.Inherited = f.Before().Inherited(j.Reserved && !j.Inherited)
	w.take(n)
	return true
}

// reserveAgain is what repair does before it flushes.
func (w *World) reserveAgain(n Node) bool {
	j := &w.at(n).Journal
	f := w.lun(n)
	switch step, _ := reservation.DecideReturn(f, w.entitled(n), j.Reserved); step {
	case reservation.StepPreempt, reservation.StepReserve:
		j.Inherited = j.Inherited || f.Before().Inherited(j.Reserved)
		w.take(n)
		return true
	case reservation.StepLost:
		j.Lost = true
	}
	return false
}

// entitled is what the record says of a node's ownership.
func (w *World) entitled(n Node) reservation.Entitled {
	r, f := w.record(), w.at(n).Journal.Fence
	switch {
	case r.names(n, f) && w.lastStage(n):
		return reservation.EntitledYes
	case r.UID == f.UID && r.Generation > f.Generation:
		return reservation.EntitledNo
	}
	return reservation.EntitledUnknown
}

// lastStage reports whether the journal knows the record's last stage, and no other is about to
// be. Without activations it is believed.
func (w *World) lastStage(n Node) bool {
	return w.Without&Activations != 0 || w.shown().LastStage(w.at(n).Journal.Act.activation())
}

// watch is the owner's look at its reservation.
func watch(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		m := w.at(n)
		if !w.reserves() || m.Work.Op != Idle || m.Session == 0 || !m.Journal.Reserved || m.Journal.Lost ||
			m.Journal.State != Staged && m.Journal.State != Flushing {
			return "", false
		}
		switch step, _ := reservation.DecideWatch(w.lun(n), w.entitled(n)); step {
		case reservation.StepLost:
			m.Journal.Lost = true
			if m.Top != TopNone {
				m.swap(TopError)
			}
		case reservation.StepNothing:
			return "", false
		default:
			w.take(n)
		}
		return "", true
	}
}

// give ends a node's registration.
func (w *World) give(n Node) {
	s, f := &w.Server, w.at(n).Journal.Fence
	if !w.reserves() || s.Keys[n-1] != f || f == (Fence{}) || w.at(n).Journal.Inherited && w.Without&Stays == 0 {
		return
	}
	s.Keys[n-1], w.at(n).Journal.Reserved = Fence{}, false
	if s.Holder == f {
		s.Holder = Fence{}
	}
}
