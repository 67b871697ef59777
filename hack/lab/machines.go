package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
	"github.com/nearflash/nearflash/hack/lab/internal/cluster"
)

func newExec(o *options) *cobra.Command {
	var r agentapi.ExecRequest
	cmd := &cobra.Command{
		Use:   "exec NODE -- COMMAND...",
		Short: "Run a command as root in a guest (node-a, node-b, storage, or another storage server that the lab has)",
		Long: `Standard input is passed on, unless it is a terminal. The exit status is the
command's. When this program is interrupted, the command is killed.`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			if r.Stdin, err = readInput(os.Stdin); err != nil {
				return err
			}
			r.Argv = args[1:]
			code, err := lab.Exec(cmd.Context(), args[0], r, os.Stdout, os.Stderr)
			if err != nil {
				return err
			}
			if code != 0 {
				return exitCode(code)
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&r.Env, "env", nil, "NAME=VALUE for the command (repeatable)")
	cmd.Flags().StringVar(&r.Dir, "dir", "", "the command's working folder")
	return cmd
}

// readInput reads all of a file that is no terminal.
func readInput(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice != 0 {
		return nil, nil // closed, a terminal, or /dev/null
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return b, nil
}

func newTarget(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "target [PROGRAM]",
		Short: "Replace the storage server's program, by another or by the checkout's, and restart it",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.labUp()
			if err != nil {
				return err
			}
			return lab.ReplaceTarget(cmd.Context(), strings.Join(args, ""))
		},
	}
}

func newKill(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "kill NODE",
		Short: "End a guest at once and keep its disks, like a loss of power",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.Kill(cmd.Context(), args[0])
		},
	}
}

func newStart(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "start NODE",
		Short: "Boot a guest that was killed and wait until it is usable",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.Start(cmd.Context(), args[0])
		},
	}
}

func newMachine(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "machine", Short: "Keep the disks of a machine and give them back"}
	with := func(use, short string, do func(ctx context.Context, lab *cluster.Lab, node, name string) error) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return do(cmd.Context(), lab, args[0], args[1])
		}}
	}
	cmd.AddCommand(
		with("save NODE NAME", "Make an image of the disks of a guest that was killed",
			func(ctx context.Context, lab *cluster.Lab, node, name string) error {
				return lab.SaveMachine(ctx, node, name)
			}),
		with("restore NODE NAME", "Give a guest that was killed the disks of an image",
			func(ctx context.Context, lab *cluster.Lab, node, name string) error {
				return lab.RestoreMachine(ctx, node, name)
			}),
	)
	return cmd
}

func newNet(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "net", Short: "Break and mend the lab's network"}
	var oneWay bool
	cut := &cobra.Command{
		Use:   "cut A B",
		Short: "Drop everything between two guests, or between a guest and \"api\"",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.Cut(cmd.Context(), args[0], args[1], oneWay)
		},
	}
	cut.Flags().BoolVar(&oneWay, "one-way", false, "only what A sends to B")
	heal := &cobra.Command{
		Use:   "heal",
		Short: "End all cuts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return lab.Heal(cmd.Context())
		},
	}
	cmd.AddCommand(cut, heal)
	return cmd
}
