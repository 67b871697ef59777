package attach

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSweepMapFiles: what was made to read a map goes, and nothing that is kept.
func TestSweepMapFiles(t *testing.T) {
	dir := t.TempDir()
	kept := []string{"v.copied", "v.heat", "v.hot.xml", "v.stay", "v.xml"}
	for _, name := range append([]string{"v.preload.raw", "v.preload.hot", "v.scrub.raw", "v.hot", "v.level.raw"}, kept...) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &Attacher{Config: Config{Warm: WarmConfig{Dir: dir}}}
	a.SweepMapFiles(t.Context())
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, f := range files {
		left = append(left, f.Name())
	}
	if !slices.Equal(left, kept) {
		t.Errorf("left are %q, want %q", left, kept)
	}
}
