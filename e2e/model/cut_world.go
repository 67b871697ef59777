package model

import (
	"slices"
	"strconv"

	"github.com/nearflash/nearflash/pkg/volume"
)

// cutBlocks is the number of blocks in the world of snapshots: one tells no order. Writes go
// to one and the other in turn.
const cutBlocks = 2

// content is what each block has.
type content [cutBlocks]Version

// Cutting is a state of the world of snapshots: a volume of two blocks, its node, the storage
// server, and the controllers that cut it. The owner is always the same; World has the moves.
type Cutting struct {
	Record, Backup held
	// Saved is true once the API server was backed up.
	Saved  bool
	Server cutServer
	Node   drained
	// Leader is the controller. Old is one that has lost its leadership and does not know it,
	// or an order that is still under way when its call is over.
	Leader, Old process
	Mode        Mode
	Consent     bool
	// Stays is true if the pod does not leave by itself, Freezes if its filesystem is to be
	// frozen while it is cut.
	Stays, Freezes bool
	// Without are the mechanisms that are taken out.
	Without CutFix
	Truth   cutTruth
	Left    CutBudget
}

// CutBudget bounds how often each chance may happen.
type CutBudget struct {
	Writes, Crashes, Kills, Stops, Forces   uint8
	Leaders, Lost, Restores, Ends, Removals uint8
}

// cutTruth is what nobody in the world knows as a whole, and the checks go by.
type cutTruth struct {
	// Acked is the last acknowledged write, Given the last one that somebody has abandoned.
	Acked, Given Version
	// Asked is true once the snapshot was asked for, when Before was acknowledged.
	Asked  bool
	Before Version
	// Owed is true while the pod's writes are owed to it.
	Owed bool
	// Unwanted is true once the snapshot was deleted.
	Unwanted bool
}

// holdToken is a hold's, or that of the flush for it; they are random, and 0 is none.
type holdToken uint8

func (k holdToken) String() string {
	if k == 0 {
		return ""
	}
	return "hold-" + strconv.Itoa(int(k))
}

// held is the CachedVolume.
type held struct {
	Published, Dirty bool
	// GivenUp is true if writes were abandoned.
	GivenUp bool
	// Old is true of a record that was not judged since the last takeover. Gone is true when
	// the volume was deleted.
	Old, Gone         bool
	Hold, Flush, Done holdToken
	// Ask is what the hold asks of the filesystem, Said what the node has answered to the hold
	// Told.
	Ask  freezeAsk
	Said freezeSaid
	Told holdToken
}

// hold puts a hold there that asks for nothing yet, or ends the one that is there.
func (r *held) hold(k holdToken) { r.Hold, r.Ask = k, noAsk }

// cutServer is the storage server.
type cutServer struct {
	Origin   content
	Admitted bool
	Cut      cut
}

// cut is the snapshot on the storage server.
type cut struct {
	State    cutState
	Hold     holdToken
	Accepted bool
	Content  content
	// Thawed is true if a pod could write between the order and the cut.
	Thawed bool
}

// cutState is how far a cut has come.
type cutState uint8

const (
	noCut cutState = iota
	// begun is a cut in the metadata of the volume group, of which the kernel may not know.
	begun
	made
)

// drained is the node.
type drained struct {
	Journal cutJournal
	SSD     cutSSD
	Top     Top
	Pod     bool
	// Attached is true while the kubelet has the volume attached.
	Attached bool
	// Down is true until the node boots again.
	Down  bool
	Work  cutWork
	Guard guard
	// Froze is the hold that this process has frozen the filesystem for, and Late a report of
	// Frozen that is under way, with the record that it is for.
	Froze, Late holdToken
	LateFor     held
}

// cutJournal is the entry of the volume.
type cutJournal struct {
	State            State
	Mode             Mode
	Activated, Clean bool
	Marked, SameBoot bool
	FlushDone        holdToken
}

// cutSSD is the volume's cache.
type cutSSD struct {
	Exists               bool
	Mode                 Mode
	Cached               content
	Dirty                [cutBlocks]bool
	Blank, Shut, Stopped bool
}

// clean tells that the origin has everything.
func (s cutSSD) clean() bool { return s.Dirty == [cutBlocks]bool{} }

// startCut is a volume that nobody has had yet.
func startCut(mode Mode, left CutBudget) Cutting { return Cutting{Mode: mode, Left: left} }

func (w Cutting) staying() Cutting         { w.Stays = true; return w }
func (w Cutting) freezing() Cutting        { w.Freezes = true; return w }
func (w Cutting) consenting() Cutting      { w.Consent = true; return w }
func (w Cutting) without(f CutFix) Cutting { w.Without |= f; return w }

// running is the world with a pod.
func (w Cutting) running() Cutting { return behind(w, cutEvents(), podRuns) }

// podRuns are the steps to a pod that runs.
var podRuns = []string{"publish", "stage is decided", "4 x next act of the node"}

// cutFence is the only ownership.
var cutFence = volume.Fence{UID: "u1", Generation: 1, Node: "a"}

// volume is the production value.
func (w *Cutting) volume(r held) *volume.Volume {
	if r.Gone {
		return nil
	}
	v := &volume.Volume{
		ID: "v", Spec: volume.Spec{Mode: modes[w.Mode], AcceptNodeLoss: w.Mode == Writeback}, Fence: cutFence,
		Published: r.Published, PossiblyDirty: r.Dirty, GivenUp: r.GivenUp, FlushRequest: r.Flush.String(), FlushDone: r.Done.String(),
	}
	if r.Hold != 0 {
		v.Hold = &volume.Hold{Name: "s", Token: r.Hold.String(), Freeze: freezeAsks[r.Ask]}
	}
	v.Freeze = volume.FreezeReport{Token: r.Told.String(), State: freezeSays[r.Said]}
	return v
}

// connected reports whether the node's I/O reaches the origin.
func (w *Cutting) connected() bool { return w.Server.Admitted }

// tokens are all places that know one.
func (w *Cutting) tokens() [21]*holdToken {
	r, b, n, l, o := &w.Record, &w.Backup, &w.Node, &w.Leader, &w.Old
	return [...]*holdToken{
		&r.Hold, &r.Flush, &r.Done, &r.Told, &b.Hold, &b.Flush, &b.Done, &b.Told, &n.Guard.Order, &n.Froze, &n.Late,
		&n.Journal.FlushDone, &n.Work.Seen.Flush, &n.Work.Seen.Hold, &w.Server.Cut.Hold,
		&l.Ours, &l.Seen.Hold, &l.Read.Hold, &o.Ours, &o.Seen.Hold, &o.Read.Hold,
	}
}

// normal implements explorable.
func (w *Cutting) normal() {
	late := w.Node.Late != 0 && w.Node.LateFor == w.Record
	w.Node.LateFor = held{}
	if !late {
		w.Node.Late = 0 // the record has been written since
	}
	var names [256]holdToken
	next := holdToken(1)
	for _, k := range w.tokens() {
		if *k != 0 && names[*k] == 0 {
			names[*k] = next
			next++
		}
		*k = names[*k]
	}
	if late {
		w.Node.LateFor = w.Record
	}
}

// draw is a token that nobody knows yet.
func (w *Cutting) draw() holdToken {
	all := w.tokens()
	return *slices.MaxFunc(all[:], func(a, b *holdToken) int { return int(*a) - int(*b) }) + 1
}

// busy implements explorable.
func (w *Cutting) busy() Node {
	if k := w.Node.Work; k.Op != noOp && cutActs[k.Op][k.Step].local {
		return A
	}
	return NoNode
}

// ofUse implements explorable: the snapshot that was asked for is there, nothing is held any
// more, and the pod writes as the record asks; or nobody wants it.
func (w *Cutting) ofUse() bool {
	c := w.Server.Cut
	done := c.Accepted || c.State == noCut && (!w.Truth.Asked || w.Truth.Unwanted || w.Record.Gone)
	switch {
	case w.Record.Hold != 0 || !done:
		return false
	case w.Record.Gone:
		return w.Node.Top == TopNone && w.Node.SSD.clean()
	}
	n := &w.Node
	return n.Guard == guard{} && n.Pod && n.Attached && w.Truth.Owed && w.Record.Published && w.connected() && n.Top == w.Mode.top()
}

// canonical implements explorable.
func (w *Cutting) canonical() Cutting {
	c := *w
	c.Left, c.Backup, c.Saved = CutBudget{}, held{}, false
	c.normal()
	return c
}

// judge compares the accepted snapshot with what was acknowledged. Writes that were abandoned
// may be in it or not.
func (w *Cutting) judge() string {
	t, c := w.Truth, w.Server.Cut.Content
	if !w.Server.Cut.Accepted || t.Unwanted {
		return ""
	}
	if w.Server.Cut.Thawed {
		return notFrozen
	}
	newest := slices.Max(c[:])
	for b, has := range c {
		if last := lastOf(b, t.Before); last > t.Given && has < last {
			return lacksBefore
		}
		if last := lastOf(b, newest); last > t.Given && has < last {
			return noPrefix
		}
	}
	return ""
}

// lastOf is the last write up to v that went to a block.
func lastOf(block int, v Version) Version {
	if v%cutBlocks != Version(block) && v > 0 {
		v--
	}
	return v
}
