package hostexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// patience is how long Run waits for the end of a look that was killed.
	patience = 2 * time.Second
	// slowQuery is how long a look may take before the next one of the kind waits for it.
	slowQuery = time.Second
	// stuckQuery is how long a look may take before the next one of the kind does not wait
	// for it any more.
	stuckQuery = 15 * time.Second
)

type runner struct {
	changes changes
	queries queries
	// outside is where changes run; nil leaves them in the caller's cgroup.
	outside *outside
}

// New returns a Runner for a program that no container ends: a [Change] is in a session of
// its own, and survives the end of this process, but neither that of its cgroup nor that of
// its PID namespace. A process that comes after this one does not know of it.
func New() Runner { return &runner{} }

// streams are the standard streams of a program. They are files in memory: a pipe would
// hand on a part of the input, and kill whoever writes to it, when this process ends.
type streams struct{ in, out, err *os.File }

func openStreams(stdin io.Reader) (s streams, err error) {
	for name, f := range map[string]**os.File{"stdin": &s.in, "stdout": &s.out, "stderr": &s.err} {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			s.close()
			return streams{}, os.NewSyscallError("memfd_create", err)
		}
		*f = os.NewFile(uintptr(fd), name)
	}
	if stdin == nil {
		return s, nil
	}
	if _, err = io.Copy(s.in, stdin); err == nil {
		_, err = s.in.Seek(0, io.SeekStart)
	}
	if err != nil {
		s.close()
		return streams{}, fmt.Errorf("standard input: %w", err)
	}
	return s, nil
}

func (s streams) close() {
	for _, f := range []*os.File{s.in, s.out, s.err} {
		if f != nil {
			_ = f.Close() // memory
		}
	}
}

// result is what was written so far.
func (s streams) result() (res Result, err error) {
	read := func(f *os.File) []byte {
		b, readErr := io.ReadAll(io.NewSectionReader(f, 0, 1<<62))
		err = errors.Join(err, readErr)
		return b
	}
	res.Stdout, res.Stderr = read(s.out), read(s.err)
	return res, err
}

// Run implements Runner.
func (r *runner) Run(ctx context.Context, cmd Cmd) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("%s: %w", cmd, err)
	}
	began := time.Now()
	defer func() {
		klog.FromContext(ctx).V(6).Info("Program ended", "command", cmd.String(), "duration", time.Since(began))
	}()
	switch {
	case cmd.Changes && cmd.Mounts != nil:
		return Result{}, fmt.Errorf("%s: a command that changes the kernel is run in another mount namespace", cmd)
	case cmd.Changes && cmd.Device == "":
		return Result{}, fmt.Errorf("%s: a command that changes the kernel names no device", cmd)
	case cmd.Changes:
		return r.change(ctx, cmd)
	case cmd.ReadOnly:
		return r.query(ctx, cmd)
	}
	p, err := start(cmd)
	if err != nil {
		return Result{}, err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.kill()
		<-p.ended
	}
	return p.result(ctx, cmd)
}

// hostPath is where programs of a host are looked for. Talos has its extensions' in /usr/local, NixOS
// all of them in a folder of its own.
const hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin"

// notFound is the exit status of nsenter if there is no such program (nsenter(1)).
const notFound = 127

// process is a program that was started.
type process struct {
	cmd     *exec.Cmd
	streams streams
	// ended is closed when the program has; err is then what Wait said.
	ended chan struct{}
	err   error
}

// start starts a program in a group of its own, so that helpers that it has started die with it.
func start(cmd Cmd) (*process, error) {
	name, args := cmd.Name, cmd.Args
	if cmd.Mounts != nil {
		// The root directory is that of the namespace; nsenter becomes the program.
		name, args = "nsenter", append([]string{"--mount=/proc/self/fd/3", "--", cmd.Name}, args...)
	}
	//lint:ignore commandcontext Run kills the whole group
	c := exec.Command(name, args...)
	if cmd.Mounts != nil {
		c.ExtraFiles = []*os.File{cmd.Mounts}
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return startAs(c, cmd)
}

func startAs(c *exec.Cmd, cmd Cmd) (*process, error) {
	s, err := openStreams(cmd.Stdin)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	c.Stdin, c.Stdout, c.Stderr = s.in, s.out, s.err
	c.Env = append(append(os.Environ(), cmd.Env...), "LC_ALL=C")
	if cmd.Mounts != nil {
		c.Env = append(c.Env, "PATH="+hostPath)
	}
	if err := c.Start(); err != nil {
		s.close()
		return nil, missing(cmd, err)
	}
	limitErr := limitFiles(c.Process.Pid, cmd.FileBytes)
	p := &process{cmd: c, streams: s, ended: make(chan struct{})}
	go func() {
		p.err = c.Wait()
		close(p.ended)
	}()
	if limitErr != nil {
		p.kill()
		<-p.ended
		s.close()
		return nil, fmt.Errorf("%s: bound its files: %w", cmd, limitErr)
	}
	return p, nil
}

// limitFiles bounds the files of a process that has started. The bound holds for where a
// write would end, so that what was written before it does not escape.
func limitFiles(pid int, bytes uint64) error {
	if bytes == 0 {
		return nil
	}
	err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: bytes}, nil)
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended
	}
	return err
}

func missing(cmd Cmd, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%s: %w: %w", cmd.Name, ErrNotInstalled, err)
	}
	return fmt.Errorf("%s: %w", cmd, err)
}

// kill ends the whole group.
func (p *process) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// result is what a program that has ended wrote and how it ended.
func (p *process) result(ctx context.Context, cmd Cmd) (Result, error) {
	defer p.streams.close()
	res, err := p.streams.result()
	switch ctxErr := ctx.Err(); {
	case err != nil:
		return res, fmt.Errorf("%s: %w", cmd, err)
	case p.err == nil:
		return res, nil
	case ctxErr != nil && !cmd.Changes:
		return res, fmt.Errorf("%s: %w", cmd, ctxErr)
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		code := exit.ExitCode()
		if cmd.Mounts != nil && code == notFound {
			return res, fmt.Errorf("%s: %w on the host: %s", cmd.Name, ErrNotInstalled, strings.TrimSpace(string(res.Stderr)))
		}
		if cmd.Changes {
			code = codeOf(code)
		}
		return res, NewExitError(cmd, code, res.Stderr)
	}
	return res, fmt.Errorf("%s: %w", cmd, p.err)
}

// queries are the first of each kind of look that has not ended.
type queries struct {
	mu sync.Mutex
	m  map[string]*pendingQuery
}

type pendingQuery struct {
	since time.Time
	// abandoned is closed when nobody waits for it any more, ended when it has ended.
	abandoned, ended chan struct{}
}

// query runs a program that changes nothing.
func (r *runner) query(ctx context.Context, cmd Cmd) (Result, error) {
	kind := cmd.Name + "\x00" + fmt.Sprint(cmd.Args)
	if cmd.Device != "" {
		kind = cmd.Device
	}
	mine, err := r.queries.begin(ctx, kind)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", cmd, err)
	}
	p, err := start(cmd)
	if err != nil {
		r.queries.end(kind, mine)
		return Result{}, err
	}
	select {
	case <-p.ended:
		r.queries.end(kind, mine)
		return p.result(ctx, cmd)
	case <-ctx.Done():
		p.kill()
	}
	select {
	case <-p.ended:
		r.queries.end(kind, mine)
		return p.result(ctx, cmd)
	case <-time.After(patience):
	}
	close(mine.abandoned)
	go func() {
		<-p.ended
		p.streams.close()
		r.queries.end(kind, mine)
	}()
	return Result{}, fmt.Errorf("%s: %w: %w", cmd, ErrStuck, ctx.Err())
}

// begin lets a look begin unless one of its kind has been under way for long. That one is
// waited for, unless nobody does any more.
func (l *queries) begin(ctx context.Context, kind string) (*pendingQuery, error) {
	mine := &pendingQuery{since: time.Now(), abandoned: make(chan struct{}), ended: make(chan struct{})}
	for {
		l.mu.Lock()
		before := l.m[kind]
		if before == nil {
			if l.m == nil {
				l.m = map[string]*pendingQuery{}
			}
			mine.since = time.Now()
			l.m[kind] = mine
		}
		l.mu.Unlock()
		if before == nil {
			return mine, nil
		}
		if again, err := before.wait(ctx); err != nil || !again {
			return mine, err
		}
	}
}

// wait returns false if another look may begin beside this one, true if this one has ended.
func (l *pendingQuery) wait(ctx context.Context) (ended bool, err error) {
	age := time.Since(l.since)
	select {
	case <-l.ended:
		return true, nil
	case <-l.abandoned:
		age = stuckQuery
	default:
		if age < slowQuery {
			return false, nil
		}
	}
	select {
	case <-l.ended:
		return true, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(stuckQuery - age):
	case <-l.abandoned:
	}
	since := fmt.Errorf("%w: the same look since %s", ErrStuck, l.since.UTC().Format(time.RFC3339))
	if err != nil {
		since = fmt.Errorf("%w: %w", since, err)
	}
	return false, since
}

func (l *queries) end(kind string, mine *pendingQuery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m[kind] == mine {
		delete(l.m, kind)
	}
	close(mine.ended)
}
