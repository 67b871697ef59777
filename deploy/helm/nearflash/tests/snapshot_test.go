package charttest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// snapshotValues are the files of values whose renderings are kept.
var snapshotValues = []string{"static", "target", "production", "monitoring", "origins", "targets"}

// TestSnapshots compares what the chart renders with the committed renderings,
// so that a change of a manifest shows in review. With SNAPSHOTS_OUT, a folder, it
// writes them there instead, which is how hack/generate.sh renews them.
func TestSnapshots(t *testing.T) {
	for _, name := range snapshotValues {
		t.Run(name, func(t *testing.T) {
			compareSnapshot(t, name+".yaml", mustTemplate(t, valuesArgs(name)...))
		})
	}
	t.Run("roles", compareRoles)
}

// compareRoles keeps a file for each role, so that review sees whose permissions a
// change of the chart touches. Roles that are there with some values alone count too.
func compareRoles(t *testing.T) {
	roles := map[string][]*unstructured.Unstructured{}
	for _, name := range snapshotValues {
		for _, object := range mustTemplate(t, valuesArgs(name)...) {
			kind := object.GetKind()
			if kind != "ClusterRole" && kind != "Role" {
				continue
			}
			file := filepath.Join("roles", strings.ToLower(kind)+"-"+object.GetName()+".yaml")
			if roles[file] == nil {
				roles[file] = []*unstructured.Unstructured{{Object: map[string]any{"rules": object.Object["rules"]}}}
			}
		}
	}
	for file, objects := range roles {
		compareSnapshot(t, file, objects)
	}
	kept, err := filepath.Glob(filepath.Join("snapshots", "roles", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range kept {
		if file := filepath.Join("roles", filepath.Base(path)); roles[file] == nil {
			t.Errorf("%s: no values render this role any more; delete the file", path)
		}
	}
}

// compareSnapshot compares objects with a file below snapshots, or writes them.
func compareSnapshot(t *testing.T, file string, objects []*unstructured.Unstructured) {
	t.Helper()
	var got bytes.Buffer
	for _, object := range objects {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString("---\n")
		got.Write(text)
	}
	if out := os.Getenv("SNAPSHOTS_OUT"); out != "" {
		path := filepath.Join(out, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(filepath.Join("snapshots", file))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s: the chart renders differently (-snapshot +now); hack/generate.sh accepts it:\n%s", file, diff)
	}
}
