// Package proc starts, records and ends the lab's processes.
//
// A process is known by what the kernel cannot mix up: its number together with
// its start time, the session it leads, and the network namespace it lives in.
// Nothing is ever found or ended by its name.
package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Record is what is kept of one started process.
type Record struct {
	Name string `json:"name"`
	// PID is also the number of the session: every process is started as the
	// leader of its own.
	PID int `json:"pid"`
	// StartTime is in clock ticks since boot (proc(5), stat field 22).
	StartTime uint64 `json:"startTime"`
	// Netns is the inode number of the process's network namespace.
	Netns uint64 `json:"netns"`
}

// Spec describes a process to start.
type Spec struct {
	Name string
	Path string
	Args []string
	Env  []string // complete environment
	Dir  string
	// Log takes stdout and stderr; it is appended to.
	Log string
}

// Enter runs a function inside a network namespace.
type Enter func(func() error) error

// Table is the folder of records of one lab.
type Table struct{ dir string }

// NewTable returns the table that keeps its records in dir.
func NewTable(dir string) Table { return Table{dir: dir} }

// Start starts a process in the namespace that enter leads to, as the leader of
// a new session, and records it. The process outlives the caller.
func (t Table) Start(enter Enter, s Spec) (Record, error) {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return Record{}, fmt.Errorf("records of processes: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(s.Log), 0o700); err != nil {
		return Record{}, fmt.Errorf("log folder: %w", err)
	}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return Record{}, fmt.Errorf("log of %s: %w", s.Name, err)
	}
	defer log.Close()
	//lint:ignore commandcontext The process must outlive this command: it is ended by its record, not by a context.
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env, cmd.Dir = s.Env, s.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := enter(cmd.Start); err != nil {
		return Record{}, fmt.Errorf("start %s: %w", s.Name, err)
	}
	rec, err := describe(s.Name, cmd.Process.Pid)
	if err == nil {
		err = t.write(rec)
	}
	if err != nil {
		return Record{}, errors.Join(fmt.Errorf("record %s: %w", s.Name, err), cmd.Process.Kill(), cmd.Wait())
	}
	// Reap the process should it end before this command does.
	go func() { _ = cmd.Wait() }()
	return rec, nil
}

func describe(name string, pid int) (Record, error) {
	st, err := readStat(pid)
	if err != nil {
		return Record{}, err
	}
	ns, err := netnsOf(pid)
	if err != nil {
		return Record{}, err
	}
	return Record{Name: name, PID: pid, StartTime: st.start, Netns: ns}, nil
}

func (t Table) path(name string) string { return filepath.Join(t.dir, name+".json") }

func (t Table) write(r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := t.path(r.Name) + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, t.path(r.Name))
}

// Get returns the record of that name; the error is fs.ErrNotExist without one.
func (t Table) Get(name string) (Record, error) {
	b, err := os.ReadFile(t.path(name))
	if err != nil {
		return Record{}, fmt.Errorf("record of %s: %w", name, err)
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("record of %s: %w", name, err)
	}
	return r, nil
}

// List returns all records, by name.
func (t Table) List() ([]Record, error) {
	files, err := filepath.Glob(filepath.Join(t.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	var out []Record
	for _, f := range files {
		r, err := t.Get(strings.TrimSuffix(filepath.Base(f), ".json"))
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Alive tells whether the recorded process itself still runs.
func (r Record) Alive() bool {
	st, err := readStat(r.PID)
	return err == nil && st.start == r.StartTime && !st.over()
}

// Stop asks the process to end, waits up to grace for it, then kills what is
// left of its whole session, and removes the record. A grace of 0 kills at once.
func (t Table) Stop(ctx context.Context, r Record, grace time.Duration) error {
	if grace > 0 && r.Alive() {
		if err := signal(r.PID, unix.SIGTERM, r.matches); err != nil {
			return fmt.Errorf("stop %s: %w", r.Name, err)
		}
		wait, cancel := context.WithTimeout(ctx, grace)
		poll(wait, func() bool { return !r.Alive() })
		cancel()
	}
	if err := r.killSession(ctx); err != nil {
		return fmt.Errorf("kill %s: %w", r.Name, err)
	}
	if err := os.Remove(t.path(r.Name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("record of %s: %w", r.Name, err)
	}
	return nil
}

// ErrSurvivor is returned when processes stay although they were killed.
var ErrSurvivor = errors.New("processes survive SIGKILL")

// killSession kills every process of the session until none is left.
func (r Record) killSession(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var errs []error
	done := poll(ctx, func() bool {
		members := r.members()
		errs = errs[:0]
		for _, pid := range members {
			if err := signal(pid, unix.SIGKILL, r.matches); err != nil {
				errs = append(errs, err)
			}
		}
		return len(members) == 0
	})
	if !done {
		return errors.Join(append(errs, fmt.Errorf("%w: %v", ErrSurvivor, r.members()))...)
	}
	return nil
}

// members lists the processes of the session.
func (r Record) members() []int {
	var out []int
	for _, pid := range allPIDs() {
		if r.matches(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// matches tells whether pid belongs to the recorded session. The number of a
// session can be given away only after all its members are gone; the start time
// and the namespace tell such a foreign process apart.
func (r Record) matches(pid int) bool {
	st, err := readStat(pid)
	if err != nil || st.session != r.PID || st.start < r.StartTime || st.over() {
		return false
	}
	if pid == r.PID && st.start != r.StartTime {
		return false
	}
	ns, err := netnsOf(pid)
	if errors.Is(err, os.ErrNotExist) {
		// A process that ends leaves its namespaces before its sockets are closed.
		return true
	}
	return err == nil && ns == r.Netns
}

// InNetns lists the processes in the network namespace with that inode number.
func InNetns(inode uint64) []int {
	var out []int
	for _, pid := range allPIDs() {
		if ns, err := netnsOf(pid); err == nil && ns == inode {
			out = append(out, pid)
		}
	}
	return out
}

// KillInNetns kills every process in the namespace, except the caller and its
// ancestors, until none is left. It finds what was started but not yet recorded
// when a command was killed.
func KillInNetns(ctx context.Context, inode uint64) error {
	if inode == 0 {
		return nil
	}
	keep := ancestors(os.Getpid())
	inside := func(pid int) bool {
		ns, err := netnsOf(pid)
		return err == nil && ns == inode && !keep[pid]
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if !poll(ctx, func() bool {
		left := 0
		for _, pid := range InNetns(inode) {
			if inside(pid) {
				left++
				_ = signal(pid, unix.SIGKILL, inside)
			}
		}
		return left == 0
	}) {
		return ErrSurvivor
	}
	return nil
}

func ancestors(pid int) map[int]bool {
	out := map[int]bool{}
	for pid > 0 && !out[pid] {
		out[pid] = true
		st, err := readStat(pid)
		if err != nil {
			break
		}
		pid = st.ppid
	}
	return out
}

// poll calls done at growing intervals until it holds or ctx ends.
func poll(ctx context.Context, done func() bool) bool {
	wait := 2 * time.Millisecond
	for !done() {
		select {
		case <-ctx.Done():
			return done()
		case <-time.After(wait):
		}
		wait = min(2*wait, 100*time.Millisecond)
	}
	return true
}

// signal sends sig through a pidfd: the check runs after the number is pinned,
// so that a number given away meanwhile is never hit.
func signal(pid int, sig unix.Signal, check func(int) bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !check(pid) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %d: %w", pid, err)
	}
	return nil
}

func allPIDs() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}
