package kubectl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestDocumentedOutput: what the reference shows of commands is what they print. Each file of
// testdata/output has the commands of one, each after "$ ", with their output; kubectldoc takes the same.
func TestDocumentedOutput(t *testing.T) {
	for command, objects := range map[string]func() []client.Object{
		"advise": advisable,
	} {
		text, err := os.ReadFile(filepath.Join("testdata", "output", command+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		shown := strings.Split(string(text), "$ kubectl nearflash ")[1:]
		if len(shown) == 0 {
			t.Errorf("%s: nothing is shown", command)
		}
		for _, one := range shown {
			line, want, _ := strings.Cut(one, "\n")
			t.Run(line, func(t *testing.T) {
				code, out, errOut := newRig(t, objects()...).run(append(strings.Fields(line), "--reported")...)
				if code != 0 || errOut != "" {
					t.Fatalf("%d: %s", code, errOut)
				}
				expect(t, "output", strings.TrimSpace(out), strings.TrimSpace(want))
			})
		}
	}
}
