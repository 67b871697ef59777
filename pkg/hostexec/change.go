package hostexec

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// NewApart returns a Runner whose changes survive the end of the container that this
// process is the first of, and which knows those that a process before it began.
//
// dir has a file for each device that is being changed, with the command in it. The
// command's own process holds the lock of the file (flock(2)), whoever else ends.
//
// The program must be in the PID namespace of the host (hostPID): no process can leave its
// own for that of its parent. Outside says whether it can leave its cgroup.
func NewApart(dir string) (*Apart, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return &Apart{runner{changes: changes{dir: dir}, outside: &outside{proc: "/proc", pid: os.Getpid()}}}, nil
}

// Apart is a Runner for a container.
type Apart struct{ runner }

var _ Runner = (*Apart)(nil)

// Outside says why changes would end with the container, nil if they would not. They are
// run all the same: what must not be killed is the caller's to refuse.
func (a *Apart) Outside() error { return a.outside.check() }

// changes are the commands that change devices, one for each device at a time.
type changes struct {
	// dir is where they leave word for a process after this one; "" for nowhere.
	dir string
	mu  sync.Mutex
	m   map[string]*changeUnderWay
}

type changeUnderWay struct {
	line  string
	since time.Time
	ended chan struct{}
}

// lockPause is the time between two looks at a command of an earlier process.
const lockPause = 50 * time.Millisecond

// change runs a program that changes a device.
func (r *runner) change(ctx context.Context, cmd Cmd) (Result, error) {
	path, err := exec.LookPath(cmd.Name)
	if err != nil {
		return Result{}, missing(cmd, err)
	}
	mine, err := r.changes.claim(ctx, cmd)
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", cmd, err)
	}
	lock, err := r.changes.lock(ctx, cmd)
	if err != nil {
		r.changes.end(cmd.Device, mine, nil)
		return Result{}, fmt.Errorf("%s: %w", cmd, err)
	}
	p, err := r.startApart(path, cmd, lock)
	if err != nil {
		r.changes.end(cmd.Device, mine, lock)
		return Result{}, err
	}
	go func() {
		<-p.ended
		r.changes.end(cmd.Device, mine, lock)
	}()
	select {
	case <-mine.ended:
		return p.result(ctx, cmd)
	case <-ctx.Done():
	}
	go func() {
		<-mine.ended
		p.streams.close()
	}()
	return Result{}, fmt.Errorf("%s: %w, it is not ended and goes on: %w", cmd, ErrRuns, ctx.Err())
}

// script moves the shell out of this process's cgroups (the paths before "--"), keeps the
// kernel from choosing it when memory is short, and waits for the program. Descriptor 3 is
// the lock: LVM closes what it does not know. The last line keeps the shell from becoming
// the program.
const script = `while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done
shift
{ echo -1000 >/proc/self/oom_score_adj; } 2>/dev/null
"$@" 3>&-
exit $?`

// join moves the shell into the cgroup whose file has descriptor 4, before the script.
const join = "echo 0 >&4 || exit 125; exec 4>&-\n"

// codeOf tells an exit status of the shell from that of a signal.
func codeOf(status int) int {
	if status > 128 {
		return -1
	}
	return status
}

// startApart starts a program in a session of its own, outside of the container's cgroup.
func (r *runner) startApart(path string, cmd Cmd, lock *os.File) (*process, error) {
	text, place := script, place{}
	if r.outside != nil {
		// Where that cannot be, the program runs as well as it can; Outside says so.
		if p, err := r.outside.open(); err == nil {
			place = p
		}
	}
	if place.group != nil {
		text = join + script
		defer func() { _ = place.group.Close() }() // the program has its own
	}
	args := append([]string{"-c", text, "sh"}, place.tasks...)
	//lint:ignore commandcontext a change is never ended
	c := exec.Command("sh", append(append(args, "--", path), cmd.Args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.ExtraFiles = []*os.File{lock, place.group}
	return startAs(c, cmd)
}

// claim waits until no command of this process changes the device.
func (c *changes) claim(ctx context.Context, cmd Cmd) (*changeUnderWay, error) {
	mine := &changeUnderWay{line: cmd.String(), since: time.Now(), ended: make(chan struct{})}
	for {
		c.mu.Lock()
		before := c.m[cmd.Device]
		if before == nil {
			if c.m == nil {
				c.m = map[string]*changeUnderWay{}
			}
			mine.since = time.Now()
			c.m[cmd.Device] = mine
		}
		c.mu.Unlock()
		if before == nil {
			return mine, nil
		}
		if err := before.wait(ctx); err != nil {
			return nil, err
		}
	}
}

func (w *changeUnderWay) wait(ctx context.Context) error {
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %s, since %s: %w", ErrRuns, w.line, w.since.UTC().Format(time.RFC3339), ctx.Err())
	}
}

// end gives a device back.
func (c *changes) end(device string, mine *changeUnderWay, lock *os.File) {
	if lock != nil {
		_ = os.Remove(lock.Name()) // a file that is left tells nothing without its lock
		_ = lock.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.m, device)
	close(mine.ended)
}

// lock waits until no command of another process changes the device, and leaves word of
// this one. Without a directory it returns no file.
func (c *changes) lock(ctx context.Context, cmd Cmd) (*os.File, error) {
	if c.dir == "" {
		return nil, nil
	}
	for {
		f, err := os.OpenFile(c.file(cmd.Device), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		held, err := tryLock(f)
		if held {
			if _, err = f.WriteString(cmd.String() + "\n"); err == nil {
				return f, nil
			}
		}
		said := word(f)
		_ = f.Close() // nothing is lost
		if err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %s: %w", ErrRuns, said, ctx.Err())
		case <-time.After(lockPause):
		}
	}
}

// tryLock takes the lock of a file that is still the one of its name.
func tryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}

// word is what an earlier process said of its command.
func word(f *os.File) string {
	buf := make([]byte, 1024)
	n, err := f.ReadAt(buf, 0)
	text, _, _ := strings.Cut(string(buf[:n]), "\n")
	if text == "" && err != nil {
		text = "a command of an earlier process"
	}
	if st, err := f.Stat(); err == nil {
		text += ", since " + st.ModTime().UTC().Format(time.RFC3339)
	}
	return text
}

// file is the file of a device.
func (c *changes) file(device string) string { return filepath.Join(c.dir, url.PathEscape(device)) }

// Await implements Runner.
func (r *runner) Await(ctx context.Context, devices ...string) error {
	for _, device := range devices {
		r.changes.mu.Lock()
		before := r.changes.m[device]
		r.changes.mu.Unlock()
		if before != nil {
			if err := before.wait(ctx); err != nil {
				return err
			}
			continue
		}
		if err := r.changes.awaitOther(ctx, device); err != nil {
			return err
		}
	}
	return nil
}

// awaitOther waits for the command of another process.
func (c *changes) awaitOther(ctx context.Context, device string) error {
	for c.dir != "" {
		f, err := os.OpenFile(c.file(device), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		held, err := tryLock(f)
		if held {
			_ = os.Remove(f.Name()) // as in end
		}
		said := word(f)
		_ = f.Close() // nothing was written
		if held || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w", ErrRuns, said, ctx.Err())
		case <-time.After(lockPause):
		}
	}
	return nil
}
