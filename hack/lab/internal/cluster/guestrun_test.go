package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// TestHeart: only a guest that has begun and shows nothing new is silent.
func TestHeart(t *testing.T) {
	h := heart{file: filepath.Join(t.TempDir(), "beat")}
	for i, step := range []struct {
		at   time.Duration
		beat string
		want time.Duration
	}{
		{at: time.Hour},
		{at: 2 * time.Hour, beat: "0"},
		{at: 3 * time.Hour, beat: "0", want: time.Hour},
		{at: 3 * time.Hour, beat: "", want: time.Hour}, // it is being written
		{at: 4 * time.Hour, beat: "1"},
		{at: 4*time.Hour + time.Second, beat: "1", want: time.Second},
	} {
		if i > 0 {
			if err := os.WriteFile(h.file, []byte(step.beat), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := h.silent(time.Time{}.Add(step.at)); got != step.want {
			t.Errorf("step %d: silent for %v, want %v", i, got, step.want)
		}
	}
}

// TestNewRunBesideOthers: a guest that begins while others begin and end keeps its folder.
func TestNewRunBesideOthers(t *testing.T) {
	base := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				dir, unlock, err := newRun(t.Context(), base)
				if err != nil {
					t.Error(err)
					return
				}
				work := filepath.Join(dir, "work")
				if err := errors.Join(os.WriteFile(work, nil, 0o600), os.Remove(work), os.RemoveAll(dir)); err != nil {
					t.Error(err)
				}
				unlock()
			}
		})
	}
	all.Wait()
	if left, err := filepath.Glob(filepath.Join(base, runPrefix+"*")); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestNewRunSweeps: what a killed command has left goes, what is in use stays.
func TestNewRunSweeps(t *testing.T) {
	base := t.TempDir()
	used, unlock, err := newRun(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	held, release, err := newRun(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	release() // as the end of its process does
	empty, err := os.MkdirTemp(base, runPrefix)
	if err != nil {
		t.Fatal(err)
	}
	_, unlock, err = newRun(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for dir, want := range map[string]bool{used: true, held: false, empty: false} {
		if _, err := os.Stat(dir); err == nil != want {
			t.Errorf("%s: there %v, want %v", dir, err == nil, want)
		}
	}
}
