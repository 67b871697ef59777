package extents

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree makes files, folders, links and a pipe as a pod may have made them.
func tree(t *testing.T) (root string) {
	t.Helper()
	outside := filepath.Join(t.TempDir(), "secret")
	root = t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(outside, nil, 0o600))
	must(os.MkdirAll(filepath.Join(root, "models", "deep", "er"), 0o700))
	for _, name := range []string{"top", "models/a", "models/b", "models/deep/c", "models/deep/er/d"} {
		must(os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}
	must(os.Symlink(outside, filepath.Join(root, "models", "link")))
	must(os.Symlink(filepath.Dir(outside), filepath.Join(root, "models", "out")))
	must(os.Symlink("deep", filepath.Join(root, "models", "loop")))
	must(unix.Mkfifo(filepath.Join(root, "models", "pipe"), 0o600))
	return root
}

func TestWalk(t *testing.T) {
	root := tree(t)
	for name, c := range map[string]struct {
		path, want string
		wantErr    error
	}{
		"everything":             {want: "a b c d top"},
		"a folder":               {path: "models", want: "a b c d"},
		"a deeper one":           {path: "models/deep/er", want: "d"},
		"a file":                 {path: "models/a", want: "a"},
		"nothing there":          {path: "none", wantErr: ErrNotFound},
		"below a file":           {path: "top/x", wantErr: ErrNotFound},
		"a link":                 {path: "models/link", wantErr: ErrNotFound},
		"through a link":         {path: "models/out/secret", wantErr: ErrNotFound},
		"through one that stays": {path: "models/loop/c", wantErr: ErrNotFound},
		"out of it":              {path: "../" + filepath.Base(root) + "/top", wantErr: ErrNotFound},
		"absolute":               {path: "/etc", wantErr: ErrNotFound},
		"a pipe":                 {path: "models/pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			files, err := walk(t.Context(), root, c.path, func(f *os.File) error { got = append(got, f.Name()); return nil })
			slices.Sort(got)
			for i := range got {
				got[i] = filepath.Base(got[i])
			}
			if !errors.Is(err, c.wantErr) || strings.Join(got, " ") != c.want || files != len(got) {
				t.Errorf("%d files %v, %v, want %s, %v", files, got, err, c.want, c.wantErr)
			}
		})
	}
}

// TestWalkEnds: a walk ends when there is enough, when it is cancelled, and with an error.
func TestWalkEnds(t *testing.T) {
	root := tree(t)
	if files, err := walk(t.Context(), root, "", func(*os.File) error { return ErrStop }); err != nil || files != 1 {
		t.Errorf("%d files, %v", files, err)
	}
	broken := errors.New("broken")
	if _, err := walk(t.Context(), root, "", func(*os.File) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	files, err := walk(ctx, root, "", func(*os.File) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || files != 1 {
		t.Errorf("%d files, %v", files, err)
	}
}
