package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/hack/lab/internal/cluster"
)

func newControl(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "control", Short: "Break and mend the control plane"}
	with := func(use, short string, args cobra.PositionalArgs, do func(context.Context, *cluster.Lab, []string) error) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
			lab, err := o.lab()
			if err != nil {
				return err
			}
			return do(cmd.Context(), lab, args)
		}}
	}
	cmd.AddCommand(
		with("kill [PROGRAM...]", "Kill programs of the control plane, or all of them", cobra.ArbitraryArgs,
			func(ctx context.Context, lab *cluster.Lab, args []string) error { return lab.KillControl(ctx, args) }),
		with("start", "Start what does not run of it and wait until it is ready", cobra.NoArgs,
			func(ctx context.Context, lab *cluster.Lab, _ []string) error { return lab.StartControl(ctx) }),
		with("replace PROGRAM [PATH]", "Kill a program of the control plane and start another version of it, or the lab's own again", cobra.RangeArgs(1, 2),
			func(ctx context.Context, lab *cluster.Lab, args []string) error {
				return lab.ReplaceControl(ctx, args[0], strings.Join(args[1:], ""))
			}),
		with("save NAME", "Make a backup of etcd, which is stopped for a moment", cobra.ExactArgs(1),
			func(ctx context.Context, lab *cluster.Lab, args []string) error { return lab.SaveEtcd(ctx, args[0]) }),
		with("restore NAME", "Kill all of it, give etcd a backup, and start it again", cobra.ExactArgs(1),
			func(ctx context.Context, lab *cluster.Lab, args []string) error { return lab.RestoreEtcd(ctx, args[0]) }),
		with("fresh", "Kill all of it and start another that knows nothing, with the workers that run", cobra.NoArgs,
			func(ctx context.Context, lab *cluster.Lab, _ []string) error { return lab.FreshControl(ctx) }),
	)
	return cmd
}
