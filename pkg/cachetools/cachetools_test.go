package cachetools_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

// refusal is what thin-provisioning-tools 1.1.0 really said.
func refusal(t *testing.T, what string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "errors.txt"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(b), "# "+what+"\n")
	text, _, ended := strings.Cut(rest, "rc=64\n")
	if !found || !ended || text == "" {
		t.Fatalf("no refusal of %q in testdata/errors.txt", what)
	}
	return text
}

func TestErrors(t *testing.T) {
	cases := map[string]error{
		"dump bad superblock": cachetools.ErrRefused,
		"dump damaged":        cachetools.ErrRefused,
		"dump no device":      fs.ErrNotExist,
		"dump no space":       cachetools.ErrNoSpace,
		"dump busy":           cachetools.ErrBusy,
		"restore busy":        cachetools.ErrBusy,
		"restore no space":    cachetools.ErrNoSpace,
		"restore no file":     fs.ErrNotExist,
		"restore no device":   fs.ErrNotExist,
		"restore nothing":     cachetools.ErrRefused,
		"restore broken":      cachetools.ErrRefused,
	}
	for what, want := range cases {
		t.Run(what, func(t *testing.T) {
			run := hostexectest.New(t)
			tools := cachetools.Tools{Run: run}
			var err error
			if strings.HasPrefix(what, "dump") {
				run.On("cache_dump -o").Fail(64, refusal(t, what)).Once()
				err = tools.Dump(t.Context(), "/dev/x", filepath.Join(t.TempDir(), "x.xml"))
			} else {
				run.On("cache_restore -i").Fail(64, refusal(t, what)).Once()
				err = tools.Restore(t.Context(), "x.xml", "/dev/x")
			}
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "/dev/x") {
				t.Errorf("got %v, want %v", err, want)
			}
			for _, other := range []error{cachetools.ErrRefused, cachetools.ErrBusy, cachetools.ErrNoSpace} {
				if !errors.Is(want, other) && errors.Is(err, other) {
					t.Errorf("%v is %v, too", err, other)
				}
			}
		})
	}
}

// TestNoDirectIO: a map is not blamed for the filesystem of its copy.
func TestNoDirectIO(t *testing.T) {
	const file = "/proc/version" // no kernel has direct I/O for it
	run := hostexectest.New(t)
	run.On("cache_dump -o").Fail(64, "Invalid argument (os error 22)").Once()
	err := cachetools.Dump(t.Context(), run, file, filepath.Join(t.TempDir(), "x.xml"))
	if !errors.Is(err, cachetools.ErrNoDirect) || errors.Is(err, cachetools.ErrRefused) || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want %v", err, cachetools.ErrNoDirect)
	}
	if err := cachetools.DirectIO(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func TestCommands(t *testing.T) {
	run := hostexectest.New(t)
	run.On("cache_dump -o /f.xml /dev/m").Once()
	run.On("cache_restore -i /f.xml -o /dev/m").Once()
	tools := cachetools.Tools{Run: run}
	if err := errors.Join(tools.Dump(t.Context(), "/dev/m", "/f.xml"), tools.Restore(t.Context(), "/f.xml", "/dev/m")); err != nil {
		t.Fatal(err)
	}
}

// A dump that failed leaves nothing that could be taken for a map.
func TestDumpRemovesWhatItWrote(t *testing.T) {
	file := filepath.Join(t.TempDir(), "map.xml")
	run := hostexectest.New(t)
	run.On("cache_dump").Do(func(_ context.Context, c hostexectest.Call) (string, error) {
		if err := os.WriteFile(file, []byte("<superblock"), 0o600); err != nil {
			t.Error(err)
		}
		return "", hostexec.NewExitError(hostexec.Cmd{Name: c.Name, Args: c.Args}, 64, []byte(refusal(t, "dump damaged")))
	})
	if err := cachetools.Dump(t.Context(), run, "/dev/m", file); !errors.Is(err, cachetools.ErrRefused) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	gone := hostexectest.New(t)
	gone.On("cache_dump").Do(func(context.Context, hostexectest.Call) (string, error) { return "", hostexec.ErrNotInstalled })
	if err := cachetools.Dump(t.Context(), gone, "/dev/m", file); !errors.Is(err, hostexec.ErrNotInstalled) || errors.Is(err, cachetools.ErrRefused) {
		t.Errorf("got %v", err)
	}
}
