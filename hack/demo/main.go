// Command demo shows in a cluster what nearflash is for. It makes a volume per
// cache mode, measures each with fio in a pod, and the bare SSD beside them, moves one
// to another node and back, prints one table, deletes everything and verifies that it is gone. The last that
// it prints is what kubectl nearflash advise has said of the volumes.
//
// It needs a cluster with two nodes that have a cache pool, such as the lab:
//
//	go run ./hack/lab run -- go run ./hack/demo
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/e2e/cluster"
)

// options are the values of the flags.
type options struct {
	// runtime is how long one measurement takes.
	runtime time.Duration
	// workingSet is what is read and written at random, in MiB.
	workingSet int
	// markdown is the file that gets the table, too; empty means none.
	markdown string
}

func main() {
	var o options
	flag.DurationVar(&o.runtime, "runtime", 2*time.Second, "duration of one measurement of throughput, whole seconds; latency takes half of it")
	flag.IntVar(&o.workingSet, "working-set", 32, "MiB that are read and written at random")
	flag.StringVar(&o.markdown, "markdown", "", "also write the table, as Markdown, to this `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.runtime < time.Second || o.workingSet < 1 {
		return fmt.Errorf("-runtime %s and -working-set %d: accepted are at least 1s and 1", o.runtime, o.workingSet)
	}
	c, err := cluster.Connect(ctx, cluster.DefaultOptions())
	if err != nil {
		return err
	}
	d, err := newDemo(ctx, c, o)
	if err != nil {
		return err
	}
	t, err := d.measure(ctx)
	// An interrupted demo must leave nothing behind either.
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	if err == nil {
		fmt.Printf("\n%s\n", t.text())
	}
	if err := errors.Join(err, d.clean(cctx)); err != nil {
		return err
	}
	fmt.Print(t.ending())
	if o.markdown == "" {
		return nil
	}
	if err := os.WriteFile(o.markdown, []byte(t.markdown()), 0o644); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}
