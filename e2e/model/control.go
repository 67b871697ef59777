package model

import (
	"github.com/nearflash/nearflash/pkg/provision"
)

// Control is a controller at work: what it has read, and what it does next.
type Control struct {
	Task Task
	Node Node
	Step uint8
	// Read is the record and Access the server's answer that the decision rests on.
	Read   Record
	Access Server
	Claim  Claim
}

// Claim is provision.Claim.
type Claim struct {
	Generation uint8
	NewOwner   bool
}

// Task is what a controller was asked for.
type Task uint8

// The tasks.
const (
	NoTask Task = iota
	Publish
	Unpublish
	Settle
)

// controlActs are production's lists, in its order: Publish of publish.go, Unpublish and
// Settle of unpublish.go.
var controlActs = map[Task][]func(*World) bool{
	Publish:   {look, claimIt, revokeOthers, writeOwner, export, tell},
	Unpublish: {read, release, look, read, revokeAll},
	Settle:    {look, read, revokeAll},
}

func begin(t Task, n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		if w.Control.Task != NoTask || w.Record.UID == 0 || !w.asked(t, n) {
			return "", false
		}
		w.Control = Control{Task: t, Node: n}
		return "", true
	}
}

// asked tells whether Kubernetes would ask for a task: a volume is attached to one node
// at a time, and unpublished when the node has unstaged it, or by force.
func (w *World) asked(t Task, n Node) bool {
	other := A + B - n
	switch t {
	case Publish:
		return w.Nodes[n].Attached == (Fence{}) && w.Nodes[other].Attached == (Fence{})
	case Unpublish:
		return w.Nodes[n].Attached == (Fence{}) && w.Record.Owner == n && w.Record.Published
	default:
		return !w.Record.Published && !w.Record.Dirty && !w.Static && w.Server.Admitted != [3]uint8{}
	}
}

func control(w *World) (string, bool) {
	c := &w.Control
	if c.Task == NoTask {
		return "", false
	}
	list := controlActs[c.Task]
	if !list[c.Step](w) {
		*c = Control{}
		return "", true
	}
	if c.Step++; int(c.Step) == len(list) {
		*c = Control{}
	}
	return "", true
}

func look(w *World) bool {
	w.Control.Access = w.Server
	return true
}

func read(w *World) bool {
	w.Control.Read = w.Record
	return w.Record.UID != 0
}

// unknown is provision's unknownExport.
func (c *Control) unknown() (Node, uint8) {
	best, gen := NoNode, c.Read.Generation
	for _, n := range nodes {
		if g := c.Access.Admitted[n]; g > gen {
			best, gen = n, g
		}
	}
	return best, gen
}

// restoreOwner makes a record know the admission that it has forgotten.
func restoreOwner(w *World) (restored bool) {
	c := &w.Control
	n, gen := c.unknown()
	if n == NoNode || w.Mode != Writeback || w.Static {
		return false
	}
	if w.Record == c.Read {
		w.Record = Record{UID: c.Read.UID, Generation: gen, Owner: n, Dirty: true}
	}
	return true
}

func claimIt(w *World) bool {
	c := &w.Control
	if !read(w) || restoreOwner(w) {
		return false // decided anew, by the record as it is now
	}
	stored := int64(c.Access.Generation)
	if w.Static {
		stored = 0
	}
	claim, err := provision.DecideClaim(c.Read.volume(w.Mode), c.Node.String(), stored)
	c.Claim = Claim{Generation: uint8(claim.Generation), NewOwner: claim.NewOwner}
	return err == nil
}

func revokeOthers(w *World) bool {
	c := &w.Control
	if _, gen := c.unknown(); gen > c.Read.Generation {
		return false // it is logged in, as far as anybody knows
	}
	for _, n := range nodes {
		if c.Access.Admitted[n] != 0 && (n != c.Node || c.Claim.NewOwner) {
			w.Server.Admitted[n] = 0
		}
	}
	return true
}

func writeOwner(w *World) bool {
	c := &w.Control
	if w.Record != c.Read {
		return false
	}
	w.Record.Owner, w.Record.Generation, w.Record.Published = c.Node, c.Claim.Generation, true
	if c.Claim.NewOwner {
		w.Record.Dirty = false
	}
	return true
}

func export(w *World) bool {
	c := &w.Control
	other := A + B - c.Node
	if w.Static {
		return true
	}
	if c.Claim.Generation < w.Server.Generation || w.Server.Admitted[other] != 0 {
		return false
	}
	w.Server.Generation, w.Server.Admitted[c.Node] = c.Claim.Generation, c.Claim.Generation
	return true
}

// tell gives the publication to the kubelet, as it was written.
func tell(w *World) bool {
	c := &w.Control
	w.Nodes[c.Node].Attached = Fence{UID: c.Read.UID, Generation: c.Claim.Generation}
	return true
}

func release(w *World) bool {
	if w.Record != w.Control.Read || w.Record.Owner != w.Control.Node {
		return false
	}
	w.Record.Published = false
	return !w.Record.Dirty && !w.Static
}

func revokeAll(w *World) bool {
	c := &w.Control
	if c.Read.Published || c.Read.Dirty || restoreOwner(w) {
		return false
	}
	for _, n := range nodes {
		if c.Access.Admitted[n] != 0 {
			w.Server.Admitted[n] = 0
		}
	}
	return true
}
