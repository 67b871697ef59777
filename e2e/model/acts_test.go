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
// order: of acts in node.go, and of controlActs in control.go. Between them there may be
// others, which the model knows nothing of.
var codeActs = map[string]map[string]string{
	"../../pkg/attach": {
		"begin":           "removeDevices pendActivation wipeForStage saveIntent",
		"build":           "begin connect buildCached createTop confirmActivation save",
		"makeCache":       "shapeCache markDirty activate",
		"activate":        "save beginTable createDataDevice createTop",
		"adopt":           "confirmActivation markDirty save swapPolicy",
		"flush":           "save swapPolicy awaitClean save",
		"recoverForFlush": "reconnect beginRecover createDataDevice createTop save",
		"release":         "removeDevices countUp tagStopped markClean disconnect save",
		"detach":          "save removeDevices takeBackMark disconnect forget",
		"discard":         "save removeDevices takeBackMark disconnect wipe",
		"takeBackMark":    "countUp tagCounted markClean",
		"wipeForStage":    "empty",
		"wipe":            "empty forget",
		"empty":           "save removeCacheVolumes",
		"countOne":        "countUp tagCounted recordCount",
	},
	"../../pkg/provision": {
		"Publish":      "look publishable publishOn",
		"publishOn":    "restoreOwner decideClaim revoke writeOwner Export",
		"Unpublish":    "Load release Settle",
		"Settle":       "look Load restoreOwner revoke",
		"deleteServed": "look Load markDeleting Unexport Delete forget",
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
