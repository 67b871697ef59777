package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"k8s.io/klog/v2"
)

// plugger puts disks into machines. Both calls may be repeated. A machine that does
// not run has a disk from its next start on.
type plugger interface {
	plug(ctx context.Context, machine, file, name string, readOnly bool) error
	unplug(ctx context.Context, machine, name string) error
}

// commandPlugger calls a command.
type commandPlugger []string

// plugLimit bounds one call.
const plugLimit = 60 * time.Second

func (p commandPlugger) plug(ctx context.Context, machine, file, name string, readOnly bool) error {
	args := []string{"plug", machine, file, name}
	if readOnly {
		args = append(args, "--read-only")
	}
	return p.run(ctx, args...)
}

func (p commandPlugger) unplug(ctx context.Context, machine, name string) error {
	return p.run(ctx, "unplug", machine, name)
}

func (p commandPlugger) run(ctx context.Context, args ...string) error {
	// An operation of the cloud goes on when the one who asked for it has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), plugLimit)
	defer cancel()
	argv := slices.Concat(p, args)
	start := time.Now()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	klog.InfoS("Plugged", "command", args, "took", time.Since(start), "err", err, "output", string(out))
	if err != nil {
		return fmt.Errorf("%s %v: %w: %s", argv[0], args, err, out)
	}
	return nil
}
