package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/hack/lab/artifact"
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
Empty disks are /dev/ubdb, /dev/ubdc and so on. Without a command it is run.sh or
guest.sh of DIR.
The exit status is the command's.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Dir, r.Argv = args[0], args[1:]
			if len(r.Argv) == 0 {
				script, err := guestScript(r.Dir)
				if err != nil {
					return err
				}
				r.Argv = []string{"/bin/bash", script}
			}
			return runGuest(cmd.Context(), o, r, limit)
		},
	}
	f := cmd.Flags()
	f.IntVar(&r.Disks, "disks", 3, "number of empty disks")
	f.Int64Var(&r.DiskMiB, "disk-size", 1024, "size of each disk in MiB (sparse)")
	f.StringVar(&r.Root, "root", "", "ext4 image below the guest's root, with the modules of the guest kernel (default: that of tests of one kernel)")
	f.IntVar(&r.MemoryMiB, "memory", 1024, "the guest's memory in MiB")
	f.StringArrayVar(&r.Env, "env", nil, "NAME=VALUE for the command (repeatable)")
	f.DurationVar(&limit, "timeout", 15*time.Minute, "kill the guest after this time")
	return cmd
}

// guestScript finds the script that a folder is for.
func guestScript(dir string) (string, error) {
	names := []string{"run.sh", "guest.sh"}
	for _, name := range names {
		if st, err := os.Stat(filepath.Join(dir, name)); err == nil && st.Mode().IsRegular() {
			return "./" + name, nil
		}
	}
	return "", fmt.Errorf("%s has none of %v: give a command after --", dir, names)
}

func runGuest(ctx context.Context, o *options, r cluster.Run, limit time.Duration) error {
	lab, err := o.lab()
	if err != nil {
		return err
	}
	if lab.Checkout == "" {
		return errNoCheckout
	}
	set, err := ensureArtifacts(ctx, lab.Checkout, artifact.Kernel)
	if err != nil {
		return err
	}
	r.Kernel, r.Root = set.Kernel, cmp.Or(r.Root, set.NodeRoot)
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
