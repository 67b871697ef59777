package artifact

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func newTestStore(t *testing.T) *store {
	t.Helper()
	return &store{root: t.TempDir(), progress: t.Logf}
}

// fileRecipe makes one file and counts how often it was built.
func fileRecipe(name string, builds *atomic.Int32) recipe {
	return recipe{name: name, inputs: []string{"v1"}, build: func(_ context.Context, dir, _ string) error {
		builds.Add(1)
		return os.WriteFile(filepath.Join(dir, "data"), []byte("content"), 0o644)
	}}
}

func TestKey(t *testing.T) {
	base := recipe{name: "thing", inputs: []string{"ab", "c"}}
	cases := map[string]struct {
		other    recipe
		wantSame bool
	}{
		"same":             {recipe{name: "thing", inputs: []string{"ab", "c"}}, true},
		"moved byte":       {recipe{name: "thing", inputs: []string{"a", "bc"}}, false},
		"additional input": {recipe{name: "thing", inputs: []string{"ab", "c", ""}}, false},
		"other order":      {recipe{name: "thing", inputs: []string{"c", "ab"}}, false},
		"other name":       {recipe{name: "thinG", inputs: []string{"ab", "c"}}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := base.key() == tc.other.key(); got != tc.wantSame {
				t.Errorf("same key: %v, want %v", got, tc.wantSame)
			}
		})
	}
}

func TestEnsureBuildsOnce(t *testing.T) {
	s := newTestStore(t)
	var builds atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := s.ensure(t.Context(), fileRecipe("thing", &builds))
			if err != nil {
				t.Error(err)
				return
			}
			if data, err := os.ReadFile(filepath.Join(dir, "data")); err != nil || string(data) != "content" {
				t.Errorf("got %q, %v", data, err)
			}
		})
	}
	wg.Wait()
	if got := builds.Load(); got != 1 {
		t.Errorf("built %d times, want once", got)
	}
}

func TestEnsureRepairs(t *testing.T) {
	cases := map[string]struct {
		damage     func(path string) error
		wantBuilds int32
	}{
		"none":      {func(string) error { return nil }, 1},
		"touched":   {func(p string) error { return os.Chtimes(p, time.Time{}, time.Unix(1, 0)) }, 1},
		"truncated": {func(p string) error { return os.Truncate(p, 3) }, 2},
		"edited":    {func(p string) error { return os.WriteFile(p, []byte("CONTENT"), 0o644) }, 2},
		"chmod":     {func(p string) error { return os.Chmod(p, 0o600) }, 2},
		"removed":   {os.Remove, 2},
		"manifest removed": {func(p string) error {
			return os.Remove(filepath.Join(filepath.Dir(p), manifestName))
		}, 2},
		"manifest damaged": {func(p string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(p), manifestName), []byte("{"), 0o644)
		}, 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t)
			var builds atomic.Int32
			r := fileRecipe("thing", &builds)
			dir, err := s.ensure(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if err := tc.damage(filepath.Join(dir, "data")); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time nothing may be left to do
				if _, err := s.ensure(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			if got := builds.Load(); got != tc.wantBuilds {
				t.Errorf("built %d times, want %d", got, tc.wantBuilds)
			}
			if data, err := os.ReadFile(filepath.Join(dir, "data")); err != nil || string(data) != "content" {
				t.Errorf("got %q, %v", data, err)
			}
		})
	}
}

// TestCheckContent: damage that leaves size and time as they were is found only
// when the content is read.
func TestCheckContent(t *testing.T) {
	for content, wantBuilds := range map[bool]int32{false: 1, true: 2} {
		s := newTestStore(t)
		s.checkContent = content
		var builds atomic.Int32
		r := fileRecipe("thing", &builds)
		dir, err := s.ensure(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "data")
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		damage := errors.Join(os.WriteFile(path, []byte("CONTENT"), 0o644), os.Chtimes(path, time.Time{}, info.ModTime()))
		if damage != nil {
			t.Fatal(damage)
		}
		if _, err := s.ensure(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := builds.Load(); got != wantBuilds {
			t.Errorf("check content %v: built %d times, want %d", content, got, wantBuilds)
		}
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	wantErr := errors.New("no")
	cases := map[string]struct {
		build   func(dir string) error
		wantErr error
	}{
		"failure": {func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "half"), nil, 0o644), wantErr)
		}, wantErr},
		"no files":        {func(string) error { return nil }, nil},
		"no regular file": {func(dir string) error { return os.Symlink("/dev/null", filepath.Join(dir, "x")) }, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t)
			r := recipe{name: "thing", build: func(_ context.Context, dir, _ string) error { return tc.build(dir) }}
			_, err := s.ensure(t.Context(), r)
			if err == nil || (tc.wantErr != nil && !errors.Is(err, tc.wantErr)) {
				t.Errorf("got error %v, want %v", err, tc.wantErr)
			}
			entries, err := os.ReadDir(s.root)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() != locksDir {
					t.Errorf("%s is left", e.Name())
				}
			}
		})
	}
}

func TestSweep(t *testing.T) {
	s := newTestStore(t)
	var builds atomic.Int32
	key := fileRecipe("thing", &builds).key()
	dead := filepath.Join(s.root, tmpPrefix+key+"-123")
	if err := os.MkdirAll(dead, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := s.lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.sweep(); err != nil {
		t.Fatal(err)
	}
	if !exists(dead) {
		t.Error("a directory was removed whose builder is alive")
	}
	unlock()
	if err := s.sweep(); err != nil {
		t.Fatal(err)
	}
	if exists(dead) {
		t.Error("a directory is left whose builder is gone")
	}
}

func TestRetire(t *testing.T) {
	s := newTestStore(t)
	var builds atomic.Int32
	old, recent := "thing-"+strings.Repeat("0", hashDigits), "thing-"+strings.Repeat("1", hashDigits)
	other := "thing-else-" + strings.Repeat("0", hashDigits)
	for _, key := range []string{old, recent, other} {
		path, err := s.lockPath(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Mkdir(filepath.Join(s.root, key), 0o755)); err != nil {
			t.Fatal(err)
		}
		if key != recent {
			long := time.Now().Add(-2 * keepUnused)
			if err := os.Chtimes(path, long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir, err := s.ensure(t.Context(), fileRecipe("thing", &builds))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{old: false, recent: true, other: true, filepath.Base(dir): true}
	for key, want := range want {
		if got := exists(filepath.Join(s.root, key)); got != want {
			t.Errorf("%s kept: %v, want %v", key, got, want)
		}
	}
}

func TestLockWaits(t *testing.T) {
	s := newTestStore(t)
	unlock, err := s.lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
}
