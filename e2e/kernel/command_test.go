//go:build kernel

package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
)

// hangingDM lets the frail SSD hang when a cache is about to be made.
type hangingDM struct {
	devmapper.Client
	run hostexec.Runner
}

func (h hangingDM) Create(ctx context.Context, name, uuid string, t devmapper.Table) (devmapper.Info, error) {
	if _, cache := t.Cache(); cache {
		if _, err := h.run.Run(ctx, hostexec.Change(frail, "dmsetup", "suspend", "--noflush", "--nolockfs", frail)); err != nil {
			return devmapper.Info{}, err
		}
	}
	return h.Client.Create(ctx, name, uuid, t)
}

// podGroup is the cgroup of the container that a test makes.
const podGroup = "/sys/fs/cgroup/pod"

// inContainer starts a child as the first process of a container that shares the PID
// namespace of its host: a cgroup of its own, and a namespace that shows nothing above it.
func (d *disk) inContainer(o order, wrapper ...string) *os.Process {
	t := d.m.t
	t.Helper()
	o.Dir, o.Req, o.Secret, o.Devices = d.n.dir, d.req, chapWord, []string{frailPath}
	o.Req.Credentials = nil
	b, err := json.Marshal(o)
	mustPass(t, "order", err)
	exe, err := os.Executable()
	mustPass(t, "executable", err)
	if err := os.Mkdir(podGroup, 0o755); !errors.Is(err, os.ErrExist) {
		mustPass(t, "cgroup", err)
	}
	group, err := os.Open(podGroup)
	mustPass(t, "cgroup", err)
	defer func() { _ = group.Close() }()
	p, err := os.StartProcess("/usr/bin/unshare", append(append([]string{"unshare", "--cgroup"}, wrapper...), exe), &os.ProcAttr{
		Env:   append(os.Environ(), childEnv+"="+string(b)),
		Files: []*os.File{nil, os.Stderr, os.Stderr},
		Sys:   &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())},
	})
	mustPass(t, "start", err)
	return p
}

// inGroup are the processes of a cgroup.
func inGroup(t *testing.T, group string) []int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	mustPass(t, "cgroup", err)
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(f)
		mustPass(t, "pid", err)
		pids = append(pids, pid)
	}
	return pids
}

// waiting returns the dmsetup that waits in the kernel, 0 if none does.
func waiting(name string) int {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		panic(err)
	}
	for _, f := range files {
		stat, err := os.ReadFile(f)
		line, lineErr := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		if err != nil || lineErr != nil {
			continue // it has ended
		}
		words := strings.Split(string(line), "\x00")
		_, state, _ := strings.Cut(string(stat), ") ")
		if strings.HasSuffix(words[0], "dmsetup") && slices.Contains(words, name) && strings.HasPrefix(state, "D") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err == nil {
				return pid
			}
		}
	}
	return 0
}

func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within five minutes", what)
		}
	}
}

// TestKernelCommandSurvives ends the container of the node plugin, in the ways in which
// containers end, while the kernel makes a cache whose SSD does not answer. A fatal signal
// for that command can bring a kernel down: it must go on, its successor must keep away
// until it has ended, and then converge (I8).
func TestKernelCommandSurvives(t *testing.T) {
	m := newMachine(t)
	// As on a host with systemd: a process may not leave what its namespace shows.
	m.must("mount", "-o", "remount,nsdelegate", "/sys/fs/cgroup")
	n := m.node(t.TempDir(), onFrailSSD(m))
	d := m.volume(n, "survivor", 128*mib, cached("writeback", 32*mib))
	d.req.Block = true
	d.stage()
	data := pattern(3, 4*mib)
	write(t, d.device(), data, 0, true)
	d.unstage()
	signal := func(sig syscall.Signal) {
		for _, pid := range inGroup(t, podGroup) {
			_ = syscall.Kill(pid, sig) // it may have ended
		}
	}
	for _, way := range []struct {
		name string
		end  func(first *os.Process)
	}{
		{"the first process is killed", func(first *os.Process) { mustPass(t, "kill", first.Kill()) }},
		{"the container is stopped", func(*os.Process) {
			signal(syscall.SIGTERM)
			time.Sleep(time.Second)
			signal(syscall.SIGKILL)
		}},
		{"its cgroup is killed", func(*os.Process) {
			mustPass(t, "kill cgroup", os.WriteFile(filepath.Join(podGroup, "cgroup.kill"), []byte("1"), 0))
		}},
	} {
		t.Log(way.name)
		d.endWhileCacheIsMade(way.end)
		d.stage()
		check(t, d.device(), data, 0)
		d.unstage()
		if t.Failed() {
			break
		}
	}
	d.remove()
	mustPass(t, "cgroup", os.Remove(podGroup))
}

// endWhileCacheIsMade stages in a container, ends that while the SSD hangs, and lets the
// SSD answer again.
func (d *disk) endWhileCacheIsMade(end func(first *os.Process)) {
	t := d.m.t
	t.Helper()
	top := "nf-" + string(d.req.ID)
	first := d.inContainer(order{Hang: true})
	command := 0
	soon(t, "the kernel makes the cache", func() bool { command = waiting(top); return command != 0 })
	end(first)
	if st, err := first.Wait(); err != nil || st.Success() {
		t.Fatalf("the container ended with %v, %v", st, err)
	}
	soon(t, "the container is empty", func() bool { return len(inGroup(t, podGroup)) == 0 })
	if now := waiting(top); now != command {
		t.Fatalf("the command was process %d and is %d: it ended with the container", command, now)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", command))
	mustPass(t, "status", err)
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if slices.Contains([]string{"SigPnd:", "ShdPnd:"}, f[0]) && f[1] != "0000000000000000" {
			t.Errorf("a signal is pending for the command: %s", line)
		}
	}
	// The next plugin keeps away, and says from what.
	sctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err = d.n.Stage(sctx, d.req)
	if !errors.Is(err, hostexec.ErrRuns) || !strings.Contains(err.Error(), "dmsetup create "+top) {
		t.Errorf("stage beside the command of the plugin before: %v", err)
	}
	if err := d.n.Repair(sctx); !errors.Is(err, hostexec.ErrRuns) {
		t.Errorf("repair beside it: %v", err)
	}
	d.m.must("dmsetup", "resume", frail)
	mustPass(t, "the command ends", d.n.DM.Await(t.Context(), top))
	if _, found := d.cache(); !found {
		t.Error("the command has ended and made no cache")
	}
	tainted, err := os.ReadFile("/proc/sys/kernel/tainted")
	mustPass(t, "tainted", err)
	if bits, err := strconv.Atoi(strings.TrimSpace(string(tainted))); err != nil || bits&(1<<7) != 0 {
		t.Errorf("the kernel has died a little: tainted %s", tainted)
	}
}

// TestKernelOwnPIDNamespace: a container that does not share the host's PID namespace takes
// its commands along; the plugin knows, and makes no caches there.
func TestKernelOwnPIDNamespace(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onFrailSSD(m))
	d := m.volume(n, "alone", 64*mib, cached("writethrough", 32*mib))
	for name, wrapper := range map[string][]string{"": nil, "in its own PID namespace": {"--pid", "--fork", "--mount-proc"}} {
		st, err := d.inContainer(order{Outside: true}, wrapper...).Wait()
		mustPass(t, "wait", err)
		if st.Success() != (wrapper == nil) {
			t.Errorf("a container %s: %v", name, st)
		}
	}
	d.remove()
	mustPass(t, "cgroup", os.Remove(podGroup))
}
