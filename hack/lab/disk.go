package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/hack/lab/internal/node"
)

func newDisk(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "disk", Short: "Plug disks into guests that run"}
	cmd.AddCommand(newDiskPlug(o), newDiskUnplug(o), newDiskList(o))
	return cmd
}

func newDiskPlug(o *options) *cobra.Command {
	var d node.Plugged
	cmd := &cobra.Command{
		Use:   "plug NODE FILE NAME",
		Short: "Give a guest a raw image as /dev/disk/by-id/google-NAME, and print its device",
		Long: `NAME is the disk's serial number too. The guest keeps the disk over boots, until it
is unplugged. A guest that does not run has it from its next boot on. The guest sees
the size that the file has when it is plugged in.`,
		Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			d.File, d.Serial = args[1], args[2]
			device, err := lab.PlugDisk(cmd.Context(), args[0], d)
			if err != nil {
				return err
			}
			fmt.Println(device)
			return nil
		},
	}
	cmd.Flags().BoolVar(&d.ReadOnly, "read-only", false, "the guest cannot write to it")
	return cmd
}

func newDiskUnplug(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "unplug NODE NAME",
		Short: "Take a disk away from a guest; fails while the guest has it open",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.UnplugDisk(cmd.Context(), args[0], args[1])
		},
	}
}

func newDiskList(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list NODE",
		Short: "List the disks that are plugged into a guest: device, name, file",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			list, err := lab.PluggedDisks(cmd.Context(), args[0])
			for _, d := range list {
				fmt.Fprintf(os.Stdout, "/dev/ubd%s %s %s\n", d.Letter, d.Serial, filepath.Clean(d.File))
			}
			return err
		},
	}
}

func newOrigin(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "origin", Short: "Break and mend the origin (up --origin)"}
	cmd.AddCommand(&cobra.Command{
		Use:   "kill [controller|provisioner|attacher|resizer|mon|mgr|osd]...",
		Short: "Kill processes of it, or all of the driver's controller; what is attached stays so",
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.KillOrigin(cmd.Context(), args)
		},
	}, &cobra.Command{
		Use:   "start",
		Short: "Start what does not run of it; sidecars end by themselves when the controller does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.StartOrigin(cmd.Context())
		},
	}, newOriginLimit(o), newOriginExec(o))
	return cmd
}

func newOriginLimit(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "limit NODE DISKS",
		Short: "Have the cloud of pd attach no more disks than that to a machine, and the driver say so",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			disks, err := strconv.ParseUint(args[1], 10, 7)
			if err != nil {
				return fmt.Errorf("DISKS %q: %w", args[1], err)
			}
			return lab.LimitOrigin(cmd.Context(), args[0], int(disks))
		},
	}
}

func newOriginExec(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "exec -- COMMAND...",
		Short: "Run a command beside Ceph's daemons, such as ceph or rbd (up --origin ceph)",
		Long: `Runs in the root and in the network of Ceph's daemons, with the administrator's key at
hand. Input, output and exit status are passed on.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			err = lab.OriginExec(cmd.Context(), args, os.Stdin, os.Stdout, os.Stderr)
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
				return exitCode(exit.ExitCode())
			}
			return err
		},
	}
}
