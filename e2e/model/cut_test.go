package model

import (
	"slices"
	"testing"
)

// cutWorlds are those of snapshots in which nothing may be found.
var cutWorlds = map[string]Cutting{
	"a pod runs":                       startCut(Writeback, CutBudget{Writes: 3}).running().staying(),
	"a pod runs, kills":                startCut(Writeback, CutBudget{Writes: 2, Kills: 1}).running().staying(),
	"a pod runs, the node crashes":     startCut(Writeback, CutBudget{Writes: 2, Crashes: 1}).running().staying(),
	"a pod runs, writethrough":         startCut(Writethrough, CutBudget{Writes: 3, Kills: 1, Crashes: 1}).running().staying(),
	"leaders":                          startCut(Writeback, CutBudget{Writes: 2, Leaders: 1}).running().staying(),
	"late orders, storage server ends": startCut(Writeback, CutBudget{Writes: 2, Lost: 1, Stops: 1}).running().staying(),
	"API server is set back":           startCut(Writeback, CutBudget{Writes: 2, Restores: 1}).running().staying(),
	"comes and goes":                   startCut(Writeback, CutBudget{Writes: 2, Kills: 1}),
	"writes abandoned":                 startCut(Writeback, CutBudget{Writes: 3, Forces: 1, Crashes: 1}).consenting().running(),
	"a freeze, kills":                  startCut(Writethrough, CutBudget{Writes: 1, Kills: 2}).freezing().running().staying(),
	"a freeze, the node crashes":       startCut(Writethrough, CutBudget{Writes: 1, Crashes: 1, Kills: 1}).freezing().running().staying(),
	"a freeze, leaders, late orders":   startCut(Writethrough, CutBudget{Writes: 1, Leaders: 1, Lost: 1}).freezing().running().staying(),
	"a freeze, API server is set back": startCut(Writethrough, CutBudget{Writes: 1, Restores: 1}).freezing().running().staying(),
	"a freeze, reports are lost":       startCut(Writethrough, CutBudget{Lost: 2}).freezing().running().staying(),
	"a freeze, comes and goes":         startCut(Writethrough, CutBudget{Writes: 1, Lost: 1}).freezing(),
	"deleted":                          startCut(Writeback, CutBudget{Writes: 1, Ends: 1, Removals: 1, Kills: 1}).running(),
}

// exhausted are the worlds of which every state is looked at.
var exhausted = []string{"a pod runs", "a pod runs, writethrough", "a freeze, kills"}

// TestCuts: within these bounds an accepted snapshot has every write that was acknowledged
// before it was asked for, and none without those before it; and every state leads on.
func TestCuts(t *testing.T) {
	for name, w := range cutWorlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit, all := 2*eachWorld, slices.Contains(exhausted, name)
			if all {
				limit *= 4
			}
			r := explore(w, cutEvents(), limit)
			if t.Log(r); r.Violation != "" || r.Depth < leastDepth || !r.Exhausted && (all || r.States < limit) {
				t.Error("an invariant does not hold, or less was explored than there is")
			}
		})
	}
}

// cutDefect is a way to a snapshot that is none, or to stop, that there is without a mechanism.
// trace is a shortest way to it.
type cutDefect struct {
	world Cutting
	fix   CutFix
	want  string
	trace []string
	// deep is true of a trace that no search looks for: it would take too long.
	deep bool
}

// drainedCut are the steps of a node that flushes below a hold: Clean, Restore, Unmark, Flushed.
var drainedCut = []string{
	"change is decided", "2 x next act of the node", "change is decided", "2 x next act of the node",
	"change is decided", "2 x next act of the node", "change is decided", "2 x next act of the node",
}

// writesAgain are the steps to an origin that has the second write and not the first, when the hold
// is over.
var writesAgain = []string{"hold expires", "change is decided", "3 x next act of the node", "2 x pod writes", "cache writes back block 0"}

// cutRunning is a world with a pod that stays.
func cutRunning(left CutBudget) Cutting { return startCut(Writeback, left).running().staying() }

// frozenRunning is one whose filesystem is to be frozen.
func frozenRunning(left CutBudget) Cutting {
	return startCut(Writethrough, left).freezing().running().staying()
}

// askedFrozen are the steps to a guard that has begun.
var askedFrozen = []string{
	"snapshot is asked for", "2 x controller: next act", "change is decided", "2 x next act of the node",
	"2 x controller: next act", "freeze is decided", "next act of the node",
}

// freezes are the steps to a filesystem that is frozen, as its record says.
var freezes = []string{
	"snapshot is asked for", "2 x controller: next act", "change is decided", "2 x next act of the node",
	"3 x controller: next act", "freeze is decided", "next act of the node", "guard freezes", "2 x next act of the node",
}

// cutDefects are found when their mechanism is taken out, and not with it.
var cutDefects = map[string]cutDefect{
	"a cut is accepted without a look at the record behind it": {
		world: cutRunning(CutBudget{Writes: 2}), fix: SecondLook, want: noPrefix,
		trace: slices.Concat([]string{"snapshot is asked for", "2 x controller: next act"}, drainedCut,
			[]string{"2 x controller: next act"}, writesAgain, []string{"controller: next act"}),
	},
	"a volume is cut as it is on the storage server": {
		world: cutRunning(CutBudget{Writes: 1}), fix: Drained, want: lacksBefore,
		trace: []string{"pod writes", "snapshot is asked for", "8 x controller: next act"},
	},
	"a cut that was cut off counts": {
		world: cutRunning(CutBudget{Writes: 2, Stops: 1}), fix: Unfinished, want: noPrefix,
		trace: slices.Concat([]string{"snapshot is asked for", "2 x controller: next act"}, drainedCut,
			[]string{"2 x controller: next act", "storage server ends in the middle of a cut", "snapshot is asked for", "2 x controller: next act"},
			writesAgain, []string{"LVM goes on with what was cut off"}),
	},
	"the record is read before the cut is looked for": {
		world: cutRunning(CutBudget{Writes: 2, Lost: 1}), fix: CutFirst, want: noPrefix,
		trace: slices.Concat([]string{"snapshot is asked for", "controller: next act"}, drainedCut,
			[]string{"3 x controller: next act", "call ends, and its order goes on", "snapshot is asked for"},
			writesAgain, []string{"first controller: next act", "2 x controller: next act"}),
	},
	"an order names no hold": {
		world: cutRunning(CutBudget{Leaders: 1}), fix: CutNames, want: acceptedGone,
		trace: slices.Concat([]string{"snapshot is asked for", "2 x controller: next act", "another controller leads, and the first acts on"}, drainedCut,
			[]string{"5 x first controller: next act", "hold expires", "cuts are swept", "controller: next act", "first controller: next act", "controller: next act"}),
	},
	"a hold out of a backup is trusted": {
		world: cutRunning(CutBudget{Writes: 2, Restores: 1}), fix: OwnHold, want: noPrefix, trace: setBack,
	},
	"an own hold is trusted after a takeover": {
		world: cutRunning(CutBudget{Writes: 2, Restores: 1}), fix: Takeovers, want: noPrefix, trace: setBack, deep: true,
	},
	"a record out of a backup says Clean": {
		world: cutRunning(CutBudget{Writes: 2, Restores: 1}), fix: Flushes, want: noPrefix, deep: true,
		trace: []string{
			"snapshot is asked for", "controller: next act", "change is decided", "2 x next act of the node", "change is decided",
			"hold expires", "2 x next act of the node", "API server is backed up", "change is decided", "2 x next act of the node",
			"change is decided", "3 x next act of the node", "API server is restored", "snapshot is asked for", "4 x controller: next act",
			"2 x pod writes", "cache writes back block 0", "4 x controller: next act",
		},
	},
	"a stage of before the hold marks the record": {
		world: startCut(Writeback, CutBudget{Writes: 2}), fix: Refusal, want: noPrefix, deep: true,
		trace: []string{
			"publish", "stage is decided", "next act of the node", "kubelet gives a stage up", "unpublish", "controller settles",
			"snapshot is asked for", "3 x controller: next act", "publish", "3 x next act of the node",
			"2 x pod writes", "cache writes back block 0", "5 x controller: next act",
		},
	},
	"a cut is accepted while the record says Frozen": {
		world: frozenRunning(CutBudget{}), fix: HeldBehind, want: notFrozen,
		trace: slices.Concat(freezes, []string{"2 x controller: next act", "guard's time is over", "4 x controller: next act"}),
	},
	"a guard does not tell that its time was over": {
		world: frozenRunning(CutBudget{}), fix: GuardTells, want: notFrozen,
		trace: slices.Concat(freezes, []string{
			"2 x controller: next act", "guard's time is over", "5 x controller: next act", "4 x next act of the node", "2 x controller: next act",
		}),
	},
	"a volume is published under a hold, and nobody is told": {
		world: startCut(Writethrough, CutBudget{}).freezing(), fix: Attached, want: notFrozen,
		trace: []string{
			"snapshot is asked for", "4 x controller: next act", "publish", "stage is decided", "4 x next act of the node",
			"controller: next act", "pod ends", "unpublish", "3 x controller: next act",
		},
	},
	"a device is changed below a frozen filesystem": {
		world: frozenRunning(CutBudget{Kills: 1}), fix: Guarded, want: swapBelow,
		trace: slices.Concat(askedFrozen, []string{"guard freezes", "2 x next act of the node", "plugin is killed", "freeze is decided", "next act of the node"}),
	},
	"a freeze that nobody ends": {
		world: frozenRunning(CutBudget{Kills: 2}), fix: Left, want: Stuck,
		trace: append(slices.Clone(askedFrozen), "plugin is killed"),
	},
	"a filesystem is frozen twice for a hold": {
		world: frozenRunning(CutBudget{Lost: 2}), fix: Once, want: notFrozen, deep: true,
		trace: slices.Concat(askedFrozen, []string{
			"guard freezes", "next act of the node", "answer to a report of Frozen is lost", "next act of the node",
			"guard sees the end of its order", "next act of the node", "last report of a freeze fails", "freeze is decided", "next act of the node",
			"report of Frozen arrives late", "4 x controller: next act", "guard freezes", "3 x controller: next act", "2 x next act of the node",
			"2 x next act of the node", "guard sees the end of its order", "2 x next act of the node", "3 x controller: next act",
		}),
	},
	"a cut is dropped before its hold ends": {
		world: frozenRunning(CutBudget{Lost: 2}), fix: EndsFirst, want: notFrozen,
		trace: slices.Concat(freezes, []string{
			"controller: next act", "call ends, and its order goes on", "snapshot is asked for", "8 x controller: next act",
			"node is waited for in vain", "controller: next act", "first controller: next act", "2 x next act of the node",
			"guard sees the end of its order", "first controller: next act", "call ends, and its order goes on", "snapshot is asked for",
			"2 x next act of the node", "2 x controller: next act",
		}),
	},
	"a hold that nobody ends": {
		world: cutRunning(CutBudget{Removals: 1, Kills: 1}), fix: Expires, want: Stuck,
		trace: []string{"snapshot is asked for", "3 x controller: next act", "snapshot is deleted", "controller ends"},
	},
}

// setBack are the steps to a cut of after its hold, and to a record of before it.
var setBack = slices.Concat([]string{"snapshot is asked for", "2 x controller: next act", "API server is backed up"}, drainedCut,
	[]string{"2 x controller: next act"}, writesAgain,
	[]string{"controller: next act", "API server is restored", "snapshot is asked for", "2 x controller: next act"})

func TestCutDefects(t *testing.T) {
	for name, d := range cutDefects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.found(t)
			if d.deep {
				return
			}
			if r := explore(d.world, cutEvents(), eachWorld); r.Violation != "" {
				t.Errorf("with its mechanism there is: %v", r)
			}
		})
	}
}

// found sees a defect found by its trace, and by a search if that does not take too long; and not
// with its mechanism.
func (d cutDefect) found(t *testing.T) {
	t.Helper()
	lead := func(w Cutting) (violation, refused string) {
		violation, refused, last := replay(w, cutEvents(), d.trace)
		if violation == "" && !newGuide(cutEvents()).leads(last) {
			violation = Stuck
		}
		return violation, refused
	}
	if violation, refused := lead(d.world.without(d.fix)); violation != d.want || refused != "" {
		t.Errorf("the trace leads to %q and ends at %q", violation, refused)
	}
	if violation, _ := lead(d.world); violation != "" {
		t.Errorf("with its mechanism the trace leads to %q", violation)
	}
	if d.deep {
		return
	}
	r := explore(d.world.without(d.fix), cutEvents(), 400_000)
	if r.Violation != d.want {
		t.Fatalf("got %v\nwant %s", r, d.want)
	}
	if got := folded(r.Trace); len(unfolded(d.trace)) != len(r.Trace) {
		t.Errorf("the shortest way is another one: %q", got)
	}
}
