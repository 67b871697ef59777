package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/hack/lab/internal/cluster"
)

func newGuest(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "guest", Short: "Work with throw-away guests"}
	cmd.AddCommand(newGuestRun(o))
	return cmd
}

func newGuestRun(o *options) *cobra.Command {
	var r cluster.Run
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "run DIR [-- COMMAND...]",
		Short: "Run one command in a throw-away guest, in a folder of the host",
		Long: `Boots a guest without Kubernetes and without a network, runs the command as root
with DIR (the host's, read-write) as its working folder, and removes the guest.
Empty disks are /dev/ubdb, /dev/ubdc and so on. Without a command it is ./guest.sh.
The exit status is the command's.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Dir, r.Argv = args[0], args[1:]
			if len(r.Argv) == 0 {
				r.Argv = []string{"/bin/sh", "./guest.sh"}
			}
			return runGuest(cmd.Context(), o, r, limit)
		},
	}
	f := cmd.Flags()
	f.IntVar(&r.Disks, "disks", 3, "number of empty disks")
	f.Int64Var(&r.DiskMiB, "disk-size", 1024, "size of each disk in MiB (sparse)")
	f.IntVar(&r.MemoryMiB, "memory", 1024, "the guest's memory in MiB")
	f.StringArrayVar(&r.Env, "env", nil, "NAME=VALUE for the command (repeatable)")
	f.DurationVar(&limit, "timeout", 15*time.Minute, "kill the guest after this time")
	return cmd
}

func runGuest(ctx context.Context, o *options, r cluster.Run, limit time.Duration) error {
	lab, err := o.lab()
	if err != nil {
		return err
	}
	set, err := ensureArtifacts(ctx)
	if err != nil {
		return err
	}
	r.Kernel, r.NodeBase = set.Kernel, set.NodeBase
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no result after %v", limit))
	defer cancel()
	code, err := lab.RunGuest(ctx, r, os.Stdout, os.Stderr)
	if err != nil {
		return err
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}
