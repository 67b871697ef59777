package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

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
	var stock stockOptions
	cmd := &cobra.Command{
		Use:   "run DIR [-- COMMAND...]",
		Short: "Run one command in a throw-away guest, in a folder of the host",
		Long: `Boots a guest without Kubernetes and without a network, runs the command as root
with DIR (the host's, read-write) as its working folder, and removes the guest.
Empty disks are /dev/ubdb, /dev/ubdc and so on. With --kernel the guest is an emulated
machine with a distribution's own kernel, and they are /dev/vdb, /dev/vdc. Without a command it is run.sh or
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
			return runGuest(cmd.Context(), o, r, stock, limit)
		},
	}
	f := cmd.Flags()
	f.IntVar(&r.Disks, "disks", 3, "number of empty disks")
	f.Int64Var(&r.DiskMiB, "disk-size", 1024, "size of each disk in MiB (sparse)")
	f.StringVar(&r.Root, "root", "", "ext4 image below the guest's root, with the modules of the guest kernel (default: that of tests of one kernel)")
	f.IntVar(&r.MemoryMiB, "memory", 1024, "the guest's memory in MiB")
	f.StringArrayVar(&r.Env, "env", nil, "NAME=VALUE for the command (repeatable)")
	f.StringVar(&stock.kernel, "kernel", "", fmt.Sprintf("one of %v (default: the lab's own)", artifact.StockKernels()))
	f.IntVar(&stock.cpus, "cpus", 2, "number of processors, with --kernel")
	f.BoolVar(&stock.kvm, "kvm", false, "with --kernel: use this machine's KVM instead of an emulator")
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

// stockOptions choose a distribution's kernel; without one the lab's own is used.
type stockOptions struct {
	kernel string
	cpus   int
	kvm    bool
}

// apply makes r a run on the chosen kernel.
func (s stockOptions) apply(r *cluster.Run, set *artifact.Set) error {
	k := set.Stock[artifact.Group(s.kernel)]
	emulator, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return err
	}
	r.Kernel = k.Vmlinuz
	r.Stock = &cluster.Stock{Emulator: emulator, Boot: k.Boot, Modules: k.Modules, CPUs: s.cpus, KVM: s.kvm}
	return nil
}

func runGuest(ctx context.Context, o *options, r cluster.Run, stock stockOptions, limit time.Duration) error {
	groups := []artifact.Group{artifact.Kernel}
	if stock.kernel != "" {
		if !slices.Contains(artifact.StockKernels(), artifact.Group(stock.kernel)) {
			return fmt.Errorf("--kernel %q: accepted are %v", stock.kernel, artifact.StockKernels())
		}
		groups = append(groups, artifact.Group(stock.kernel))
	}
	lab, err := o.lab()
	if err != nil {
		return err
	}
	if lab.Checkout == "" {
		return errNoCheckout
	}
	set, err := ensureArtifacts(ctx, lab.Checkout, groups...)
	if err != nil {
		return err
	}
	r.Kernel, r.Root = set.Kernel, cmp.Or(r.Root, set.NodeRoot)
	if stock.kernel != "" {
		if err := stock.apply(&r, set); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no result after %v", limit))
	defer cancel()
	code, err := lab.RunGuest(ctx, r, os.Stdout, os.Stderr)
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &used) == nil { // the guest is one of them
		fmt.Printf("%.0f s of processor time\n", time.Duration(used.Utime.Nano()+used.Stime.Nano()).Seconds())
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}
