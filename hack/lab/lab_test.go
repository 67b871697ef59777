package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestCheckout(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sub := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(sub)
	if _, err := checkout(); !errors.Is(err, errNoCheckout) {
		t.Errorf("outside of a checkout: error %v, want %v", err, errNoCheckout)
	}
	// A module of its own within the checkout, such as a tool's, is not it.
	for path, module := range map[string]string{
		filepath.Join(dir, "a", "go.mod"): "module github.com/nearflash/nearflash/hack/tools/x\n",
		filepath.Join(dir, "go.mod"):      "module github.com/nearflash/nearflash\n",
	} {
		if err := os.WriteFile(path, []byte(module), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := checkout(); err != nil || got != dir {
		t.Errorf("got %q, %v, want %q", got, err, dir)
	}
}

func TestGuestScript(t *testing.T) {
	dir := t.TempDir()
	if _, err := guestScript(dir); err == nil {
		t.Error("an empty folder has a script")
	}
	for _, name := range []string{"guest.sh", "run.sh"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := guestScript(dir); err != nil || got != "./"+name {
			t.Errorf("with %s: got %q, %v", name, got, err)
		}
	}
}

func TestReadInput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ path, want string }{
		"file":        {path, "data"},
		"no terminal": {os.DevNull, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(tc.path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got, err := readInput(f)
			if err != nil || string(got) != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestWithLabProgram(t *testing.T) {
	env, err := withLabProgram([]string{"A=b"})
	if err != nil || len(env) != 2 {
		t.Fatalf("got %q, %v", env, err)
	}
	kept, err := withLabProgram([]string{labEnv + "=/my/lab --name x"})
	if err != nil || len(kept) != 1 {
		t.Errorf("the caller's own program is replaced: %q, %v", kept, err)
	}
}
