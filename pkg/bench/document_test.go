package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocumented: what the document shows is what is printed of the figures that the specs labelled
// bench-command have measured in a lab.
func TestDocumented(t *testing.T) {
	document, err := os.ReadFile("../../docs/how-to/measure-your-own-load.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		plots int
		words []string
	}{
		"lab-database.json": {2, []string{"transactions per second beside a move", "latency beside a move", "with its cache", "without its cache", "<th>TPS</th>"}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			var r Report
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			if shown := indented(t, &r); !strings.Contains(string(document), shown) {
				t.Errorf("the document does not show:\n%s", shown)
			}
			page, err := r.HTML()
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range want.words {
				if !strings.Contains(string(page), w) {
					t.Errorf("the page does not have %q", w)
				}
			}
			if n := pictures(t, string(page)); n != want.plots || strings.Contains(string(page), "NaN") {
				t.Errorf("%d pictures in %s", n, page)
			}
		})
	}
}

// indented is what is printed of a report, as documents have it.
func indented(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Table(&b); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		if strings.TrimSpace(line) != "" {
			out.WriteString("    ")
		}
		out.WriteString(line)
	}
	return out.String()
}
