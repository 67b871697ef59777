package freeze

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/faultpoint"
)

const (
	// fiFreeze and fiThaw are _IOWR('X', 119, int) and _IOWR('X', 120, int) of linux/fs.h.
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
	// writesOut bounds how often a filesystem is written out before it is frozen, until that
	// takes less than quick: what the freeze itself writes out, the pod waits for.
	writesOut = 5
	quick     = time.Second
)

var (
	faultGuardOpen     = faultpoint.New("freeze.guard-open")
	faultGuardFreezing = faultpoint.New("freeze.guard-freezing")
	faultGuardFrozen   = faultpoint.New("freeze.guard-frozen")
	faultGuardThawed   = faultpoint.New("freeze.guard-thawed")
)

// The reasons for which a freeze does not count.
var (
	errWithdrawn = errors.New("it was not wanted any more before it was frozen")
	errSlow      = errors.New("the storage takes too long to write the filesystem out, and the pod would wait for it")
	errForeign   = errors.New("somebody else has frozen the filesystem")
	errOver      = errors.New("it was thawed because its time was over")
	errEnded     = errors.New("somebody else has thawed it")
)

// Guard is the process that freezes a filesystem and thaws it. It returns the exit status.
func Guard(args []string, stderr io.Writer) int {
	err := runGuard(args)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err) // nobody else could be told
		return 1
	}
	return 0
}

func runGuard(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: freeze FILE TOKEN; the node plugin runs this")
	}
	file := args[0]
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var o Order
	if err := json.Unmarshal(b, &o); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if o.Token != args[1] {
		return errWithdrawn
	}
	dir, err := openMount(o.Path, o.DevNo)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	faultGuardOpen.Hit()
	g := guard{
		limit: o.Limit, now: time.Now, pause: func() { time.Sleep(look) },
		wanted:   func() bool { return wanted(file, o.Token) },
		writeOut: func() error { return unix.Syncfs(int(dir.Fd())) },
		freeze:   func() error { return fsIoctl(dir, fiFreeze) },
		thaw:     func() error { return fsIoctl(dir, fiThaw) },
		phase:    func(p string) error { return writePhase(phaseFile(file), p) },
	}
	return g.run()
}

// guard is the course of a freeze, over what it does.
type guard struct {
	limit time.Duration
	now   func() time.Time
	pause func()
	// wanted reports whether the order is still there.
	wanted                 func() bool
	writeOut, freeze, thaw func() error
	// phase says how far it is; "" that nothing is frozen.
	phase func(string) error
}

// run freezes and thaws. It returns nil if the filesystem was frozen until the order was gone.
func (g guard) run() error {
	if err := g.prepare(); err != nil {
		return err
	}
	if err := g.phase("freezing"); err != nil {
		return err
	}
	faultGuardFreezing.Hit()
	end := g.now().Add(g.limit)
	if err := g.freeze(); err != nil {
		if errors.Is(err, unix.EBUSY) {
			err = errForeign
		}
		return errors.Join(err, g.phase(""))
	}
	faultGuardFrozen.Hit()
	err := g.hold(end)
	switch thawErr := g.thaw(); {
	case errors.Is(thawErr, unix.EINVAL):
		err = errEnded
	case thawErr != nil:
		return errors.Join(err, thawErr) // the phase stays: whoever comes next tries again
	}
	faultGuardThawed.Hit()
	return errors.Join(err, g.phase(""))
}

// hold returns when the order is gone, or with an error that says why the freeze does not count.
func (g guard) hold(end time.Time) error {
	if !g.now().Before(end) {
		return errOver
	}
	if err := g.phase(phaseFrozen); err != nil {
		return err
	}
	for g.wanted() {
		if !g.now().Before(end) {
			return errOver
		}
		g.pause()
	}
	if !g.now().Before(end) {
		return errOver
	}
	return nil
}

// prepare writes the filesystem out while the pod goes on.
func (g guard) prepare() error {
	for range writesOut {
		if !g.wanted() {
			return errWithdrawn
		}
		began := g.now()
		if err := g.writeOut(); err != nil {
			return fmt.Errorf("write the filesystem out: %w", err)
		}
		if g.now().Sub(began) < quick {
			return nil
		}
	}
	return errSlow
}

// wanted reports whether a file still has the order with this token. One that cannot be read for
// another reason than that it is gone may still be wanted; the time ends it.
func wanted(file, token string) bool {
	b, err := os.ReadFile(file)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	var o Order
	return json.Unmarshal(b, &o) == nil && o.Token == token
}

// writePhase replaces a file, or removes it. A crash of the machine ends every freeze, so that
// nothing has to reach the disk.
func writePhase(file, phase string) error {
	if phase == "" {
		return os.Remove(file)
	}
	next := file + ".next"
	if err := os.WriteFile(next, []byte(phase), 0o600); err != nil {
		return err
	}
	return os.Rename(next, file)
}

// openMount opens the root of a mounted filesystem, and fails if that is of another device.
func openMount(path, devno string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close() // nothing was written
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if got := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)); got != devno {
		_ = f.Close() // as above
		return nil, fmt.Errorf("%s has device %s mounted, expected %s", path, got, devno)
	}
	return f, nil
}

func thawAt(path, devno string) error {
	f, err := openMount(path, devno)
	if err != nil {
		return err
	}
	return errors.Join(fsIoctl(f, fiThaw), f.Close())
}

// fsIoctl is FIFREEZE or FITHAW (ioctl_fs.c of the kernel; CAP_SYS_ADMIN).
func fsIoctl(f *os.File, request uint) error {
	err := unix.IoctlSetInt(int(f.Fd()), request, 0)
	if err != nil {
		return &os.PathError{Op: "ioctl", Path: f.Name(), Err: err}
	}
	return nil
}
