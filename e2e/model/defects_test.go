package model

import (
	"slices"
	"testing"
)

// defect is a way to lose data or to stop, that there is without a mechanism. trace is a
// shortest way to it.
type defect struct {
	world World
	fix   Fix
	want  string
	trace []string
	// running is true if it begins with a pod on a.
	running bool
}

// begins is where its trace begins.
func (d defect) begins(w World) World {
	if d.running {
		return w.running()
	}
	return w
}

// attached are the steps to a pod that runs on a.
var attached = []string{"publish on a", "5 x controller: next act", "stage is decided on a", "12 x next act on a"}

// taken are the steps from there to a pod that runs on b, while the one on a goes on.
var taken = []string{
	"forced detach on a", "unpublish on a", "controller: next act",
	"move: publish on b", "5 x controller: next act", "stage is decided on b", "12 x next act on b",
}

// defects are found when their mechanism is taken out, and not with it.
var defects = map[string]defect{
	"an admission that has no name": {
		world: start(Writeback, Budget{Moves: 2, Leaders: 1, Lost: 1}), fix: Names, want: shutOutOwner,
		trace: []string{
			"publish on a", "3 x controller: next act", "controller: next act, and the answer is lost",
			"publish on a", "another controller leads, and the first acts on",
			"unpublish on a", "3 x controller: next act", "5 x first controller: next act", "controller: next act",
		},
	},
	"a node that is restored from its image is taken for what it was": {
		world: start(Writeback, Budget{Writes: 2, Images: 1}).consenting(), fix: Activations, want: overwritten,
		trace: slices.Concat(attached, []string{
			"pod writes on a", "image is taken on a", "pod writes on a", "cache writes back on a",
			"image is restored on a", "unstage or repair looks on a", "3 x next act on a", "cache writes back on a",
		}),
	},
	"a spare that has the node's name is taken for it": {
		world: start(Writethrough, Budget{Writes: 2, Spares: 2}), fix: Activations, want: stale, running: true,
		trace: []string{
			"pod writes on a", "pod ends on a", "publish on a", "4 x controller: next act",
			"unstage or repair looks on a", "2 x next act on a", "controller: next act", "2 x next act on a",
			"unstage or repair looks on a", "3 x next act on a",
			"a spare takes the name on a", "stage is decided on a", "12 x next act on a", "pod writes on a",
			"a spare takes the name on a", "stage is decided on a", "12 x next act on a", "pod reads on a",
		},
	},
	"a second cluster from a copy of etcd": {
		world: start(Writeback, Budget{Copies: 1}), fix: OneCluster, want: foreignIn,
		trace: []string{"API server is backed up", "a second cluster begins from a copy of etcd", "second cluster: publish", "4 x second cluster: next act"},
	},
	"a static volume has two writers after a forced detach": {
		world: start(Writethrough, Budget{Writes: 1, Moves: 1, Forces: 1}).static(), fix: Reservations, want: twoWriters,
		trace: slices.Concat(attached, taken, []string{"pod writes on a"}),
	},
	"a static LUN is free again while a pod of before goes on": {
		world: start(Writethrough, Budget{Writes: 1, Moves: 1, Forces: 1}).static(), fix: Stays, want: twoWriters, running: true,
		trace: slices.Concat(taken, []string{
			"pod ends on b", "unstage or repair looks on b", "4 x next act on b", "unstage or repair looks on b", "4 x next act on b", "pod writes on a",
		}),
	},
	"a clean shutdown that is a table swap": {
		world: start(Writeback, Budget{Writes: 1, Crashes: 1, Swaps: 1}), fix: Stops, want: falseClean,
		trace: slices.Concat(attached, []string{
			"flush is asked for on a", "pod writes on a", "crash on a", "unstage or repair looks on a", "4 x next act on a",
			"unstage or repair looks on a", "4 x next act on a", "unstage or repair looks on a", "5 x next act on a",
		}),
	},
	"a stage that is killed after its wipe": {
		world: start(Writeback, Budget{Kills: 2}), fix: Wiped, want: Stuck,
		trace: []string{
			"publish on a", "5 x controller: next act", "stage is decided on a", "7 x next act on a",
			"plugin is killed on a", "stage is decided on a", "3 x next act on a", "plugin is killed on a",
		},
	},
	"a record that is missing is taken for a newer writer": {
		world: start(Writeback, Budget{Writes: 1, Removals: 1}).consenting(), fix: Proofs, want: destroyed,
		trace: slices.Concat(attached, []string{
			"pod writes on a", "pod ends on a", "record is removed by hand", "unstage or repair looks on a", "7 x next act on a",
		}),
	},
	"writes are abandoned, and the node's next pod comes without a stage": {
		world: start(Writeback, Budget{Writes: 1, Moves: 1, Forces: 1}).static().consenting(), fix: Kept, want: destroyed, running: true,
		trace: []string{
			"forced detach on a", "unpublish on a", "controller: next act", "administrator gives the writes up",
			"publish on a", "5 x controller: next act", "another pod begins on a", "pod writes on a", "pod ends on a",
			"unpublish on a", "controller: next act", "move: publish on b", "3 x controller: next act",
			"unstage or repair looks on a", "7 x next act on a",
		},
	},
	"a pod is given a volume that its record does not have attached": {
		world: start(Writeback, Budget{Writes: 1, Forces: 1, Removals: 1}).consenting(), fix: Admits, want: destroyed, running: true,
		trace: []string{
			"forced detach on a", "unpublish on a", "controller: next act", "administrator gives the writes up",
			"controller settles", "2 x controller: next act", "publish on a", "record is removed by hand", "record is made anew",
			"5 x controller: next act", "another pod begins on a", "pod writes on a", "pod ends on a",
			"unstage or repair looks on a", "7 x next act on a",
		},
	},
	"a static LUN, uncached, is free again while a pod of before goes on": {
		world: start(None, Budget{Writes: 1, Moves: 1, Forces: 1}).static(), fix: Stays, want: twoWriters, running: true,
		trace: slices.Concat(taken, []string{"pod ends on b", "unstage or repair looks on b", "5 x next act on b", "pod writes on a"}),
	},
	"a record out of a backup calls clean what it does not know of": {
		world: start(Writeback, Budget{Writes: 1, Crashes: 1, Restores: 1, Journals: 1}).consenting(), fix: Consents, want: destroyed,
		trace: []string{
			"publish on a", "5 x controller: next act", "stage is decided on a", "6 x next act on a", "API server is backed up", "6 x next act on a",
			"pod writes on a", "crash on a", "journal is lost on a", "API server is restored", "repair looks at an orphan on a",
		},
	},
	"a node that is shut out and cannot flush": {
		world: start(Writethrough, Budget{Deletes: 1}), fix: Leaves, want: Stuck,
		trace: []string{
			"publish on a", "5 x controller: next act", "stage is decided on a", "6 x next act on a", "kubelet gives a stage up on a",
			"unpublish on a", "4 x controller: next act", "volume is not wanted any more",
		},
	},
}

func TestDefects(t *testing.T) {
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.found(t, d.begins(d.world.without(d.fix)))
			if r := explore(d.begins(d.world), events(), eachWorld); r.Violation != "" {
				t.Errorf("with its mechanism there is: %v", r)
			}
			if violation, _, last := replay(d.begins(d.world), events(), d.trace); violation != "" || !newGuide(events()).leads(last) {
				t.Errorf("with its mechanism the trace leads to %q, or to where no way leads on", violation)
			}
		})
	}
}

// found sees a defect found in a world, by the trace too.
func (d defect) found(t *testing.T, w World) {
	t.Helper()
	r := explore(w, events(), 200_000)
	if r.Violation != d.want {
		t.Fatalf("got %v\nwant %s", r, d.want)
	}
	if got := folded(r.Trace); len(unfolded(d.trace)) != len(r.Trace) {
		t.Errorf("the shortest way is another one: %q", got)
	}
	violation, refused, last := replay(w, events(), d.trace)
	if refused == "" && violation == "" && !newGuide(events()).leads(last) {
		violation = Stuck
	}
	if violation != d.want {
		t.Errorf("the trace leads to %q and ends at %q", violation, refused)
	}
}
