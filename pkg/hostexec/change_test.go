package hostexec_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// otherEnv makes the test binary a process that changes a device and is killed while it
// does; the value is the folder.
const otherEnv = "NEARFLASH_HOSTEXEC_OTHER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(otherEnv); dir != "" {
		run, err := hostexec.NewApart(filepath.Join(dir, "state"))
		if err == nil {
			_, err = run.Run(context.Background(), held(dir))
		}
		if err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// held is a change of "disk" that closes all files which it was not told of, as LVM does,
// goes on until there is a file "go", and then makes the file "done" with its input.
func held(dir string) hostexec.Cmd {
	cmd := hostexec.Change("disk", "bash", "-c", `for f in /proc/$$/fd/*; do n=${f##*/}; [ "$n" -le 2 ] || eval "exec $n>&-"; done
echo begun; echo oops >&2; : >"$0/begun"; until [ -e "$0/go" ]; do sleep 0.02; done; cat >"$0/part"; mv "$0/part" "$0/done"; echo ended`, dir)
	cmd.Stdin = strings.NewReader(strings.Repeat("0 8 linear\n", 100_000))
	return cmd
}

func await(t *testing.T, path string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not there", path)
		}
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// wantRuns: err says that a command has not ended, and which.
func wantRuns(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, hostexec.ErrRuns) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "bash") {
		t.Errorf("%s: got %v, want ErrRuns of bash", what, err)
	}
}

func whole(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || len(b) != 1_100_000 {
		t.Errorf("the command read %d bytes of its input, want 1100000 (%v)", len(b), err)
	}
}

// TestChangeIsNotEndedByItsContext: the caller is told, the command goes on, and the next
// one for the device waits for it.
func TestChangeIsNotEndedByItsContext(t *testing.T) {
	for name, run := range runners(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := run.Run(short(t), held(dir))
			wantRuns(t, "the command", err)
			next := hostexec.Change("disk", "true")
			_, err = run.Run(short(t), next)
			wantRuns(t, "the next command", err)
			wantRuns(t, "Await", run.Await(short(t), "other", "disk"))
			if _, err := run.Run(t.Context(), hostexec.Change("other", "true")); err != nil {
				t.Errorf("another device: %v", err)
			}
			await(t, filepath.Join(dir, "begun"))
			ended := make(chan error, 1)
			go func() {
				_, err := run.Run(t.Context(), next)
				if _, statErr := os.Stat(filepath.Join(dir, "done")); statErr != nil && err == nil {
					err = errors.New("the next command did not wait")
				}
				ended <- err
			}()
			touch(t, filepath.Join(dir, "go"))
			if err := <-ended; err != nil {
				t.Error(err)
			}
			whole(t, filepath.Join(dir, "done"))
		})
	}
}

func runners(t *testing.T) map[string]hostexec.Runner {
	t.Helper()
	apart, err := hostexec.NewApart(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]hostexec.Runner{"in a container": apart, "anywhere": hostexec.New()}
}

// TestChangeSurvivesItsProcess kills a process, and its whole group, that has begun a
// change: the next process waits for the command, which has read all of its input.
func TestChangeSurvivesItsProcess(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command(exe)
	other.Env = append(os.Environ(), otherEnv+"="+dir)
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, filepath.Join(dir, "begun"))
	if err := syscall.Kill(-other.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := other.Wait(); err == nil {
		t.Fatal("the process was not killed")
	}
	run, err := hostexec.NewApart(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	next := hostexec.Change("disk", "true")
	_, err = run.Run(short(t), next)
	wantRuns(t, "the next process's command", err)
	wantRuns(t, "Await", run.Await(short(t), "disk"))
	touch(t, filepath.Join(dir, "go"))
	if err := run.Await(t.Context(), "disk"); err != nil {
		t.Error(err)
	}
	whole(t, filepath.Join(dir, "done"))
	if _, err := run.Run(t.Context(), next); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "state")); err != nil || len(left) > 0 {
		t.Errorf("word of commands that have ended is left: %v %v", left, err)
	}
}

func TestChangeEnds(t *testing.T) {
	for name, run := range runners(t) {
		t.Run(name, func(t *testing.T) {
			for script, want := range map[string]int{"exit 5": 5, "kill -KILL $$": -1} {
				res, err := run.Run(t.Context(), hostexec.Change("disk", "bash", "-c", "echo out; echo no space >&2; "+script, "--password=hunter2"))
				var exit *hostexec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode != want || !strings.HasPrefix(string(exit.Stderr), "no space\n") || string(res.Stdout) != "out\n" || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("%s: got %q, %v, want exit status %d", script, res.Stdout, err, want)
				}
			}
			if _, err := run.Run(t.Context(), hostexec.Change("disk", "no-such-program-here")); !errors.Is(err, hostexec.ErrNotInstalled) {
				t.Errorf("got %v, want ErrNotInstalled", err)
			}
			if _, err := run.Run(t.Context(), hostexec.Change("", "true")); err == nil {
				t.Error("a change of nothing was run")
			}
		})
	}
}
