package durable

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	for _, text := range []string{"first", "second"} {
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("read %q, %v, want %q", b, err, text)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: others may read it", info.Mode(), err)
	}
	only(t, dir, "a.json")
	// What cannot be put in place leaves nothing, and harms nothing.
	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(taken, nil); err == nil {
		t.Error("a directory was replaced")
	}
	only(t, dir, "a.json", "taken")
	if err := WriteFile(filepath.Join(dir, "missing", "a"), nil); err == nil {
		t.Error("a file was written where there is no directory")
	}
}

func TestRemoveAndSweep(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	if err := WriteFile(path, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, tempPrefix+"1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	only(t, dir, "a.json")
	for range 2 {
		if err := Remove(path); err != nil {
			t.Errorf("remove: %v", err)
		}
		only(t, dir)
	}
	if err := Sweep(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing directory was swept")
	}
	if err := Remove(filepath.Join(dir, "missing", "a")); err == nil {
		t.Error("a file was removed of a directory that is missing")
	}
}

func only(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(want) {
		t.Fatalf("there are %v, want %v", entries, want)
	}
	for i, e := range entries {
		if e.Name() != want[i] {
			t.Errorf("there are %v, want %v", entries, want)
		}
	}
}
