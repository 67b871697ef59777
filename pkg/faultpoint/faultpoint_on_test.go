//go:build faultpoints

package faultpoint

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const childEnv = "NEARFLASH_FAULT_CHILD"

// TestMain lets the test binary be its own victim.
func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		Point{name: name}.Hit()
		os.Exit(7)
	}
	os.Exit(m.Run())
}

func runChild(t *testing.T, dir, name string) *os.ProcessState {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.StartProcess(exe, []string{exe}, &os.ProcAttr{Env: append(os.Environ(), DirEnv+"="+dir, childEnv+"="+name)})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestArmedPointKillsOnce(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.y")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ws, ok := runChild(t, dir, "x.y").Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("child ended with %v, want SIGKILL", ws)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("fault file: %v, want it gone", err)
	}
	if code := runChild(t, dir, "x.y").ExitCode(); code != 7 {
		t.Errorf("second run ended with %d, want to pass the point", code)
	}
}

func TestSleep(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.y"), []byte("sleep 300ms\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if code := runChild(t, dir, "x.y").ExitCode(); code != 7 {
		t.Errorf("child ended with %d", code)
	}
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("took %s", took)
	}
}

func TestBug(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(DirEnv, dir)
	b := NewBug("x")
	if b.On() {
		t.Error("the defect is there although nobody asked for it")
	}
	if err := os.WriteFile(filepath.Join(dir, b.Name()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if !b.On() {
			t.Error("the defect is not there, or not for long")
		}
	}
}
