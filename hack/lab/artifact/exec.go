package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// heartbeat is how often a long step says that it is still at work.
	heartbeat = 30 * time.Second
	// killGrace is how long a cancelled command has to clean up after itself.
	killGrace = 10 * time.Second
	// errorTail is how much of a failed command's output its error carries, in bytes.
	errorTail = 3000
)

// newCommand prepares a command that dies with ctx together with everything it
// started: it leads its own process group, and that group is signalled. When this
// program is killed, the kernel signals the command (prctl(2), PR_SET_PDEATHSIG).
func newCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killGrace
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return cmd
}

// run runs a prepared command and returns its standard output. The end of what
// it wrote goes into the error.
func run(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	cmd.Stderr = &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		// The group may have members that ignored the polite signal.
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("%s: %w\n%s", cmd.Args[0], err, tail(stdout.String()+stderr.String(), errorTail))
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) <= n {
		return s
	}
	return "..." + s[len(s)-n:]
}

// step runs fn, says what is being done, that it is still going on, and how
// long it took.
func (s *store) step(ctx context.Context, what string, fn func(context.Context) error) error {
	start := time.Now()
	s.progress("%s ...", what)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.progress("%s: still at it after %.0f s", what, time.Since(start).Seconds())
			}
		}
	}()
	err := fn(ctx)
	cancel()
	<-done
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			s.progress("%s: failed after %.0f s", what, time.Since(start).Seconds())
		}
		return err
	}
	s.progress("%s: done in %.1f s", what, time.Since(start).Seconds())
	return nil
}
