package apiserver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Processes are those of a control plane, by the names etcd and kube-apiserver.
type Processes struct {
	t   testing.TB
	pid map[string]int
}

// Names of processes.
const (
	Server = "kube-apiserver"
	Etcd   = "etcd"
)

// ticks is USER_HZ, in which the kernel counts what /proc shows.
const ticks = 100

// children finds the processes among those of this test's. There must not be two control planes.
func children(t testing.TB) *Processes {
	t.Helper()
	p := &Processes{t: t, pid: map[string]int{}}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		name, fields, err := stat(path)
		if err != nil || fields[1] != strconv.Itoa(os.Getpid()) || name != Server && name != Etcd {
			continue // it may have ended
		}
		if p.pid[name], err = strconv.Atoi(filepath.Base(filepath.Dir(path))); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.pid) != 2 {
		t.Fatalf("the control plane has the processes %v", p.pid)
	}
	return p
}

// stat reads proc_pid_stat(5): the name, and the fields from the state on.
func stat(path string) (name string, fields []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	head, tail, found := strings.Cut(string(text), ") ")
	_, name, named := strings.Cut(head, "(")
	if fields = strings.Fields(tail); !found || !named || len(fields) < 22 {
		return "", nil, fmt.Errorf("%s: %q", path, text)
	}
	return name, fields, nil
}

func (p *Processes) number(name string, field int) int64 {
	p.t.Helper()
	_, fields, err := stat(fmt.Sprintf("/proc/%d/stat", p.pid[name]))
	if err != nil {
		p.t.Fatal(err)
	}
	n, err := strconv.ParseInt(fields[field], 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// CPU is the processor time that a process has used.
func (p *Processes) CPU(name string) time.Duration {
	p.t.Helper()
	return time.Duration(p.number(name, 11)+p.number(name, 12)) * time.Second / ticks
}

// Resident is the memory that the kernel counts for a process, in bytes. That of etcd has its
// database, as far as that was read.
func (p *Processes) Resident(name string) int64 {
	p.t.Helper()
	return p.number(name, 21) * int64(os.Getpagesize())
}

// RestartServer kills the API server, and starts it with the same arguments until serves says that
// it serves: of many clients that come back, one may have the server's port for its own end.
func (p *Processes) RestartServer(serves func() bool) {
	p.t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid[Server]))
	if err != nil {
		p.t.Fatal(err)
	}
	var args []string
	for arg := range bytes.SplitSeq(bytes.TrimRight(line, "\x00"), []byte{0}) {
		args = append(args, string(arg))
	}
	if err := unix.Kill(p.pid[Server], unix.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	for !p.ended() { // as long as it lives, it has the port
		time.Sleep(10 * time.Millisecond)
	}
	silence, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = silence.Close() }() // they have their own
	for p.ended() {
		server, err := os.StartProcess(args[0], args, &os.ProcAttr{Files: []*os.File{silence, silence, silence}})
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() {
			_ = server.Kill() // it may have ended
			_, _ = server.Wait()
		})
		for p.pid[Server] = server.Pid; !p.ended(); time.Sleep(100 * time.Millisecond) {
			if serves() {
				return
			}
		}
	}
}

// ended reports whether the API server has ended, and waits for somebody to hear of it.
func (p *Processes) ended() bool {
	_, fields, err := stat(fmt.Sprintf("/proc/%d/stat", p.pid[Server]))
	return err != nil || fields[0] == "Z"
}
