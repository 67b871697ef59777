package faultpoint

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestListIsSortedAndComplete(t *testing.T) {
	New("test.b")
	p := New("test.a")
	got := List()
	if !slices.Contains(got, "test.a") || !slices.Contains(got, "test.b") || !slices.IsSorted(got) {
		t.Errorf("List() = %v", got)
	}
	if p.Name() != "test.a" {
		t.Errorf("Name() = %q", p.Name())
	}
}

func TestNewRefusesSecondDeclaration(t *testing.T) {
	New("test.twice")
	defer func() {
		if recover() == nil {
			t.Error("a name could be declared twice")
		}
	}()
	New("test.twice")
}

func TestHitPassesWhenNotArmed(t *testing.T) {
	t.Setenv("NEARFLASH_FAULT_DIR", t.TempDir())
	New("test.unarmed").Hit()
}

// TestBugNeedsTag: a program without the tag has no defects, whatever is asked for.
func TestBugNeedsTag(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("NEARFLASH_FAULT_DIR", dir)
	b := NewBug("test.tag")
	if err := os.WriteFile(filepath.Join(dir, b.Name()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if b.On() != Enabled {
		t.Errorf("On() = %t in a build with Enabled = %t", b.On(), Enabled)
	}
}
