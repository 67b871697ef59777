package charttest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// TestSnapshots compares what the chart renders with the committed renderings,
// so that a change of a manifest shows in review. UPDATE=1 rewrites them.
func TestSnapshots(t *testing.T) {
	for _, name := range []string{"static", "target", "production"} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			for _, object := range mustTemplate(t, valuesArgs(name)...) {
				text, err := yaml.Marshal(object.Object)
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n")
				got.Write(text)
			}
			path := filepath.Join("snapshots", name+".yaml")
			if os.Getenv("UPDATE") == "1" {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("the chart renders differently (-snapshot +now); UPDATE=1 accepts it:\n%s", diff)
			}
		})
	}
}
