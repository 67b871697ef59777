// Package app is what the commands of nearflash have in common: flags, logging,
// signals and exit status. What each of them does is in a subpackage, or in
// pkg/target.
package app

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/version"
)

// Command is one program.
type Command struct {
	Name string
	// Args are the arguments; nil is those of the process.
	Args []string
	// AddFlags defines the program's own flags.
	AddFlags func(*flag.FlagSet)
	// Run does the work once the flags have been read. Its context carries the
	// logger and ends with SIGINT or SIGTERM.
	Run func(ctx context.Context) error
}

// Main runs the program and ends the process if it fails.
func Main(c Command) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	args := c.Args
	if args == nil {
		args = os.Args[1:]
	}
	err := c.execute(ctx, args, os.Stdout)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name, err)
		os.Exit(1)
	}
}

func (c Command) execute(ctx context.Context, args []string, out io.Writer) error {
	klog.SetLogFilter(secretless{})
	flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	klog.InitFlags(flags)
	c.AddFlags(flags)
	showVersion := flags.Bool("version", false, "print the version, then exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *showVersion {
		_, err := fmt.Fprintf(out, "%s %s (%s)\n", c.Name, version.Version, version.Commit)
		return err
	}
	return c.Run(klog.NewContext(ctx, klog.Background().WithName(c.Name)))
}
