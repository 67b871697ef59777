package model

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// codeActs are the calls of the code that the acts of the model stand for, in their
// order: of acts in node.go, and of controlActs in control.go; and of those of snapshots in
// cut_node.go, cut_control.go and cut_freeze.go. Between them there may be others, which the model knows
// nothing of.
var codeActs = map[string]map[string]string{
	"../../pkg/attach": {
		"begin":           "removeEarlier pendActivation wipeForStage saveIntent",
		"build":           "begin connect buildCached CreateTop confirmActivation save",
		"makeCache":       "provideCache activate restore markDirty activate",
		"activate":        "save beginTable createDataDevice CreateTop",
		"adopt":           "confirmActivation drainUnmarked markDirty save swapPolicy",
		"drainUnmarked":   "cleanLive",
		"cleanLive":       "swapPolicy CacheStatus flushOrigin save",
		"startWriteback":  "countUp TagMode save restore",
		"restore":         "markDirty swapPolicy",
		"markDirty":       "save MarkPossiblyDirty",
		"flushed":         "flushOrigin save ReportFlushed",
		"flush":           "save swapPolicy AwaitClean save",
		"recoverForFlush": "reconnect BeginRecover createDataDevice CreateTop save",
		"removeEarlier":   "RemoveDevices",
		"release":         "RemoveDevices tagStopped disconnect markClean save",
		"tagStopped":      "countUp TagStopped",
		"detach":          "save RemoveDevices disconnect takeBackMark forget",
		"discard":         "save RemoveDevices disconnect takeBackMark wipe",
		"takeBackMark":    "countUp tagCounted markClean",
		"tagCounted":      "TagCounted",
		"unmark":          "countUp tagCounted tellClean TagMode save",
		"wipeForStage":    "empty",
		"wipe":            "empty forget",
		"empty":           "save Remove",
		"countOne":        "countUp TagCounted recordCount",
		"show":            "admit mountAt",
		"admit":           "Get keepMark",
		"connect":         "Connect reserve",
		"reserve":         "save Take save",
		"reserveAgain":    "Inspect save Take",
		"disconnect":      "giveReservation Disconnect",

		"Freeze":     "lockSettled Get Mounted decideFreeze freeze",
		"freeze":     "Store Freeze whileAsked Thaw reportFreeze",
		"whileAsked": "reportFreeze Get",
		"ThawLeft":   "Left Recover",
	},
	"../../pkg/freeze": {
		"Freeze":   "write Run await end",
		"end":      "withdraw clear",
		"Recover":  "withdraw Await clear",
		"runGuard": "openMount run",
		"run":      "prepare phase freeze hold thaw phase",
	},
	"../../pkg/provision": {
		"publish":       "newOwner inspect publishable publishServed",
		"newOwner":      "pool UpdatePool",
		"publishServed": "publishOn",
		"publishOn":     "restoreOwner decideClaim revoke writeOwner Export",
		"giveBack":      "Load Unpublish",
		"Unpublish":     "Load release settle",
		"Settle":        "settle",
		"settle":        "inspect Load restoreOwner revoke",
		"deleteJudged":  "inspect Load markDeleting Unexport Delete forget",

		"cut":            "beginCut gatherCut decideCut endHold takeCutStep",
		"gatherCut":      "Find inspect Load",
		"takeCutStep":    "hold patch settle dropCut Accept orderCut takeFreezeStep",
		"takeFreezeStep": "askFreeze askFreeze awaitFreeze unfrozen",
		"unfrozen":       "EndHold dropCut",
		"hold":           "mayHold putHold",
		"putHold":        "put patch",
		"orderCut":       "Cut",
		"dropCut":        "DropCut",
		"restoreOwner":   "patch WriteStatus",
		"deleteCut":      "Find endHold DeleteCut",
		"SweepCuts":      "sweepPlace",
		"sweepPlace":     "cutsWithin clones over sweepOne",
		"sweepOne":       "over sweep",
		"over":           "Get behind",
		"sweepCut":       "DropCut",

		"CreateGroup":   "beginGroup gatherGroup decideGroup answerGroup takeGroupStep",
		"gatherGroup":   "gatherCut",
		"takeGroupStep": "holdGroup dropCut waitGroup awaitNode abandon cutGroup acceptGroup refuseRaw abandon takeCutStep",
		"holdGroup":     "mayHold endHold newHold putHold",
		"cutGroup":      "Cut abandon",
		"acceptGroup":   "Accept",
		"abandon":       "EndHold DropCut",
		"DeleteGroup":   "groupCuts deleteCut",
	},
}

// TestActs: who changes the order of what is done, or leaves something out, changes the
// model too.
func TestActs(t *testing.T) {
	for folder, functions := range codeActs {
		calls := callsOf(t, folder)
		for name, want := range functions {
			got, there := calls[name]
			if !there {
				t.Errorf("%s has no function %s; the model's acts are those of it", folder, name)
			}
			rest := got
			for _, act := range strings.Fields(want) {
				at := slices.Index(rest, act)
				if at < 0 {
					t.Errorf("%s: %s does %q, and the model has %q", folder, name, got, want)
					break
				}
				rest = rest[at+1:]
			}
		}
	}
}

// callsOf returns what each function of a package calls, as the source has it from top to
// bottom.
func callsOf(t *testing.T, folder string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no code in %s: %v", folder, err)
	}
	out := map[string][]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				out[f.Name.Name] = append(out[f.Name.Name], callsIn(f.Body)...)
			}
		}
	}
	return out
}

func callsIn(body ast.Node) []string {
	var out []string
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch f := call.Fun.(type) {
		case *ast.Ident:
			out = append(out, f.Name)
		case *ast.SelectorExpr:
			out = append(out, f.Sel.Name)
		}
		return true
	})
	return out
}

// TestRestoredRelease: the API server is set back to when the volume was clean, released or
// still published; its owner has had it again since, and has unflushed writes. That is
// beyond the depth of the bounded searches.
func TestRestoredRelease(t *testing.T) {
	const backup = "API server is backed up"
	down := []string{"unstage or repair looks on a", "9 x next act on a", "unstage or repair looks on a", "9 x next act on a"}
	unpublish := []string{"unpublish on a", "5 x controller: next act"}
	for name, before := range map[string][]string{
		"released":  append(slices.Clone(unpublish), backup),
		"published": append([]string{backup}, unpublish...),
	} {
		trace := slices.Concat([]string{"pod writes on a", "pod ends on a"}, down, before, attached, []string{
			"pod writes on a", "crash on a", "API server is restored", "9 x controller: step to its epoch", "kubelet gives a stage up on a",
		}, unpublish, []string{
			"move: publish on b", "5 x controller: next act", "stage is decided on b", "12 x next act on b", "pod reads on b",
		})
		w := start(Writeback, Budget{Writes: 2, Crashes: 1, Moves: 1, Restores: 1}).running()
		if violation, last := asFarAs(w.without(Judged), trace); violation != stale {
			t.Errorf("%s: without its mechanism the trace leads to %q, %+v", name, violation, last)
		}
		violation, last := asFarAs(w, trace)
		if violation != "" || !newGuide(events()).leads(last) {
			t.Errorf("%s: with its mechanism the trace leads to %q, or to where no way leads on: %+v", name, violation, last)
		}
	}
}

// TestInheritedReservation: the node that took a LUN from another one crashes, and its next
// stage ends before it reserves the LUN anew. What repair leaves then must still keep the
// first one out. That is beyond the depth of the bounded searches.
func TestInheritedReservation(t *testing.T) {
	trace := []string{
		"pod writes on a", "forced detach on a", "unpublish on a", "controller: next act", "administrator gives the writes up",
		"move: publish on b", "5 x controller: next act", "stage is decided on b", "12 x next act on b", "pod writes on b",
		"crash on b", "stage is decided on b", "4 x next act on b", "plugin is killed on b", "kubelet gives a stage up on b",
		"unstage or repair looks on b", "4 x next act on b", "unstage or repair looks on b", "4 x next act on b",
		"unstage or repair looks on b", "6 x next act on b", "cache writes back on a",
	}
	w := start(Writeback, Budget{Writes: 2, Moves: 1, Forces: 1, Crashes: 1, Kills: 1}).static().consenting().running()
	if violation, refused, _ := replay(w.without(Stays), events(), trace); violation != overwritten {
		t.Errorf("without its mechanism the trace leads to %q, and ends at %q", violation, refused)
	}
	violation, refused, last := replay(w, events(), trace)
	if violation != "" || !strings.Contains(refused, "cache writes back on a") || !last.at(B).Journal.Inherited {
		t.Errorf("%q, refused %q, journal %+v", violation, refused, last.at(B).Journal)
	}
}

// asFarAs replays a trace, and goes past what is refused: as often as a step is possible,
// up to the number that is given.
func asFarAs(w World, trace []string) (violation string, last World) {
	for _, name := range unfolded(trace) {
		violation, refused, after := replay(w, events(), []string{name})
		if violation != "" {
			return violation, after
		}
		if refused == "" {
			w = after
		}
	}
	return "", w
}
