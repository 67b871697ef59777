package hostexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Errors of [Runner].Run; test with errors.Is.
var (
	// ErrNotInstalled: the program does not exist or is not executable.
	ErrNotInstalled = errors.New("program is not installed")
	// ErrRuns: a program that changes the kernel's state has not ended. Nobody may act on
	// its device until it has.
	ErrRuns = errors.New("a command for this device has not ended yet")
	// ErrStuck: the kernel does not let go of a program that only looks and was killed, or
	// of the one that looked before.
	ErrStuck = errors.New("the process cannot be ended, it waits for a device")
)

// Cmd is one program run. What its context does to it depends on what the program is:
// see [Query], [Command] and [Change].
type Cmd struct {
	// Name is the program, looked up in PATH unless it contains a slash.
	Name string
	// Args are its arguments without the program name.
	Args []string
	// Stdin is the standard input; nil means empty. It is read to its end before the
	// program starts, so that the program never sees a part of it.
	Stdin io.Reader
	// Env is added to the environment of this process as KEY=VALUE. LC_ALL=C is
	// always set and cannot be overridden: the output is parsed.
	Env []string
	// ReadOnly tells that the program changes nothing.
	ReadOnly bool
	// Changes tells that the program makes the kernel change something; Device says of
	// what. It must not be empty then, and names what two programs must not change at a
	// time: a device of the device mapper, a volume group.
	Changes bool
	Device  string
	// FileBytes bounds each file that the program writes; 0 is no bound. It is ended by
	// SIGXFSZ at that (setrlimit(2), RLIMIT_FSIZE).
	FileBytes uint64
	// Mounts is the mount namespace that has the program and in which it runs (a file of
	// ns/mnt, proc_pid_ns(5)); nil is this process's. It may not be one of a [Change].
	Mounts *os.File
}

// Query is a program that changes nothing. It is killed when its context ends, and not
// waited for: a process in uninterruptible sleep (a device that no longer answers) cannot
// be ended. While one cannot, the same look is not begun again: it is [ErrStuck] at once.
func Query(name string, args ...string) Cmd {
	return Cmd{Name: name, Args: args, ReadOnly: true}
}

// Command is a program that works by itself. It is killed when its context ends, and
// waited for: what it is doing in the kernel must not go on behind whoever acts next.
func Command(name string, args ...string) Cmd {
	return Cmd{Name: name, Args: args}
}

// Change is a program that makes the kernel change something of a device. It is never
// killed. When its context ends, Run returns [ErrRuns] and the program goes on; one for
// the same device waits until it has ended.
//
// A fatal signal while the kernel builds a cache target can bring the node down: in
// cache_create (drivers/md/dm-cache-target.c) dm_kcopyd_client_create makes a work queue
// whose rescue thread cannot be started by a process that is to die; its error pointer
// (-EINTR) is kept in cache->copier, and destroy hands it to dm_kcopyd_client_destroy,
// which follows it. Seen on Linux 6.1 and 6.12; the lines are in 7.2.
func Change(device, name string, args ...string) Cmd {
	return Cmd{Name: name, Args: args, Changes: true, Device: device}
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
	// context's error (errors.Is works) if ctx ended first, with [ErrRuns] if the program
	// goes on or one before it has not ended, with [ErrStuck] if it could not be killed;
	// [ErrStuck] alone if the same look is stuck.
	Run(ctx context.Context, cmd Cmd) (Result, error)
	// Await returns when no [Change] of these devices runs, also none that a process
	// before this one began. Error: [ErrRuns] with the context's, if ctx ended first.
	Await(ctx context.Context, devices ...string) error
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
