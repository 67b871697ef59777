package hostexec_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

func TestRunKeepsStreamsApart(t *testing.T) {
	cmd := hostexec.Command("sh", "-c", `cat; echo "locale $LC_ALL $EXTRA"; echo oops >&2`)
	cmd.Stdin = strings.NewReader("from stdin\n")
	cmd.Env = []string{"EXTRA=1", "LC_ALL=de_DE.UTF-8"}
	res, err := hostexec.New().Run(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("from stdin\nlocale C 1\n", string(res.Stdout)); diff != "" {
		t.Errorf("stdout (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("oops\n", string(res.Stderr)); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
}

func TestRunExitError(t *testing.T) {
	_, err := hostexec.New().Run(t.Context(), hostexec.Command("sh", "-c", "echo no space >&2; exit 5", "--password=hunter2"))
	var exit *hostexec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("got %v, want an ExitError", err)
	}
	if exit.ExitCode != 5 || !strings.Contains(string(exit.Stderr), "no space") {
		t.Errorf("exit code %d, stderr %q", exit.ExitCode, exit.Stderr)
	}
	if strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "exit status 5: no space") {
		t.Errorf("error text %q", err)
	}
}

// A program that writes somebody else's data to a file fills no disk.
func TestRunBoundsFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out")
	cmd := hostexec.Query("sh", "-c", `while :; do echo 0123456789; done > "$0"`, file)
	cmd.FileBytes = 1 << 16
	if _, err := hostexec.New().Run(t.Context(), cmd); err == nil || t.Context().Err() != nil {
		t.Errorf("a file without end: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() == 0 || info.Size() > 1<<16 {
		t.Errorf("the file: %+v, %v", info, err)
	}
}

func TestRunNotInstalled(t *testing.T) {
	for _, name := range []string{"no-such-program-here", "/no/such/path"} {
		if _, err := hostexec.New().Run(t.Context(), hostexec.Command(name)); !errors.Is(err, hostexec.ErrNotInstalled) {
			t.Errorf("%s: got %v, want ErrNotInstalled", name, err)
		}
	}
}

// The shell waits for a child that would keep the pipes open: only a kill of
// the whole group ends both at once.
func TestRunCancelKillsTheGroup(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := hostexec.New().Run(ctx, hostexec.Command("sh", "-c", "sleep 60 & wait"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want deadline exceeded", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %s: the child outlived the shell", took)
	}
}

func TestRunRefusesEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := hostexec.New().Run(ctx, hostexec.Command("true")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
}

func TestCmdStringRedacts(t *testing.T) {
	cases := map[string]struct {
		cmd  hostexec.Cmd
		want string
	}{
		"nothing secret": {
			cmd:  hostexec.Command("lvcreate", "-n", "a", "-L", "4m"),
			want: "lvcreate -n a -L 4m",
		},
		"name=value": {
			cmd:  hostexec.Command("x", "--chap-password=abc", "--other=1"),
			want: "x --chap-password=***stripped*** --other=1",
		},
		"option and value": {
			cmd:  hostexec.Command("x", "--password", "abc", "tail"),
			want: "x --password ***stripped*** tail",
		},
		"iscsiadm, short": {
			cmd:  hostexec.Command("iscsiadm", "-m", "node", "-o", "update", "-n", "node.session.auth.password", "-v", "abc"),
			want: "iscsiadm -m node -o update -n node.session.auth.password -v ***stripped***",
		},
		"iscsiadm, long": {
			cmd:  hostexec.Command("iscsiadm", "--name=node.session.auth.password", "--value=abc"),
			want: "iscsiadm --name=node.session.auth.password --value=***stripped***",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.cmd.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
