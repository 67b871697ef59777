package faultpoint

import (
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
