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
// so that a change of a manifest shows in review. With SNAPSHOTS_OUT, a folder, it
// writes them there instead, which is how hack/generate.sh renews them.
func TestSnapshots(t *testing.T) {
	for _, name := range []string{"static", "target", "production", "monitoring"} {
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
			if out := os.Getenv("SNAPSHOTS_OUT"); out != "" {
				if err := os.WriteFile(filepath.Join(out, name+".yaml"), got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(filepath.Join("snapshots", name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("the chart renders differently (-snapshot +now); hack/generate.sh accepts it:\n%s", diff)
			}
		})
	}
}
