// Command nearflash-target is the storage server of nearflash: LVM volumes of a
// Linux machine, exported over iSCSI, managed through gRPC with mutual TLS.
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

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nearflash-target:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("nearflash-target", flag.ContinueOnError)
	klog.InitFlags(flags)
	config := flags.String("config", "", "configuration `file` (YAML)")
	check := flags.Bool("check-config", false, "check the configuration and the TLS files, then exit")
	showVersion := flags.Bool("version", false, "print the version, then exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *showVersion {
		_, err := fmt.Fprintf(out, "nearflash-target %s (%s)\n", version.Version, version.Commit)
		return err
	}
	if *config == "" {
		return fmt.Errorf("--config is required")
	}
	cfg, err := target.LoadConfig(*config)
	if err != nil {
		return err
	}
	if *check {
		if _, err := target.ServerTLS(cfg.TLS); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out, "configuration is valid")
		return err
	}
	return target.Run(klog.NewContext(ctx, klog.Background().WithName("nearflash-target")), cfg, version.Version)
}
