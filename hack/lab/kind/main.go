// Command kind has the parts of hack/kind/ring.sh that are no shell's business: keys
// and configuration files, and the way from the network of a node of kind to the one
// iscsid of the machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "kind:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{Use: "kind", Short: "Parts of the e2e ring on kind", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(newFiles(), newISCSID())
	return root
}

func newFiles() *cobra.Command {
	var s storage
	cmd := &cobra.Command{
		Use:   "files DIR",
		Short: "Write keys, certificates and configuration of the storage server, and the chart's values",
		Args:  cobra.ExactArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return s.write(args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&s.address, "address", "", "IP address of the storage server")
	f.StringVar(&s.server, "server", "", "its server ID")
	f.StringVar(&s.group, "volume-group", "", "its volume group, with a thin pool called pool")
	f.StringVar(&s.device, "device", "", "device of the volume group")
	return cmd
}

func newISCSID() *cobra.Command {
	return &cobra.Command{
		Use:   "iscsid PID...",
		Short: "Serve the machine's iscsid in the networks of processes; start one if there is none",
		Args:  cobra.MinimumNArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return serve(cmd.Context(), args) },
	}
}
