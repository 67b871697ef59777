package model

import (
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/volume"
)

// freezeAsk and freezeSaid are volume.FreezeRequest and volume.FreezeState, by number.
type (
	freezeAsk  uint8
	freezeSaid uint8
)

var (
	freezeAsks = []volume.FreezeRequest{"", volume.FreezeAsked, volume.FreezeOver}
	freezeSays = []volume.FreezeState{"", volume.FreezeFrozen, volume.FreezeHeld, volume.FreezeFailed}
)

const (
	noAsk freezeAsk = iota
	askFreeze
	askThaw
)

const (
	_ freezeSaid = iota
	saidFrozen
	saidHeld
	saidFailed
)

// guard is the process that freezes a filesystem, and what it leaves.
type guard struct {
	// Order is the token of its order, 0 once that was taken out.
	Order holdToken
	Phase guardPhase
}

// guardPhase is how far a guard has come; the zero value if there is no order.
type guardPhase uint8

const (
	_ guardPhase = iota
	// guardBegun has frozen nothing yet.
	guardBegun
	guardFrozen
	// guardHeld has thawed when its order was gone, guardOver because its time was over, or has
	// not frozen at all.
	guardHeld
	guardOver
	// guardKilled has left the filesystem frozen.
	guardKilled
)

// lives reports whether the process is there.
func (g guard) lives() bool { return g.Phase == guardBegun || g.Phase == guardFrozen }

// frozen reports whether the volume's filesystem is.
func (n *drained) frozen() bool { return n.Guard.Phase == guardFrozen || n.Guard.Phase == guardKilled }

// writable reports whether a pod's writes come to the origin of a volume that is to be frozen.
func (w *Cutting) writable() bool {
	return w.Freezes && w.Node.Pod && w.connected() && !w.Node.frozen()
}

// idle reports whether the plugin may decide what to do with the volume.
func (w *Cutting) idle() bool {
	n := &w.Node
	return n.Work.Op == noOp && (n.Guard == guard{} || w.Without&Guarded != 0)
}

// waits reports whether the node's next act waits for the guard, or for what its record asks.
func (w *Cutting) waits() bool {
	n := &w.Node
	switch k := n.Work; {
	case k.Op != cutFreeze:
		return n.Guard.lives() && w.Without&Guarded == 0
	case k.Step == 1:
		return n.Guard.Phase == guardBegun
	case k.Step == 3:
		return n.Guard.Phase == guardFrozen && w.asks(k.Seen.Hold)
	case k.Step == 5:
		return n.Guard.lives()
	}
	return false
}

// asks reports whether a freeze is asked for under a hold.
func (w *Cutting) asks(k holdToken) bool {
	r := &w.Record
	return !r.Gone && r.Hold == k && r.Ask == askFreeze
}

// freezeCut is a look of the node at what its record asks of the filesystem.
func freezeCut(w *Cutting) (string, bool) {
	n := &w.Node
	if !w.idle() || n.Down || w.Record.Gone {
		return "", false
	}
	f := attach.FreezeFacts{Entry: n.entry(), Record: *w.volume(w.Record), Freezes: true}
	f.Before = w.Record.Hold != 0 && n.Froze == w.Record.Hold && w.Without&Once == 0
	if n.Top != TopNone {
		f.Path = "/v"
	}
	n.Work = cutWork{Seen: held{Hold: w.Record.Hold}}
	switch step, _ := attach.DecideFreeze(f); step {
	case attach.FreezeNow:
		n.Work.Op = cutFreeze
	case attach.FreezeFailed:
		n.Work.Op, n.Work.Failed = cutUnfreezable, true
	default:
		n.Work = cutWork{}
		return "", false
	}
	return "", true
}

// orderFreeze writes the order and begins the guard.
func orderFreeze(w *Cutting) (string, bool) {
	w.Node.Froze = w.Node.Work.Seen.Hold
	w.Node.Guard = guard{Order: w.Node.Froze, Phase: guardBegun}
	return "", true
}

// awaitFreeze sees the guard's file.
func awaitFreeze(w *Cutting) (string, bool) {
	if n := &w.Node; n.Guard.Phase != guardFrozen && n.Guard.Phase != guardKilled {
		n.Work.Failed, n.Work.Step = true, 3
	}
	return "", true
}

func reportFrozen(w *Cutting) (string, bool) {
	if w.Record.Gone {
		w.Node.Work.Failed = true
		return "", true
	}
	w.Record.Told, w.Record.Said = w.Node.Work.Seen.Hold, saidFrozen
	return "", true
}

// whileAsked is the end of the request, or of the guard.
func whileAsked(w *Cutting) (string, bool) {
	if k := &w.Node.Work; w.Record.Gone || w.asks(k.Seen.Hold) {
		k.Failed = true
	}
	return "", true
}

func withdrawFreeze(w *Cutting) (string, bool) {
	w.Node.Guard.Order = 0
	return "", true
}

// clearFreeze takes the guard's word, thaws what it has left, and forgets the order.
func clearFreeze(w *Cutting) (string, bool) {
	n := &w.Node
	if p := n.Guard.Phase; p != guardHeld && (p != guardOver || w.Without&GuardTells == 0) {
		n.Work.Failed = true
	}
	w.thaw(0)
	n.Guard = guard{}
	return "", true
}

func reportFreeze(w *Cutting) (string, bool) {
	if w.Record.Gone {
		return "", true
	}
	w.Node.Froze = 0
	w.Record.Told, w.Record.Said = w.Node.Work.Seen.Hold, saidHeld
	if w.Node.Work.Failed {
		w.Record.Said = saidFailed
	}
	return "", true
}

// thaw ends a freeze.
func (w *Cutting) thaw(p guardPhase) {
	if k := &w.Server.Cut; w.Node.frozen() && k.State == begun && w.Freezes {
		k.Thawed = true
	}
	w.Node.Guard.Phase = p
}

// freezeEvents are what the guard does, and who ends what it has left.
func freezeEvents() []eventOf[Cutting] {
	out := []eventOf[Cutting]{
		{"freeze is decided", freezeCut, ordinary, NoNode},
		{"guard freezes", func(w *Cutting) (string, bool) {
			g := &w.Node.Guard
			if g.Phase != guardBegun {
				return "", false
			}
			g.Phase = guardFrozen
			return "", true
		}, ordinary, NoNode},
		{"guard sees the end of its order", func(w *Cutting) (string, bool) {
			g := w.Node.Guard
			switch {
			case g.Order != 0 || !g.lives():
				return "", false
			case g.Phase == guardBegun:
				w.thaw(guardOver)
			default:
				w.thaw(guardHeld)
			}
			return "", true
		}, ordinary, NoNode},
		{"guard's time is over", func(w *Cutting) (string, bool) {
			ok := w.Node.Guard.lives()
			if ok {
				w.thaw(guardOver)
			}
			return "", ok
		}, ordinary, NoNode},
		{"guard is killed", func(w *Cutting) (string, bool) {
			g := &w.Node.Guard
			if !g.lives() || !spend(&w.Left.Kills) {
				return "", false
			}
			if g.Phase == guardBegun {
				g.Phase = guardOver
			} else {
				g.Phase = guardKilled
			}
			return "", true
		}, chance, NoNode},
		{"plugin ends a freeze of before", thawLeft, ordinary, NoNode},
	}
	return append(out, lateReports()...)
}

// lateReports are reports that fail, or arrive when nobody waits for their answer.
func lateReports() []eventOf[Cutting] {
	return []eventOf[Cutting]{
		{"answer to a report of Frozen is lost", func(w *Cutting) (string, bool) {
			n := &w.Node
			if n.Work.Op != cutFreeze || n.Work.Step != 2 || !spend(&w.Left.Lost) {
				return "", false
			}
			n.Late, n.LateFor = n.Work.Seen.Hold, w.Record
			n.Work.Failed, n.Work.Step = true, 4
			return "", true
		}, chance, NoNode},
		{"report of Frozen arrives late", func(w *Cutting) (string, bool) {
			n := &w.Node
			if n.Late == 0 || n.LateFor != w.Record {
				return "", false
			}
			w.Record.Told, w.Record.Said, n.Late, n.LateFor = n.Late, saidFrozen, 0, held{}
			return "", true
		}, ordinary, NoNode},
		{"last report of a freeze fails", func(w *Cutting) (string, bool) {
			n := &w.Node
			if n.Work.Op != cutFreeze || n.Work.Step != 6 || !spend(&w.Left.Lost) {
				return "", false
			}
			n.Work = cutWork{}
			return "", true
		}, chance, NoNode},
	}
}

// thawLeft is a plugin that begins: it takes the token out of what is left, and thaws when the
// guard has ended.
func thawLeft(w *Cutting) (string, bool) {
	n := &w.Node
	switch g := n.Guard; {
	case g == guard{} || n.Work.Op != noOp || w.Without&Left != 0:
		return "", false
	case g.Order != 0:
		n.Guard.Order = 0
	case g.lives():
		return "", false
	default:
		w.thaw(0)
		n.Guard = guard{}
	}
	return "", true
}

// newPlugin is a process of the plugin that knows nothing of the one before; a report of that has
// arrived by then, or never does.
func (w *Cutting) newPlugin() {
	n := &w.Node
	n.Froze, n.Late, n.LateFor = 0, 0, held{}
}

// freezeInVain is a node that is waited for, and does not answer in time.
func freezeInVain(of func(*Cutting) *process) func(*Cutting) (string, bool) {
	return func(w *Cutting) (string, bool) {
		p := of(w)
		if p.Task != takeSnapshot || p.Next != stepAwait {
			return "", false
		}
		p.Next = stepUnfrozen
		return "", true
	}
}

// ask writes a request, unless the hold is over.
func (c cutter) ask(what freezeAsk) {
	if r := &c.w.Record; !r.Gone && r.Hold == c.Read.Hold {
		r.Ask = what
	}
}
