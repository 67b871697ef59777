package model

import (
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/volume"
)

// process is a controller: the hold that it has put on the record, and the call that it is at.
type process struct {
	Ours holdToken
	Task cutTask
	Step uint8
	// Last is true of an order whose call is over: nothing follows it.
	Last bool
	// Seen is the cut that was found, Admitted whether the server admits anybody, and Read the
	// record that was read.
	Seen     cut
	Admitted bool
	Read     held
	// Next is the step that was decided.
	Next cutStep
}

// cutTask is what a controller was asked for.
type cutTask uint8

const (
	noTask cutTask = iota
	takeSnapshot
	dropSnapshot
	sweepCuts
	cutTasks
)

// cutStep is provision.CutStep, by number; only of those that are a step of their own.
type cutStep uint8

const (
	stepSettle cutStep = iota + 1
	stepDrop
	stepAccept
	stepCut
	stepAnswer
	stepFreeze
	stepThaw
	stepAwait
	stepUnfrozen
)

// The steps of takeSnapshot that acts go back to.
const (
	lookStep  = 0
	orderStep = 2
	cutsStep  = 3
)

// cutter is a controller that acts.
type cutter struct {
	w *Cutting
	*process
}

// cutActsOf are production's lists, in its order: cut of cut.go, DeleteSnapshot of
// snapshot.go, sweepCut of sweep.go.
var cutActsOf = [cutTasks][]func(cutter) string{
	takeSnapshot: {cutter.look, cutter.decide, cutter.order, cutter.finishCut},
	dropSnapshot: {cutter.look, cutter.letGo, cutter.deleteCut},
	sweepCuts:    {cutter.look, cutter.judgeOver, cutter.dropOver},
}

// beginCut gives the controller a call, if somebody would make it.
func beginCut(t cutTask) func(*Cutting) (string, bool) {
	return func(w *Cutting) (string, bool) {
		p := &w.Leader
		switch {
		case p.Task != noTask:
			return "", false
		case t == takeSnapshot && (w.Truth.Unwanted || w.Server.Cut.Accepted && w.Record.Hold == 0),
			t == sweepCuts && (w.Without&Expires != 0 || w.Server.Cut.State == noCut || w.Server.Cut.Accepted),
			t == dropSnapshot && (!w.Truth.Asked || !w.Truth.Unwanted && !spend(&w.Left.Removals)):
			return "", false
		case t == takeSnapshot && !w.Truth.Asked:
			w.Truth.Asked, w.Truth.Before = true, w.Truth.Acked
		case t == dropSnapshot:
			w.Truth.Unwanted = true
		}
		p.Task = t
		// What it looks at first it has not seen before that.
		return cutter{w: w, process: p}.next(), true
	}
}

// cutNext takes the next act of a controller. Who is in the middle of a cut has the lock of the
// server.
func cutNext(of func(*Cutting) *process) func(*Cutting) (string, bool) {
	return func(w *Cutting) (string, bool) {
		p := of(w)
		if p.Task == noTask {
			return "", false
		}
		c := cutter{w: w, process: p}
		if c.toServer() && w.cutting() != nil && w.cutting() != p {
			return "", false
		}
		return c.next(), true
	}
}

func (c cutter) next() string {
	list := cutActsOf[c.Task]
	act := list[c.Step]
	c.Step++
	violation := act(c)
	if int(c.Step) == len(list) || c.Last && !(c.Step == cutsStep && c.Next == stepCut) {
		c.end()
	}
	return violation
}

// orders reports whether the next act is what was decided.
func (c cutter) orders() bool { return c.Step >= orderStep }

// toServer reports whether it is one of the storage server.
func (c cutter) toServer() bool {
	switch c.Next {
	case stepFreeze, stepThaw, stepAwait:
		return false
	case stepUnfrozen:
		return (c.Step == cutsStep) == c.endsFirst()
	}
	return c.orders()
}

// cutting is who is in the middle of a cut, nil if there is none.
func (w *Cutting) cutting() *process {
	for _, p := range []*process{&w.Leader, &w.Old} {
		if p.Task == takeSnapshot && p.Step == cutsStep && p.Next == stepCut {
			return p
		}
	}
	return nil
}

// end is the end of a call. Of the process, the hold is kept.
func (c cutter) end() {
	*c.process = process{Ours: c.Ours}
	if c.process == &c.w.Old {
		c.w.Old = process{}
	}
}

// again goes back to the first act.
func (c cutter) again() {
	c.Step, c.Seen, c.Read, c.Next, c.Admitted = lookStep, cut{}, held{}, 0, false
}

func (c cutter) look() string {
	if c.w.Without&CutFirst != 0 {
		c.Read = c.w.Record
		return ""
	}
	c.find()
	return ""
}

func (c cutter) find() {
	c.Seen, c.Admitted = c.w.Server.Cut, c.w.Server.Admitted
	c.Seen.Content = content{} // nobody asks for it
}

// decide reads the record, and decides by what was found before. A write of the record has a
// precondition on the version, so that it may as well come at once.
func (c cutter) decide() string {
	if c.w.Without&CutFirst != 0 {
		c.find()
	} else {
		c.Read = c.w.Record
	}
	step, err := provision.DecideCut(c.facts())
	if err != nil {
		c.end()
		return ""
	}
	r := &c.w.Record
	switch step {
	case provision.CutHold:
		c.Ours = c.w.draw()
		if r.hold(c.Ours); r.Published && (r.Flush == 0 || r.Flush == r.Done) {
			r.Flush = c.Ours
		}
		c.again()
	case provision.CutFlush:
		r.Flush = r.Hold
		c.again()
	case provision.CutAnswer:
		r.hold(0)
		c.Ours = 0
		c.end()
	case provision.CutSettle:
		c.Next = stepSettle
	case provision.CutDrop:
		c.Next = stepDrop
	case provision.CutAccept:
		c.Next = stepAccept
	case provision.CutCut:
		c.Next = stepCut
	case provision.CutFreeze:
		c.Next = stepFreeze
	case provision.CutThaw:
		c.Next = stepThaw
	case provision.CutAwaitFreeze:
		c.Next = stepAwait
	case provision.CutUnfrozen:
		c.Next = stepUnfrozen
	default: // the node drains
		c.end()
	}
	// An order names what it is for, and nothing else of what was found is asked for again.
	c.Seen, c.Read, c.Admitted = cut{Hold: c.Seen.Hold}, held{Hold: c.Read.Hold}, false
	if c.Next != stepDrop && c.Next != stepAwait && c.Next != stepUnfrozen {
		c.Seen.Hold = 0
	}
	return ""
}

// facts are what gatherCut finds.
func (c cutter) facts() provision.CutFacts {
	w, seen := c.w, c.Seen
	f := provision.CutFacts{Name: "s", Volume: "v", Record: w.volume(c.Read), Lost: w.Node.Down, Admitted: c.Admitted, Freeze: w.Freezes}
	if seen.State != noCut {
		f.Cut = &backend.Cut{ID: "s", Volume: "v", Hold: seen.Hold.String(), Done: seen.State == made || w.Without&Unfinished != 0, Accepted: seen.Accepted}
	}
	if f.Record == nil {
		return f
	}
	f.Ours = c.Read.Hold != 0 && (c.Read.Hold == c.Ours || w.Without&OwnHold != 0)
	if h := f.Record.Hold; w.Without&HeldBehind != 0 && h != nil && h.Freeze == volume.FreezeAsked && f.Record.Freeze.Token == h.Token && seen.State == made {
		h.Freeze, f.Record.Freeze.State = volume.FreezeOver, volume.FreezeHeld
	}
	if w.Without&Drained != 0 {
		f.Record.PossiblyDirty = false
	}
	if w.Without&(Drained|Flushes) != 0 && c.Read.Hold != 0 {
		f.Record.FlushDone = c.Read.Hold.String()
	}
	return f
}

// order sends what was decided to the storage server.
func (c cutter) order() string {
	s := &c.w.Server
	switch c.Next {
	case stepSettle:
		settleCut(c.w)
	case stepDrop:
		return c.drop(c.Seen.Hold)
	case stepAccept:
		return c.accept()
	case stepFreeze:
		c.ask(askFreeze)
	case stepThaw:
		c.ask(askThaw)
	case stepUnfrozen:
		return c.unfrozen(c.endsFirst())
	case stepCut:
		switch {
		case c.w.Record.Gone:
			c.end()
			return ""
		case s.Cut.State != made && (s.Cut.State == noCut || c.w.Without&Unfinished == 0):
			s.Cut = cut{State: begun, Hold: c.Read.Hold, Thawed: c.w.writable()} // also of one that was cut off
			return ""
		}
	}
	if c.Step == cutsStep {
		c.again()
	}
	return ""
}

// finishCut is the second half of a cut: its content is that of this moment; or what was not frozen
// is dropped, when its hold has ended.
func (c cutter) finishCut() (violation string) {
	if c.Next == stepUnfrozen {
		violation = c.unfrozen(!c.endsFirst())
		c.end()
		return violation
	}
	k := &c.w.Server.Cut
	k.State, k.Content, k.Thawed = made, c.w.Server.Origin, k.Thawed || c.w.writable()
	if c.w.Without&SecondLook != 0 && !c.Last {
		c.accept()
		return c.w.judge()
	}
	c.again()
	return ""
}

// accept names the hold.
func (c cutter) accept() string {
	k := &c.w.Server.Cut
	if k.State != noCut && (k.State == made || c.w.Without&Unfinished != 0) && (k.Hold == c.Read.Hold || c.w.Without&CutNames != 0) {
		k.Accepted = true
	}
	c.again()
	if k.State != made {
		return ""
	}
	return c.w.judge()
}

// drop names the hold, and leaves what was accepted.
func (c cutter) drop(hold holdToken) string {
	defer c.again()
	return c.dropNow(hold)
}

func (c cutter) endsFirst() bool { return c.w.Without&EndsFirst == 0 }

// unfrozen is one of both steps below a hold under which nothing was frozen.
func (c cutter) unfrozen(ends bool) string {
	switch {
	case ends && c.w.Record.Hold == c.Read.Hold:
		c.w.Record.hold(0)
	case !ends && c.Seen.Hold != 0:
		return c.dropNow(c.Seen.Hold)
	}
	return ""
}

func (c cutter) dropNow(hold holdToken) string {
	k := &c.w.Server.Cut
	lost := k.Accepted && !c.w.Truth.Unwanted
	if k.State != noCut && (k.Hold == hold && !k.Accepted || c.w.Without&CutNames != 0) {
		*k = cut{}
	} else {
		lost = false
	}
	if lost {
		return acceptedGone
	}
	return ""
}

func (c cutter) letGo() string {
	c.w.Record.hold(0)
	return ""
}

func (c cutter) deleteCut() string {
	c.w.Server.Cut = cut{}
	return ""
}

// judgeOver reads the record behind a look at the cut.
func (c cutter) judgeOver() string {
	if c.Seen.State == noCut || c.Seen.Accepted || !c.w.Record.Gone && c.w.Record.Hold == c.Seen.Hold {
		c.end()
	}
	return ""
}

func (c cutter) dropOver() string {
	violation := c.drop(c.Seen.Hold)
	c.end()
	return violation
}

// settleCut ends the access to a volume that is published nowhere, or brings its record up to
// the truth; the hold ends first then (settle, restoreOwner).
func settleCut(w *Cutting) bool {
	r := &w.Record
	switch {
	case r.Gone || r.Published || r.Dirty || !w.Server.Admitted:
		return false
	case r.Old && w.Mode == Writeback:
		r.hold(0)
		r.Dirty = true
	default:
		w.Server.Admitted = false
	}
	r.Old = false
	return true
}

// deposedCut is a new leader that is there while the one before it acts on.
func deposedCut(w *Cutting) (string, bool) {
	if w.Leader.Task == noTask || w.Old.Task != noTask || !spend(&w.Left.Leaders) {
		return "", false
	}
	w.Old, w.Leader = w.Leader, process{}
	return "", true
}

// orderGoesOn is a call that is given up while its order is under way.
func orderGoesOn(w *Cutting) (string, bool) {
	p := &w.Leader
	c := cutter{w: w, process: p}
	if p.Task != takeSnapshot || !c.orders() || w.Old.Task != noTask || !spend(&w.Left.Lost) {
		return "", false
	}
	w.Old = *p
	w.Old.Last = true
	c.end()
	return "", true
}

// serverStops ends nearflash-target in the middle of a cut, with the calls that wait for it.
func serverStops(w *Cutting) (string, bool) {
	p := w.cutting()
	if p == nil || !spend(&w.Left.Stops) {
		return "", false
	}
	cutter{w: w, process: p}.end()
	return "", true
}

// lvmGoesOn is LVM's next command on the pool, which makes what was cut off. That nobody counts
// as a cut, unless a mechanism is missing.
func lvmGoesOn(w *Cutting) (string, bool) {
	k := &w.Server.Cut
	if w.Without&Unfinished == 0 || k.State != begun || w.cutting() != nil {
		return "", false
	}
	k.State, k.Content = made, w.Server.Origin
	return w.judge(), true
}

// deleteCutVolume deletes the volume; the snapshot stays.
func deleteCutVolume(w *Cutting) (string, bool) {
	r := &w.Record
	if r.Gone || r.Published || w.Node.Attached || w.Leader.Task != noTask || !spend(&w.Left.Ends) {
		return "", false
	}
	w.Record, w.Server.Admitted = held{Gone: true}, false
	w.Truth.Given, w.Truth.Owed = w.Truth.Acked, false
	return "", true
}
