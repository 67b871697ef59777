package charttest

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestNotes: what helm tells after an installation names what the values leave out, and no more.
func TestNotes(t *testing.T) {
	const (
		none  = "NO CACHE YET"
		some  = "SOME NODES WITHOUT A CACHE"
		disk  = `"/dev/disk/by-id/nvme-1"`
		group = `"nodeSelector":{"kind":"big"}`
	)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no SSDs":                 {want: none},
		"SSDs of all nodes":       {args: []string{"--set-json", `node.pool.devices=[` + disk + `]`}},
		"SSDs of some nodes":      {args: []string{"--set-json", `node.pools=[{` + group + `,"devices":[` + disk + `]}]`}, want: some},
		"none of the last kind":   {args: []string{"--set-json", `node.pools=[{` + group + `,"devices":[` + disk + `]},{"nodeSelector":{"kind":"small"},"devices":[]}]`}, want: some},
		"kinds of nodes, no SSDs": {args: []string{"--set-json", `node.pools=[{` + group + `,"devices":[]}]`}, want: none},
		"all, and some apart": {args: []string{
			"--set-json", `node.pool.devices=[` + disk + `]`, "--set-json", `node.pools=[{` + group + `,"devices":[]}]`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			notes := notesOf(t, tc.args...)
			for _, text := range []string{none, some} {
				if strings.Contains(notes, text) != (text == tc.want) {
					t.Errorf("%q is there: %v, want %q alone:\n%s", text, text != tc.want, tc.want, notes)
				}
			}
		})
	}
}

// notesOf returns the notes of an installation with more helm arguments, without a cluster.
func notesOf(t *testing.T, args ...string) string {
	t.Helper()
	out, err := helm(t.Context(), append([]string{
		"install", release, chartDir, "--namespace", namespace, "--dry-run=client", "--kubeconfig", filepath.Join(t.TempDir(), "none"),
	}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	_, notes, found := strings.Cut(string(out), "\nNOTES:\n")
	if !found {
		t.Fatalf("helm tells no notes:\n%s", out)
	}
	return notes
}
