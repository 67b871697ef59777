package scrub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/orders"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Judge judges pieces with the volume's device suspended.
type Judge interface {
	// Judge returns when the device goes on. The caller has the volume's lock.
	Judge(ctx context.Context, o Order) (Result, error)
	// Left lists the volumes whose device a process before this one may have left suspended;
	// Recover resumes one of them. The guard does, if it is there still.
	Left(ctx context.Context) ([]volume.ID, error)
	Recover(ctx context.Context, id volume.ID) error
}

// Resumer are the devices, as a part of [devmapper.Client].
type Resumer interface {
	Await(ctx context.Context, names ...string) error
	Info(ctx context.Context, prefix string) (map[string]devmapper.Info, error)
	Resume(ctx context.Context, name string) error
}

// Guards judge on this machine, each in a process of its own.
type Guards struct {
	// Run begins guards.
	Run hostexec.Runner
	DM  Resumer
	// Dir has the orders.
	Dir string
	// Program is what is run as guard.
	Program string
	// Boot is the kernel's boot id.
	Boot string
	// Outside says why a guard would end with the plugin's container, nil if it would not: then
	// nothing is suspended. The function may be nil.
	Outside func() error
	// Patience is how long a guard is waited for; 0 is five seconds.
	Patience time.Duration
}

var _ Judge = (*Guards)(nil)

// Open makes the folder.
func Open(run hostexec.Runner, dm Resumer, dir, boot string) (*Guards, error) {
	program, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = durable.Sweep(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("scrubs: %w", err)
	}
	return &Guards{Run: run, DM: dm, Dir: dir, Program: program, Boot: boot}, nil
}

const (
	// recovering bounds how long a guard is waited for, and lockPause is the time between two looks.
	recovering, lockPause = 5 * time.Second, 50 * time.Millisecond
)

func (h *Guards) file(id volume.ID) string { return orders.File(h.Dir, id) }

// Judge implements Judge.
func (h *Guards) Judge(ctx context.Context, o Order) (r Result, err error) {
	if h.Outside != nil {
		if err := h.Outside(); err != nil {
			return r, err
		}
	}
	if err := h.Recover(ctx, o.ID); err != nil {
		return r, err
	}
	o.Boot = h.Boot
	b, err := json.Marshal(o)
	if err == nil {
		err = durable.WriteFile(h.file(o.ID), b)
	}
	if err != nil {
		return r, err
	}
	faultOrdered.Hit()
	res, err := h.Run.Run(ctx, hostexec.Change(o.Device, h.Program, Command, h.file(o.ID)))
	if err == nil {
		err = json.Unmarshal(res.Stdout, &r)
	}
	if err == nil && len(r.Judgements) != len(o.Pieces) {
		err = fmt.Errorf("%d judgements of %d pieces", len(r.Judgements), len(o.Pieces))
	}
	return r, errors.Join(orders.Said(err, "the process that was to resume the device was killed"), h.Recover(context.WithoutCancel(ctx), o.ID))
}

// Left implements Judge.
func (h *Guards) Left(context.Context) ([]volume.ID, error) {
	return orders.Left(h.Dir)
}

// Recover implements Judge.
func (h *Guards) Recover(ctx context.Context, id volume.ID) error {
	o, err := readOrder(h.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		// Nobody else would resume the device.
		klog.FromContext(ctx).Error(err, "Order of a scrub cannot be read; it counts as one of this boot", "volume", id)
		o = Order{Boot: h.Boot}
	}
	if o.Boot == h.Boot {
		ctx, cancel := context.WithTimeout(ctx, h.patience())
		defer cancel()
		lock, err := h.awaitGuard(ctx, id)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // somebody else has
		}
		if err != nil {
			return err
		}
		defer func() { _ = lock.Close() }()
		if err := h.resume(ctx, layout.Device(id, layout.Top)); err != nil {
			return err
		}
	}
	return durable.Remove(h.file(id))
}

func (h *Guards) patience() time.Duration {
	if h.Patience > 0 {
		return h.Patience
	}
	return recovering
}

// awaitGuard waits for the command and for the guard itself, which may go on without it, and takes the
// guard's lock.
func (h *Guards) awaitGuard(ctx context.Context, id volume.ID) (lock *os.File, err error) {
	if err := h.DM.Await(ctx, layout.Device(id, layout.Top)); err != nil {
		return nil, err
	}
	for {
		lock, err = holdOrder(h.file(id))
		if !errors.Is(err, errHeld) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", hostexec.ErrRuns, err)
		case <-time.After(lockPause):
		}
	}
}

func (h *Guards) resume(ctx context.Context, device string) error {
	infos, err := h.DM.Info(ctx, device)
	if err != nil || !infos[device].Suspended {
		return err
	}
	return h.DM.Resume(ctx, device)
}
