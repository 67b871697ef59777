package hostexec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// groupName is the cgroup of commands that must not end with the plugin's container.
const groupName = "nearflash-commands"

// outside finds the cgroups that the host's first process sees.
type outside struct {
	// proc is where procfs is, pid this process.
	proc string
	pid  int
}

// place is where a process goes that leaves a container.
type place struct {
	// group is cgroup.procs of a cgroup below the root of the unified hierarchy (version
	// 2), nil if the host has none.
	group *os.File
	// tasks are the files of the root cgroups of the older hierarchies (version 1), where
	// a process may be anywhere.
	tasks []string
}

// check says why a process could not leave the container.
func (o *outside) check() error {
	if o.pid == 1 {
		return errors.New("this process is the first of its PID namespace, which ends with it; remedy: hostPID: true in the pod")
	}
	p, err := o.open()
	if err != nil {
		return err
	}
	if p.group != nil {
		return p.group.Close()
	}
	return nil
}

// open finds the place, and makes the cgroup.
func (o *outside) open() (place, error) {
	const remedy = "remedy: a privileged container with hostPID: true"
	text, err := os.ReadFile(filepath.Join(o.proc, "1/mountinfo"))
	if err != nil {
		return place{}, fmt.Errorf("cgroups of the host: %w; %s", err, remedy)
	}
	unified, older := cgroupMounts(string(text))
	root := filepath.Join(o.proc, "1/root")
	var p place
	for _, mount := range older {
		tasks := filepath.Join(root, mount, "cgroup.procs")
		if err := unix.Access(tasks, unix.W_OK); err != nil {
			return place{}, fmt.Errorf("cgroups of the host: %w; %s", &os.PathError{Op: "access", Path: tasks, Err: err}, remedy)
		}
		p.tasks = append(p.tasks, tasks)
	}
	if unified != "" {
		if p.group, err = o.openGroup(filepath.Join(root, unified, groupName)); err != nil {
			return place{}, fmt.Errorf("cgroups of the host: %w; %s", err, remedy)
		}
	}
	if unified == "" && len(older) == 0 {
		return place{}, fmt.Errorf("cgroups of the host: none is mounted for its first process; %s", remedy)
	}
	return p, nil
}

// cgroupMounts reads mountinfo (proc_pid_mountinfo(5)): where the unified hierarchy is
// mounted, and each of the older ones.
func cgroupMounts(text string) (unified string, older []string) {
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		head, tail, found := strings.Cut(line, " - ")
		f, t := strings.Fields(head), strings.Fields(tail)
		if !found || len(f) < 5 || len(t) < 1 || seen[f[2]] {
			continue
		}
		switch t[0] {
		case "cgroup2":
			seen[f[2]] = true
			if unified == "" {
				unified = f[4]
			}
		case "cgroup":
			seen[f[2]] = true
			older = append(older, f[4])
		}
	}
	return unified, older
}

// openGroup makes a cgroup and opens the file by which processes join it. A process may
// join only what the cgroup namespace of whoever opened that file contains (cgroups(7)), so
// it is opened in the namespace of the host's first process.
func (o *outside) openGroup(dir string) (f *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		back, enterErr := o.enter()
		if err = os.Mkdir(dir, 0o755); err == nil || errors.Is(err, os.ErrExist) {
			f, err = os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
		}
		if err != nil {
			err = errors.Join(err, enterErr)
		}
		if back() == nil {
			runtime.UnlockOSThread() // else the thread ends with this function
		}
	}()
	<-done
	return f, err
}

// enter moves this thread into the cgroup namespace of the host's first process, if it is
// in another one, and returns the way back.
func (o *outside) enter() (back func() error, err error) {
	stay := func() error { return nil }
	host, own := filepath.Join(o.proc, "1/ns/cgroup"), filepath.Join(o.proc, "thread-self/ns/cgroup")
	theirs, err := os.Readlink(host)
	if err != nil {
		return stay, err
	}
	if mine, err := os.Readlink(own); err != nil || mine == theirs {
		return stay, err
	}
	to, err := os.Open(host)
	if err != nil {
		return stay, err
	}
	defer func() { _ = to.Close() }()
	from, err := os.Open(own)
	if err != nil {
		return stay, err
	}
	if err := setns(to); err != nil {
		_ = from.Close()
		return stay, err
	}
	return func() error {
		defer func() { _ = from.Close() }()
		return setns(from)
	}, nil
}

func setns(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWCGROUP); err != nil {
		return &os.PathError{Op: "setns", Path: ns.Name(), Err: err}
	}
	return nil
}
