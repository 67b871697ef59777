// Command nearflash-node is the node plugin of the nearflash CSI
// driver: it attaches volumes through a cache on the SSDs of its node.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/app/node"
	"github.com/nearflash/nearflash/pkg/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nearflash-node:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("nearflash-node", flag.ContinueOnError)
	klog.InitFlags(flags)
	var cfg node.Config
	cfg.AddFlags(flags)
	showVersion := flags.Bool("version", false, "print the version, then exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *showVersion {
		_, err := fmt.Fprintf(out, "nearflash-node %s (%s)\n", version.Version, version.Commit)
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg.Version = version.Version
	return node.Run(klog.NewContext(ctx, klog.Background().WithName("nearflash-node")), cfg)
}
