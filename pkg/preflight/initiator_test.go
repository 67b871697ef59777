package preflight_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nearflash/nearflash/pkg/preflight"
)

// TestMakeInitiatorName: many callers agree on one name, which is well formed and stays.
func TestMakeInitiatorName(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "initiatorname.iscsi")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := preflight.MakeInitiatorName(file); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	node := preflight.Node{InitiatorNameFile: file}
	name, err := node.InitiatorName()
	if err != nil {
		t.Fatal(err)
	}
	if err := preflight.MakeInitiatorName(file); err != nil {
		t.Error(err)
	}
	if again, err := node.InitiatorName(); err != nil || again != name {
		t.Errorf("the name is %q (%v), and was %q", again, err, name)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	other := filepath.Join(t.TempDir(), "initiatorname.iscsi")
	if err := preflight.MakeInitiatorName(other); err != nil {
		t.Fatal(err)
	}
	if second, err := (preflight.Node{InitiatorNameFile: other}).InitiatorName(); err != nil || second == name {
		t.Errorf("another node is named %q, %v", second, err)
	}
	// One that is there is an administrator's, whatever is in it.
	if err := os.WriteFile(other, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := preflight.MakeInitiatorName(other); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "\n" {
		t.Errorf("a file that was there is %q now, %v", b, err)
	}
	if err := preflight.MakeInitiatorName(filepath.Join(dir, "away", "name")); err == nil {
		t.Error("made in a directory that is not there")
	}
}
