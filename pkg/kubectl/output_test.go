package kubectl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shownOutput is a command of the reference with what it prints.
type shownOutput struct {
	args []string
	out  string
}

// documentedOutput is what the reference shows of a command: a file of testdata/output, which kubectldoc takes
// too, has command lines after "$ ", each with its output.
func documentedOutput(t *testing.T, command string) []shownOutput {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "output", command+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	var all []shownOutput
	for _, one := range strings.Split(string(text), "$ kubectl nearflash ")[1:] {
		line, out, _ := strings.Cut(one, "\n")
		all = append(all, shownOutput{strings.Fields(line), strings.TrimSpace(out) + "\n"})
	}
	if len(all) == 0 {
		t.Fatalf("nothing is shown of %s", command)
	}
	return all
}

// TestDocumentedAdvice: advise prints what the reference shows.
func TestDocumentedAdvice(t *testing.T) {
	for _, one := range documentedOutput(t, "advise") {
		t.Run(strings.Join(one.args, " "), func(t *testing.T) {
			code, out, errOut := newRig(t, advisable()...).run(append(one.args, "--reported")...)
			if code != 0 || errOut != "" {
				t.Fatalf("%d: %s", code, errOut)
			}
			expect(t, "output", out, one.out)
		})
	}
}
