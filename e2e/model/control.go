package model

import "github.com/nearflash/nearflash/pkg/provision"

// Control is a controller at work: what it has read, and what it does next.
type Control struct {
	Task Task
	Node Node
	Step uint8
	// Read is the record and Access the server's answer that the decision rests on.
	Read   Record
	Access Access
	Claim  Claim
}

// Access is backend.Access. A bit of Gone is set when an admission that was read is not
// there any more: it has ended, and whoever is admitted since is another.
type Access struct {
	Generation uint8
	Admitted   [3]uint8
	Gone       uint8
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
	Delete
	taskCount
)

// actor is a controller that acts: of which cluster, and with what in its memory.
type actor struct {
	w *World
	c *Cluster
	*Control
	// copied is true of the cluster that was made from a copy.
	copied bool
}

// controlAct is one step of a controller. done is true if the task ends here, because it
// has failed or has no more to do.
type controlAct func(a actor) (violation string, done bool)

// controlActs are production's lists, in its order: Publish of publish.go, Unpublish,
// Settle of unpublish.go, deleteServed of delete.go.
var controlActs = [taskCount][]controlAct{
	Publish:   {inspect, readAndClaim, revokeOthers, writeOwner, export, answer},
	Unpublish: {read, release, inspect, read, revokeAll},
	Settle:    {inspect, read, revokeAll},
	Delete:    {inspect, readUnused, markDeleting, endAll, deleteVolume, forgetRecord},
}

// begin gives a controller a task, if Kubernetes would.
func begin(cluster int, t Task, n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		c := &w.Clusters[cluster]
		if !c.Exists || c.Control.Task != NoTask || !w.asked(cluster, t, n) {
			return "", false
		}
		c.Control = Control{Task: t, Node: n}
		// What it looks at first it has not seen before that.
		return actor{w: w, c: c, Control: &c.Control, copied: cluster == 1}.next(false), true
	}
}

// move is a publication to another node than the owner: a pod that is placed anew.
func move(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		if r := w.record(); r.Owner == NoNode || r.Owner == n || !spend(&w.Left.Moves) {
			return "", false
		}
		return begin(0, Publish, n)(w)
	}
}

// comeBack is a publication to the owner, or the first one.
func comeBack(n Node) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		if r := w.record(); r.Owner != NoNode && r.Owner != n {
			return "", false
		}
		return begin(0, Publish, n)(w)
	}
}

// asked reports whether Kubernetes would ask for a task: a volume is attached to one node
// at a time, and unpublished when the node has unstaged it, or by force. The cluster
// of the copy has none of the nodes, and does as if they were lost.
func (w *World) asked(cluster int, t Task, n Node) bool {
	r := w.Clusters[cluster].Record
	away := cluster == 1 || n == NoNode || w.at(n).Attached == (Fence{})
	switch t {
	case Publish:
		free := cluster == 1 || w.at(A).Attached == (Fence{}) && w.at(B).Attached == (Fence{})
		return free && r.UID != 0 && !(cluster == 0 && w.Truth.Unwanted)
	case Unpublish:
		return away && r.UID != 0 && r.Owner == n && r.Published
	case Settle:
		return r.UID != 0 && !r.Published && !r.Dirty && !w.Static && w.Server.Admitted != [3]uint8{}
	case Delete:
		return r.UID != 0 && (w.Truth.Unwanted || cluster == 1 && !r.Published)
	}
	return false
}

// control takes the next act of a cluster's controller. With lost, the act is done and its
// answer does not come back.
func control(cluster int, lost bool) func(*World) (string, bool) {
	return func(w *World) (string, bool) {
		c := &w.Clusters[cluster]
		if c.Control.Task == NoTask || lost && !spend(&w.Left.Lost) {
			return "", false
		}
		return actor{w: w, c: c, Control: &c.Control, copied: cluster == 1}.next(lost), true
	}
}

// controlOld is the same of the one that has lost its leadership.
func controlOld(w *World) (string, bool) {
	if w.Old.Task == NoTask {
		return "", false
	}
	return actor{w: w, c: &w.Clusters[0], Control: &w.Old}.next(false), true
}

func (a actor) next(lost bool) string {
	list := controlActs[a.Task]
	violation, done := list[a.Step](a)
	if a.Step++; done || lost || int(a.Step) == len(list) {
		*a.Control = Control{}
	}
	return violation
}

// deposed is a new leader that is there while the one before it acts on.
func deposed(w *World) (string, bool) {
	c := &w.Clusters[0]
	if c.Control.Task == NoTask || w.Old.Task != NoTask || !spend(&w.Left.Leaders) {
		return "", false
	}
	w.Old, c.Control = c.Control, Control{}
	return "", true
}

func inspect(a actor) (string, bool) {
	if a.w.Static {
		return "", false
	}
	a.Access = Access{Generation: a.w.Server.Generation, Admitted: a.w.Server.Admitted}
	return "", a.w.Server.Deleted && a.Task != Delete
}

func read(a actor) (string, bool) {
	a.Read = a.c.Record
	return "", a.Read.UID == 0
}

// unknown is provision's unknownExport.
func (a actor) unknown(old bool) (Node, uint8) {
	best, gen := NoNode, a.Read.Generation
	for i, g := range a.Access.Admitted {
		if g > gen {
			best, gen = Node(i+1), g
		}
	}
	again := old && !a.Read.Published && !a.Read.Dirty && a.w.Without&Judged == 0
	if o := a.Read.Owner; again && best == NoNode && o != NoNode && gen != 0 && a.Access.Admitted[o-1] == gen {
		return o, gen
	}
	return best, gen
}

// restoreOwner makes a record know the admission that it has forgotten.
func (a actor) restoreOwner(old bool) (restored bool) {
	n, gen := a.unknown(old)
	if n == NoNode || a.w.Mode != Writeback || a.w.Static {
		return false
	}
	if a.c.Record == a.Read {
		a.c.Record = Record{UID: a.Read.UID, Generation: gen, Owner: n, Dirty: true, Deleting: a.Read.Deleting}
	}
	return true
}

func readAndClaim(a actor) (string, bool) {
	// To its owner a volume may come back whatever that one has of it.
	if _, gone := read(a); gone || a.Read.Deleting || a.restoreOwner(a.Read.Old && a.Read.Owner != a.Node) {
		return "", true // decided anew, by the record as it is now
	}
	stored := int64(a.Access.Generation)
	if a.w.Static {
		stored = 0
	}
	claim, err := provision.DecideClaim(a.Read.volume(a.w.Mode), a.Node.String(), stored)
	a.Claim = Claim{Generation: uint8(claim.Generation), NewOwner: claim.NewOwner}
	return "", err != nil
}

// revoke ends the admissions that were read, but that of keep.
func (a actor) revoke(keep Node) (string, bool) {
	if n, _ := a.unknown(a.Read.Old); n == C || n != NoNode && n != keep && a.w.at(n).Session != 0 {
		return "", true // it is logged in
	}
	violation := ""
	if !a.may() {
		return "", true
	}
	for i, g := range a.Access.Admitted {
		if n := Node(i + 1); g != 0 && n != keep {
			violation = firstOf(violation, a.endRead(n))
		}
	}
	return violation, false
}

// endRead ends the admission of a node that was read. One that there is since then is
// another, and has another name.
func (a actor) endRead(n Node) string {
	if a.Access.Gone&(1<<n) != 0 && a.w.Without&Names == 0 {
		return ""
	}
	return a.end(n)
}

// end ends what the server admits a node to.
func (a actor) end(n Node) string {
	if a.w.Server.Admitted[n-1] == 0 {
		return ""
	}
	a.w.Server.Admitted[n-1] = 0
	a.w.outdate(n)
	switch {
	case a.copied:
		return foreignEnd
	case n != C && a.w.record().Published && a.w.at(n).Attached != Fence{} && a.w.record().names(n, a.w.at(n).Attached):
		return shutOutOwner
	}
	return ""
}

// outdate notes with whoever has read the admission of a node that it is another now.
func (w *World) outdate(n Node) {
	for _, c := range []*Control{&w.Clusters[0].Control, &w.Clusters[1].Control, &w.Old} {
		if c.Access.Admitted[n-1] != 0 {
			c.Access.Gone |= 1 << n
		}
	}
}

func revokeOthers(a actor) (string, bool) {
	if a.Claim.NewOwner {
		return a.revoke(NoNode)
	}
	return a.revoke(a.Node)
}

func writeOwner(a actor) (string, bool) {
	if a.c.Record != a.Read {
		return "", true
	}
	r := &a.c.Record
	r.Owner, r.Generation, r.Published, r.Old = a.Node, a.Claim.Generation, true, a.Read.Old && !a.Claim.NewOwner
	if a.Claim.NewOwner {
		r.Dirty = false
	}
	a.Access, a.Read = Access{}, Record{UID: a.Read.UID} // of no use any more
	return "", false
}

func export(a actor) (string, bool) {
	s := &a.w.Server
	if a.w.Static {
		return "", false
	}
	for i, g := range s.Admitted {
		if Node(i+1) != a.Node && g != 0 {
			return "", true
		}
	}
	if s.Deleted || !a.may() || a.Claim.Generation < s.Generation {
		return "", true
	}
	s.Generation, s.Admitted[a.Node-1] = a.Claim.Generation, a.Claim.Generation
	a.w.outdate(a.Node)
	if a.copied {
		return foreignIn, true
	}
	return "", false
}

// answer gives the publication to the kubelet, as it was written.
func answer(a actor) (string, bool) {
	if a.copied {
		return "", true
	}
	a.w.at(a.Node).Attached = Fence{UID: a.Read.UID, Generation: a.Claim.Generation}
	return "", true
}

func release(a actor) (string, bool) {
	if a.c.Record != a.Read || a.c.Record.Owner != a.Node {
		return "", true
	}
	a.c.Record.Published = false
	return "", a.c.Record.Dirty || a.w.Static
}

func revokeAll(a actor) (string, bool) {
	if a.Read.Published || a.Read.Dirty || a.restoreOwner(a.Read.Old) {
		return "", true
	}
	return a.revoke(NoNode)
}

func readUnused(a actor) (string, bool) {
	_, gone := read(a)
	seen := a
	seen.Control = &Control{Read: a.Read, Access: a.Access}
	seen.Read.Dirty = false
	n, _ := seen.unknown(a.Read.Old)
	return "", gone || a.Read.Published || n == C || n != NoNode && a.w.at(n).Session != 0 // it is logged in
}

func markDeleting(a actor) (string, bool) {
	if a.c.Record != a.Read {
		return "", true
	}
	a.c.Record.Deleting = true
	a.Read.Deleting = true
	return "", false
}

func endAll(a actor) (string, bool) {
	if !a.w.Static && !a.may() {
		return "", true
	}
	violation := ""
	for i, g := range a.Access.Admitted {
		if g != 0 {
			violation = firstOf(violation, a.endRead(Node(i+1)))
		}
	}
	return violation, false
}

func deleteVolume(a actor) (string, bool) {
	s := &a.w.Server
	if !a.w.Static {
		if s.Admitted != [3]uint8{} || !a.may() {
			return "", true
		}
		s.Deleted = true
	}
	if a.copied {
		return foreignGone, true
	}
	return "", false
}

func forgetRecord(a actor) (string, bool) {
	if a.c.Record.UID == a.Read.UID && !a.c.Record.Published {
		for _, n := range nodes {
			if !a.copied {
				a.w.at(n).Told = a.Read.fence()
			}
		}
		a.c.Record = Record{}
		if !a.copied {
			a.w.Known = Acts{}
		}
	}
	return "", true
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
