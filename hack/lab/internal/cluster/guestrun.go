package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/netns"
	"github.com/nearflash/nearflash/hack/lab/internal/node"
	"github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/lab/internal/proc"
)

// Errors of RunGuest.
var (
	// ErrGuestDied: a throw-away guest ended without an exit code.
	ErrGuestDied = errors.New("the guest ended before its command did")
	// ErrGuestHung: a throw-away guest has not shown for beatLimit that it lives.
	ErrGuestHung = errors.New("the guest hangs")
)

// beatLimit is far more than a guest needs for a beat on a busy machine.
const beatLimit = 5 * time.Minute

// scriptDir is where a throw-away guest sees the folder it runs in.
const scriptDir = "/mnt"

// Run describes one command in a throw-away guest.
type Run struct {
	// Kernel is the guest kernel, Root the image below the guest's root.
	Kernel, Root string
	// Dir is the folder that the guest sees as its working folder, read-write.
	Dir  string
	Argv []string
	Env  []string
	// Disks is the number of empty disks, DiskMiB the size of each. They are
	// /dev/ubdb and the following, with Stock /dev/vdb and the following.
	Disks     int
	DiskMiB   int64
	MemoryMiB int
	// Stock is set for a kernel that needs a whole machine.
	Stock *Stock
}

// Stock is a machine for a distribution's kernel.
type Stock struct {
	// Emulator is qemu-system-x86_64.
	Emulator string
	// Boot is the folder of the modules that the kernel boots with, Modules an image of
	// all that it has.
	Boot, Modules string
	CPUs          int
	KVM           bool
}

// RunGuest boots a guest without a network, runs the command in it as root, and
// returns the command's exit code. Nothing of the guest is left afterwards but
// what the command wrote into the folder.
func (l *Lab) RunGuest(ctx context.Context, r Run, stdout, stderr io.Writer) (code int, err error) {
	base := filepath.Dir(l.Paths.Root)
	if err := os.MkdirAll(base, 0o700); err != nil {
		return 0, fmt.Errorf("state folder: %w", err)
	}
	dir, unlock, err := newRun(ctx, base)
	if err != nil {
		return 0, err
	}
	defer unlock()
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g, err := l.prepareRun(ctx, dir, r)
	if err != nil {
		return 0, err
	}
	backend, err := l.runBackend(dir, r, g)
	if err != nil {
		return 0, err
	}
	spec, err := backend.Spec(g)
	if err != nil {
		return 0, err
	}
	procs := proc.NewTable(dir)
	rec, err := procs.Start(netns.Private, spec)
	if err != nil {
		return 0, err
	}
	defer func() {
		// The command's context may be over; the guest must go all the same.
		err = errors.Join(err, procs.Stop(context.WithoutCancel(ctx), rec, 0))
	}()
	return follow(ctx, g.Share, rec, beatLimit, stdout, stderr, func(cause error) error {
		console, readErr := os.ReadFile(g.Console)
		return errors.Join(fmt.Errorf("%w; its console:\n%s%s", cause, console, registers(ctx, backend, g)), readErr)
	})
}

// registers are those of an emulated machine, or why they are not known.
func registers(ctx context.Context, backend node.Backend, g node.Guest) string {
	machine, ok := backend.(node.QEMU)
	if !ok {
		return ""
	}
	// The command's context may be over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	said, err := machine.Registers(ctx, g)
	if err != nil {
		said += fmt.Sprintf("unknown: %v", err)
	}
	return "\nits processors:\n" + said
}

// runBackend is what runs a throw-away guest.
func (l *Lab) runBackend(dir string, r Run, g node.Guest) (node.Backend, error) {
	if r.Stock == nil {
		return l.Backend, nil
	}
	initramfs := filepath.Join(dir, "initramfs")
	if err := node.WriteInitramfs(initramfs, filepath.Join(g.Boot, agentapi.AgentFile), r.Stock.Boot); err != nil {
		return nil, err
	}
	folder, err := filepath.Abs(r.Dir)
	if err != nil {
		return nil, fmt.Errorf("working folder: %w", err)
	}
	return node.QEMU{
		Program: r.Stock.Emulator, Initramfs: initramfs, Modules: r.Stock.Modules, CPUs: r.Stock.CPUs, KVM: r.Stock.KVM, Folders: []string{folder},
	}, nil
}

// prepareRun lays out the files of a throw-away guest.
func (l *Lab) prepareRun(ctx context.Context, dir string, r Run) (node.Guest, error) {
	abs, err := filepath.Abs(r.Dir)
	if err != nil {
		return node.Guest{}, fmt.Errorf("working folder: %w", err)
	}
	if st, err := os.Stat(abs); err != nil || !st.IsDir() {
		return node.Guest{}, errors.Join(fmt.Errorf("working folder %s is not a folder", abs), err)
	}
	source := abs
	if r.Stock != nil {
		source = node.FolderTag(0)
	}
	boot, share := filepath.Join(dir, "boot"), filepath.Join(dir, "share")
	if err := l.makeBoot(ctx, boot); err != nil {
		return node.Guest{}, err
	}
	if err := os.MkdirAll(filepath.Join(share, agentapi.LogDir), 0o700); err != nil {
		return node.Guest{}, fmt.Errorf("share: %w", err)
	}
	err = writeConfig(share, agentapi.Config{
		Node: "guest", Role: plan.RoleScript,
		Script: &agentapi.Script{Argv: r.Argv, Dir: scriptDir, Env: r.Env},
		Mounts: []agentapi.Mount{{Source: source, Target: scriptDir}},
	})
	if err != nil {
		return node.Guest{}, err
	}
	g := node.Guest{
		Name: "guest", Kernel: r.Kernel, Boot: boot, Share: share, RootBase: r.Root,
		RootCOW: filepath.Join(dir, "root.cow"), MemoryMiB: r.MemoryMiB,
		RunDir: dir, Console: filepath.Join(dir, "console.log"),
	}
	for i := range r.Disks {
		disk := filepath.Join(dir, fmt.Sprintf("disk%d.img", i))
		if err := node.MakeDisk(disk, r.DiskMiB<<20); err != nil {
			return node.Guest{}, err
		}
		g.Disks = append(g.Disks, disk)
	}
	return g, nil
}

// follow copies a script's output as it grows until its exit code is there.
func follow(ctx context.Context, share string, rec proc.Record, limit time.Duration, stdout, stderr io.Writer, failed func(error) error) (int, error) {
	beat := heart{file: filepath.Join(share, agentapi.BeatFile)}
	outs := []*tail{
		{path: filepath.Join(share, agentapi.StdoutFile), to: stdout},
		{path: filepath.Join(share, agentapi.StderrFile), to: stderr},
	}
	for {
		// Looked at first: what comes before the exit code is all there is.
		alive := rec.Alive()
		exit, exitErr := os.ReadFile(filepath.Join(share, agentapi.ExitFile))
		for _, t := range outs {
			if err := t.copy(); err != nil {
				return 0, err
			}
		}
		switch {
		case exitErr == nil:
			return strconv.Atoi(strings.TrimSpace(string(exit)))
		case !errors.Is(exitErr, os.ErrNotExist):
			return 0, fmt.Errorf("exit code: %w", exitErr)
		case !alive:
			return 0, failed(ErrGuestDied)
		case beat.silent(time.Now()) > limit:
			return 0, failed(fmt.Errorf("%w: nothing of it was seen for %v", ErrGuestHung, limit))
		}
		select {
		case <-ctx.Done():
			return 0, failed(context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// heart looks at a guest's beats.
type heart struct {
	file string
	last string
	at   time.Time // when last was first seen
}

// silent is for how long the same beat has been there. A guest that has not begun is not silent.
func (h *heart) silent(now time.Time) time.Duration {
	b, err := os.ReadFile(h.file)
	if err == nil && len(b) > 0 && string(b) != h.last { // empty while it is written
		h.last, h.at = string(b), now
	}
	if h.last == "" {
		return 0
	}
	return now.Sub(h.at)
}

// tail copies what was added to a file since the last time.
type tail struct {
	path string
	to   io.Writer
	off  int64
}

func (t *tail) copy() error {
	f, err := os.Open(t.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	defer f.Close()
	n, err := io.Copy(t.to, io.NewSectionReader(f, t.off, 1<<62))
	t.off += n
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	return nil
}

const (
	runPrefix = "run-"
	runLock   = "owner.lock"
)

// newRun makes the folder of a throw-away guest, locked by this process until it ends or
// unlocks it, and removes those that nobody holds any more. One process at a time does: a
// folder that has just been made would be taken for one that is left over.
func newRun(ctx context.Context, base string) (dir string, unlock func(), err error) {
	only, err := flock(filepath.Join(base, runLock), os.O_CREATE, 0)
	if err != nil {
		return "", nil, err
	}
	defer only()
	if err := sweepRuns(ctx, base); err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp(base, runPrefix); err != nil {
		return "", nil, fmt.Errorf("guest's folder: %w", err)
	}
	if unlock, err = flock(filepath.Join(dir, runLock), os.O_CREATE, syscall.LOCK_NB); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, unlock, nil
}

// flock takes an exclusive lock on a file; with [syscall.LOCK_NB] it fails when it is held.
func flock(path string, open, flags int) (func(), error) {
	f, err := os.OpenFile(path, open|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|flags); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// sweepRuns ends and removes throw-away guests whose command was killed.
func sweepRuns(ctx context.Context, base string) error {
	dirs, err := filepath.Glob(filepath.Join(base, runPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		unlock, err := flock(filepath.Join(dir, runLock), 0, syscall.LOCK_NB)
		if errors.Is(err, os.ErrNotExist) {
			// Its removal has begun, and the file was first.
			errs = append(errs, os.RemoveAll(dir))
			continue
		}
		if err != nil {
			continue // in use
		}
		procs := proc.NewTable(dir)
		recs, err := procs.List()
		errs = append(errs, err)
		for _, rec := range recs {
			errs = append(errs, procs.Stop(ctx, rec, 0))
		}
		errs = append(errs, os.RemoveAll(dir))
		unlock()
	}
	return errors.Join(errs...)
}
