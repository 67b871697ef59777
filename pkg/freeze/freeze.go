// Package freeze freezes mounted filesystems for a moment. Each freeze is made, and ended, by a
// process of its own, the guard, which thaws after some seconds whatever has become of the process
// that wanted it (docs/design/states.md, Snapshots and clones: A freeze).
package freeze

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"

	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/orders"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Command is the first argument of a program that is to be a guard; the others are the file of
// an order and its token.
const Command = "freeze"

const (
	// Limit is how long a filesystem is frozen at most.
	Limit = 5 * time.Second
	// patience is how long a guard is waited for that writes the filesystem out before.
	patience = 15 * time.Second
	// look is the pause between two looks at a file.
	look = 20 * time.Millisecond
	// thawing is how long a guard is waited for that was told to thaw.
	thawing = 2 * time.Second
)

var (
	faultOrdered = faultpoint.New("freeze.ordered")
	faultEnded   = faultpoint.New("freeze.ended")
)

// Order says what a guard is to freeze. Its file is there as long as the filesystem may be frozen.
type Order struct {
	ID volume.ID `json:"id"`
	// Token tells one freeze of a volume from the next.
	Token string `json:"token"`
	// Boot is the kernel's boot id.
	Boot string `json:"boot"`
	// Device is the name of the volume's device, which nobody changes meanwhile.
	Device string `json:"device"`
	// DevNo is its number, and Path where it is mounted.
	DevNo string        `json:"devno"`
	Path  string        `json:"path"`
	Limit time.Duration `json:"limit"`
}

// Host freezes the filesystems of this machine.
type Host struct {
	// Run begins guards.
	Run hostexec.Runner
	// Dir has the orders.
	Dir string
	// Program is what is run as guard.
	Program string
	// Boot is the kernel's boot id.
	Boot string
}

// Open makes the folder.
func Open(run hostexec.Runner, dir, boot string) (*Host, error) {
	program, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = durable.Sweep(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("freezes: %w", err)
	}
	return &Host{Run: run, Dir: dir, Program: program, Boot: boot}, nil
}

func (h *Host) orderFile(id volume.ID) string { return orders.File(h.Dir, id) }

const (
	// phaseExt is the end of the name of the file that a guard keeps beside its order, from
	// before it freezes until it has thawed.
	phaseExt    = ".phase"
	phaseFrozen = "frozen"

	// killed is the error of a guard that said nothing.
	killed = "the process that was to thaw the filesystem was killed"
)

func phaseFile(order string) string { return orders.Beside(order, phaseExt) }

// Mounted returns a place where a filesystem of the device with this number is mounted.
func (h *Host) Mounted(_ context.Context, devno string) (path string, found bool, err error) {
	infos, err := mountutils.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return "", false, fmt.Errorf("mount table: %w", err)
	}
	for _, info := range infos {
		if info.Root == "/" && fmt.Sprintf("%d:%d", info.Major, info.Minor) == devno {
			return info.MountPoint, true, nil
		}
	}
	return "", false, nil
}

// Frozen is a frozen filesystem.
type Frozen interface {
	// Done is closed when the guard has ended, and with it the freeze.
	Done() <-chan struct{}
	// Thaw ends the freeze. It returns nil if the filesystem was frozen until then, and
	// otherwise says why not.
	Thaw(ctx context.Context) error
}

// guarded is a filesystem that a guard keeps frozen.
type guarded struct {
	host  *Host
	order Order
	done  chan struct{}
	// err is how the guard ended, once done is closed.
	err error
}

// Freeze freezes a filesystem. It returns when that has come about, or cannot.
func (h *Host) Freeze(ctx context.Context, o Order) (Frozen, error) {
	o.Boot, o.Limit = h.Boot, Limit
	file := h.orderFile(o.ID)
	if err := durable.Remove(phaseFile(file)); err != nil {
		return nil, err
	}
	if err := h.write(o); err != nil {
		return nil, err
	}
	faultOrdered.Hit()
	f := &guarded{host: h, order: o, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		// It goes on whatever becomes of the call, as it would go on if this process ended.
		_, f.err = h.Run.Run(context.WithoutCancel(ctx), hostexec.Change(o.Device, h.Program, Command, file, o.Token))
	}()
	if err := f.await(ctx); err != nil {
		return nil, errors.Join(err, f.end(ctx))
	}
	return f, nil
}

// await returns when the guard says that the filesystem is frozen.
func (f *guarded) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		phase, err := os.ReadFile(phaseFile(f.host.orderFile(f.order.ID)))
		switch {
		case err == nil && string(phase) == phaseFrozen:
			return nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
		select {
		case <-f.done:
			return orders.Said(f.err, killed)
		case <-ctx.Done():
			return fmt.Errorf("the filesystem could not be frozen in time: %w", ctx.Err())
		case <-time.After(look):
		}
	}
}

// Done implements Frozen.
func (f *guarded) Done() <-chan struct{} { return f.done }

// Thaw implements Frozen.
func (f *guarded) Thaw(ctx context.Context) error {
	if err := f.end(ctx); err != nil {
		return err
	}
	return orders.Said(f.err, killed)
}

// end has the guard thaw, and returns when nothing is frozen any more.
func (f *guarded) end(ctx context.Context) error {
	if err := f.host.withdraw(f.order); err != nil {
		return err
	}
	faultEnded.Hit()
	select {
	case <-f.done:
		return f.host.clear(f.order, true)
	case <-time.After(thawing):
	}
	return errors.Join(errors.New("the process that was to thaw the filesystem has not ended"), f.host.clear(f.order, false))
}

// withdraw tells the guard to thaw. The file of the order stays until nothing is frozen, for a
// process after this one.
func (h *Host) withdraw(o Order) error {
	o.Token = ""
	return h.write(o)
}

func (h *Host) write(o Order) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return durable.WriteFile(h.orderFile(o.ID), b)
}

// clear thaws what a guard has left frozen, and forgets the order. While the guard is there, and
// has not said that the filesystem is frozen, the kernel lets nobody thaw it.
func (h *Host) clear(o Order, ended bool) error {
	file := h.orderFile(o.ID)
	phase, err := os.ReadFile(phaseFile(file))
	switch {
	case errors.Is(err, fs.ErrNotExist) && ended:
		return durable.Remove(file)
	case errors.Is(err, fs.ErrNotExist), err == nil && !ended && string(phase) != phaseFrozen:
		return nil
	case err != nil:
		return err
	}
	if o.Boot == h.Boot {
		if err := h.thaw(o.DevNo); err != nil {
			return err
		}
	}
	if !ended {
		return nil
	}
	if err := durable.Remove(phaseFile(file)); err != nil {
		return err
	}
	return durable.Remove(file)
}

// thaw thaws a filesystem, wherever it is mounted.
func (h *Host) thaw(devno string) error {
	path, found, err := h.Mounted(context.Background(), devno)
	if err != nil || !found {
		return err
	}
	err = thawAt(path, devno)
	if errors.Is(err, unix.EINVAL) {
		return nil // it is not frozen
	}
	return err
}

// Left are the volumes whose filesystem another process than this one may have frozen.
func (h *Host) Left(context.Context) ([]volume.ID, error) {
	return orders.Left(h.Dir)
}

// Recover thaws what another process has frozen. The guard does, if there is one.
func (h *Host) Recover(ctx context.Context, id volume.ID) error {
	file := h.orderFile(id)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var o Order
	if err := json.Unmarshal(b, &o); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := h.withdraw(o); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, thawing)
	defer cancel()
	if err := h.Run.Await(wait, o.Device); err != nil {
		return errors.Join(err, h.clear(o, false))
	}
	return h.clear(o, true)
}
