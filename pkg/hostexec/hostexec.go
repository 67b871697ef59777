package hostexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// killGrace is how long Run waits for the output pipes to close after the
// process group has been killed, and for the end of a process that only looks.
const killGrace = 5 * time.Second

// ErrNotInstalled is wrapped by the error of [Runner].Run if the program does
// not exist or is not executable.
var ErrNotInstalled = errors.New("program is not installed")

// Cmd is one program run.
type Cmd struct {
	// Name is the program, looked up in PATH unless it contains a slash.
	Name string
	// Args are its arguments without the program name.
	Args []string
	// Stdin is the standard input; nil means empty.
	Stdin io.Reader
	// Env is added to the environment of this process as KEY=VALUE. LC_ALL=C is
	// always set and cannot be overridden: the output is parsed.
	Env []string
	// Looks tells that the program changes nothing. A process in uninterruptible sleep (a
	// device that no longer answers) cannot be ended; Run does not wait for one that only
	// looks. It waits for any other: what that is doing in the kernel must not go on behind
	// whoever acts next.
	Looks bool
}

// Look is Command for a program that changes nothing.
func Look(name string, args ...string) Cmd {
	return Cmd{Name: name, Args: args, Looks: true}
}

// Command is shorthand for a Cmd with a name and arguments only.
func Command(name string, args ...string) Cmd {
	return Cmd{Name: name, Args: args}
}

// String is the command line for humans, with values that look like secrets
// replaced. It is not quoted for a shell.
func (c Cmd) String() string {
	return redactedLine(c.Name, c.Args)
}

// Result is what a program wrote. It is valid, as far as the program got, even
// when Run returned an error.
type Result struct {
	Stdout []byte
	Stderr []byte
}

// Runner runs host programs.
type Runner interface {
	// Run starts the program and waits for its end.
	//
	// Errors: *[ExitError] if the program ran and ended with a status other than
	// zero or by a signal; [ErrNotInstalled] if it could not be found; the
	// context's error (errors.Is works) if ctx ended first, in which case the
	// whole process group was killed; one that only looks may still be about to end.
	Run(ctx context.Context, cmd Cmd) (Result, error)
}

// ExitError says that a program ended unsuccessfully.
type ExitError struct {
	// Name and Args are the command; Args has been redacted.
	Name string
	Args []string
	// ExitCode is the exit status, or -1 if a signal ended the program.
	ExitCode int
	// Stderr is everything the program wrote there, unabridged.
	Stderr []byte
}

// maxStderrInError bounds the error text; ExitError.Stderr keeps everything.
const maxStderrInError = 2048

// Error implements error: command, status and what the program said.
func (e *ExitError) Error() string {
	text := bytes.TrimSpace(e.Stderr)
	if len(text) > maxStderrInError {
		text = append([]byte("..."), text[len(text)-maxStderrInError:]...)
	}
	line := Cmd{Name: e.Name, Args: e.Args}.String()
	if len(text) == 0 {
		return fmt.Sprintf("%s: exit status %d", line, e.ExitCode)
	}
	return fmt.Sprintf("%s: exit status %d: %s", line, e.ExitCode, text)
}

// NewExitError builds the error for a command that ended with exitCode; fakes
// use it so that they redact as the real runner does.
func NewExitError(cmd Cmd, exitCode int, stderr []byte) *ExitError {
	return &ExitError{Name: cmd.Name, Args: redactArgs(cmd.Args), ExitCode: exitCode, Stderr: stderr}
}

type runner struct{}

// New returns the Runner that really starts programs.
func New() Runner {
	return runner{}
}

// Run implements Runner.
func (runner) Run(ctx context.Context, cmd Cmd) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("%s: %w", cmd, err)
	}
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(ctx, cmd.Name, cmd.Args...)
	c.Stdin, c.Stdout, c.Stderr = cmd.Stdin, &stdout, &stderr
	c.Env = append(append(os.Environ(), cmd.Env...), "LC_ALL=C")
	// A group of its own, so that helpers the tool has started die with it.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return killGroup(c.Process.Pid) }
	c.WaitDelay = killGrace

	began := time.Now()
	err := c.Start()
	if err == nil {
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		if err = await(ctx, cmd, ended); errors.Is(err, errStuck) {
			// The buffers are still the process's.
			return Result{}, fmt.Errorf("%s: %w: %w", cmd, err, ctx.Err())
		}
	}
	klog.FromContext(ctx).V(6).Info("Program ended", "command", cmd.String(), "duration", time.Since(began))
	res := Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}
	if err == nil {
		return res, nil
	}
	return res, classify(ctx, cmd, res.Stderr, err)
}

// errStuck: the kernel does not let go of a process that was killed.
var errStuck = errors.New("the process cannot be ended, it waits for a device")

// await waits for the end of a process; one that only looks is left behind when it does
// not end although it was killed.
func await(ctx context.Context, cmd Cmd, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	var patience <-chan time.Time
	if cmd.Looks {
		// The pipes are closed after one killGrace.
		patience = time.After(2 * killGrace)
	}
	select {
	case err := <-ended:
		return err
	case <-patience:
		return errStuck
	}
}

func killGroup(pid int) error {
	err := syscall.Kill(-pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// classify turns the errors of os/exec into those promised by Runner.
func classify(ctx context.Context, cmd Cmd, stderr []byte, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return fmt.Errorf("%s: %w", cmd, ctxErr)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return NewExitError(cmd, exit.ExitCode(), stderr)
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%s: %w: %w", cmd.Name, ErrNotInstalled, err)
	}
	return fmt.Errorf("%s: %w", cmd, err)
}
