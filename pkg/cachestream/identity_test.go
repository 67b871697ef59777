package cachestream

import (
	"os"
	"path/filepath"
	"testing"
)

// TestKeyFile: a server that is started again proves itself by the same key; a file that is no
// key is replaced.
func TestKeyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	of := func(file string) string {
		t.Helper()
		_, key, err := newIdentity(file)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	first := of(file)
	if again := of(file); again != first {
		t.Errorf("key %q after a restart, it was %q", again, first)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(file, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if next := of(file); next == first || next != of(file) {
		t.Errorf("in place of a broken file: %q", next)
	}
	if one, two := of(""), of(""); one == two {
		t.Error("two processes without a file have one key")
	}
}
