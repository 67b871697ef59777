package scrub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/hostexec"
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
	orderExt = ".order"
	// recovering bounds how long a guard is waited for.
	recovering = 5 * time.Second
)

func (h *Guards) file(id volume.ID) string { return filepath.Join(h.Dir, string(id)+orderExt) }

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
	return r, errors.Join(guardError(err), h.Recover(context.WithoutCancel(ctx), o.ID))
}

// Left implements Judge.
func (h *Guards) Left(context.Context) ([]volume.ID, error) {
	entries, err := os.ReadDir(h.Dir)
	if err != nil {
		return nil, err
	}
	var out []volume.ID
	for _, f := range entries {
		if name, ok := strings.CutSuffix(f.Name(), orderExt); ok {
			out = append(out, volume.ID(name))
		}
	}
	return out, nil
}

// Recover implements Judge.
func (h *Guards) Recover(ctx context.Context, id volume.ID) error {
	o, err := readOrder(h.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, recovering)
	defer cancel()
	if o.Boot == h.Boot {
		if err := h.DM.Await(ctx, o.Device); err != nil {
			return err
		}
		infos, err := h.DM.Info(ctx, o.Device)
		if err != nil {
			return err
		}
		if infos[o.Device].Suspended {
			if err := h.DM.Resume(ctx, o.Device); err != nil {
				return err
			}
		}
	}
	return durable.Remove(h.file(id))
}

// guardError is what a guard said at its end.
func guardError(err error) error {
	var exit *hostexec.ExitError
	if errors.As(err, &exit) {
		if said := strings.TrimSpace(string(exit.Stderr)); exit.ExitCode > 0 && said != "" {
			return errors.New(said)
		}
		return errors.New("the process that was to resume the device was killed")
	}
	return err
}
