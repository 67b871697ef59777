package kubectl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearflash/nearflash/pkg/bench"
	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/quantity"
)

const (
	// cleanLimit bounds the deletion of everything: a node may be slow to give a volume up.
	cleanLimit = 10 * time.Minute
	// minBenchSize is a volume whose requests do not all meet the same few chunks of a cache.
	minBenchSize = 64 << 20
	// minRuntime and minWarmLimit are what fewer would measure nothing in.
	minRuntime, minWarmLimit = 2 * time.Second, 30 * time.Second
	// everyRun is what --clean-up takes instead of a run's identity.
	everyRun = "all"
)

type benchOptions struct {
	*Factory
	session

	classes, modes, profiles          []string
	jobFile, size, cacheSize, memory  string
	image, node, to, claim, claimFile string
	runtime, warmLimit                time.Duration
	depth                             int
	move, keep, yes                   bool
	format, html, cleanUp             string
	// cmd knows which flags were given.
	cmd *cobra.Command
}

func newBench(f *Factory) *cobra.Command {
	o := &benchOptions{Factory: f}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure modes and classes on this cluster, with fio, and delete everything again",
		Long: `Measure modes and classes on this cluster, with fio, and delete everything again.

For each mode (--mode) or class (--class), one after the other, bench makes a claim and a pod on one node, writes the volume once, and runs each profile:
first until the hit rate is flat, which is the time to warm, then with one request at a time, then with as many as the profile has. The volumes are block
devices. A mode takes a temporary StorageClass, made of the class of --class, or of the only one there is.

Profiles: randread reads 4 KiB at random, zipf some blocks much more often than others; oltp reads 70% and writes 30% in 8 KiB, with an fsync after every
8 writes; seq reads 1 MiB in order. --job-file runs a job file of fio of yours: what it reads and writes, and for how long, is replaced.

--profile postgres measures a database instead, and is the only profile of its run: PostgreSQL with pgbench's own transactions, on a volume with a filesystem,
of which the tables take two fifths. The image needs PostgreSQL with pgbench, a user postgres, sh and su, as postgres:18 has them. --depth is how many clients
it has. Its memory, page cache included, is limited to --memory: without that a node's memory answers all reads.

--claim reads a claim that exists, and writes nothing. What is read goes through its cache and may displace what is there, and its pods have less of the
SSD meanwhile: bench asks first.

--move moves each volume with a cache to another node and back while it is used: once with its cache, once without. Of a database, transactions per second
and latency are told before, during and after.

LIMIT says what kept a row from being faster: SSD, link, storage server, CPU or queue depth; "not known" if what was measured does not tell. The lines below
the table say what it was judged by. SSD and ORIGIN are how long a request took there, as the node counted it; for that, as for hit rates, bench runs a
program in the pods of the node plugin, as top does. So it does for the row "SSD alone": what the node's SSD does by the same profile, without a cache, on a
logical volume that is made for it in what is free of the pool. Without that right, or room, the row says why it was not measured.

Everything that bench makes is deleted at the end, also after an error or Ctrl-C. A second Ctrl-C leaves what is there, and prints the command that
deletes it.`,
		Example: `  kubectl nearflash bench -n shop --image registry.example.com/fio:3 --mode none,writethrough,writeback
  kubectl nearflash bench -n shop --image registry.example.com/fio:3 --class nearflash --profile oltp,zipf --html report.html
  kubectl nearflash bench -n shop --image postgres:18 --profile postgres --mode writethrough --move --html report.html
  kubectl nearflash bench -n shop --clean-up all`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              run(o),
	}
	o.cmd = cmd
	o.addFlags()
	return cmd
}

func (o *benchOptions) addFlags() {
	fs := o.cmd.Flags()
	fs.StringSliceVar(&o.modes, "mode", nil, fmt.Sprintf("Modes to measure: %s; %s,%s by default, if there is no --class.", strings.Join(modes, ", "), modes[0], modes[1]))
	fs.StringSliceVar(&o.classes, "class", nil, "StorageClasses of nearflash to measure; with --mode, the one that temporary classes are made of.")
	fs.StringSliceVar(&o.profiles, "profile", nil, fmt.Sprintf("Profiles: %s, or %s alone; %s by default, if there is no --job-file.", strings.Join(bench.Names(), ", "), bench.ProfilePostgres, bench.Names()[0]))
	fs.StringVar(&o.jobFile, "job-file", "", "A job file of fio, which is a profile too.")
	fs.StringVar(&o.claim, "claim", "", "Read a claim that exists, instead of making any.")
	fs.StringVar(&o.claimFile, "claim-file", "", "With --claim, the file in its filesystem that is read, below its root.")
	fs.StringVar(&o.image, "image", "", "An image with fio and sh, which the node can pull; for a database, with PostgreSQL. Needed.")
	fs.StringVar(&o.size, "size", "2Gi", "Size of each volume, all of which is written and then read.")
	fs.StringVar(&o.cacheSize, "cache-size", "", "Size of the caches of --mode: a quantity of bytes (10Gi), or a percentage of the volume (10%); by default that of the class.")
	fs.DurationVar(&o.runtime, "runtime", 30*time.Second, "How long each row is measured.")
	fs.DurationVar(&o.warmLimit, "warm-limit", 10*time.Minute, "The most that warming a cache takes for a row.")
	fs.IntVar(&o.depth, "depth", 0, "Requests under way at once, or clients of a database; 0 is each profile's own.")
	fs.StringVar(&o.memory, "memory", "", "With --profile postgres, the limit of the database's memory; by default an eighth of --size, at least 128Mi.")
	fs.StringVar(&o.node, "node", "", "The node to measure on; by default the one whose pool has the most room.")
	fs.BoolVar(&o.move, "move", false, "Move each volume with a cache to another node while it is used.")
	fs.StringVar(&o.to, "to", "", "With --move, the node to move to.")
	fs.StringVarP(&o.format, "output", "o", "", "Output format. One of: (json, yaml). The default is a table.")
	fs.StringVar(&o.html, "html", "", "Also write one file of HTML, with plots, that needs nothing else.")
	fs.BoolVar(&o.keep, "keep", false, "Delete nothing in the end, and print the command that does.")
	fs.BoolVarP(&o.yes, "yes", "y", false, "With --claim: do not ask.")
	fs.StringVar(&o.cleanUp, "clean-up", "", fmt.Sprintf("Measure nothing: delete what a run has left in the namespace, by its identity, or %q for all runs, also those of others and those under way.", everyRun))
	for flag, words := range map[string][]string{"mode": modes, "profile": append(bench.Names(), bench.ProfilePostgres), "output": {formatJSON, formatYAML}} {
		cobra.CheckErr(o.cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
	}
	for _, flag := range []string{"node", "to"} {
		cobra.CheckErr(o.cmd.RegisterFlagCompletionFunc(flag, o.completeNode))
	}
}

// Complete implements options.
func (o *benchOptions) Complete(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("bench takes no arguments: leave out %s; a claim is named by --claim", strings.Join(args, " "))
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *benchOptions) Validate() error {
	if err := checkPlain(o.format); err != nil {
		return err
	}
	if o.cleanUp != "" {
		return o.validateCleanUp()
	}
	if o.image == "" {
		return errors.New("--image is missing: name an image with fio and sh that the nodes can pull")
	}
	for _, check := range []func() error{o.validateWords, o.validateClaim, o.validateSizes, o.validateDatabase, o.validateMove} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (o *benchOptions) validateCleanUp() error {
	if len(validation.IsDNS1123Label(o.cleanUp)) > 0 {
		return fmt.Errorf("--clean-up %q is no run's identity: accepted are what bench printed when it began, and %s", o.cleanUp, everyRun)
	}
	return nil
}

func (o *benchOptions) validateWords() error {
	for _, m := range o.modes {
		if !slices.Contains(modes, m) {
			return fmt.Errorf("--mode %s is not known: accepted are %s", m, strings.Join(modes, ", "))
		}
	}
	for _, p := range o.profiles {
		if !slices.Contains(bench.Names(), p) && p != bench.ProfilePostgres {
			return fmt.Errorf("--profile %s is not known: accepted are %s, %s", p, strings.Join(bench.Names(), ", "), bench.ProfilePostgres)
		}
	}
	for flag, list := range map[string][]string{"mode": o.modes, "class": o.classes, "profile": o.profiles} {
		if len(slices.Compact(slices.Sorted(slices.Values(list)))) != len(list) {
			return fmt.Errorf("--%s %s names one twice: accepted is each once", flag, strings.Join(list, ","))
		}
	}
	if len(o.modes) > 0 && len(o.classes) > 1 {
		return fmt.Errorf("--class %s: with --mode, accepted is the one class that temporary ones are made of", strings.Join(o.classes, ","))
	}
	return nil
}

func (o *benchOptions) validateClaim() error {
	if o.claim == "" {
		if o.claimFile != "" {
			return fmt.Errorf("--claim-file %s is for --claim: add that, or leave both out", o.claimFile)
		}
		return nil
	}
	for _, flag := range []string{"mode", "class", "size", "cache-size", "move", "to"} {
		if o.cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s is for volumes that bench makes, and --claim %s exists: leave one of them out", flag, o.claim)
		}
	}
	if o.claimFile != "" && !filepath.IsLocal(o.claimFile) {
		return fmt.Errorf("--claim-file %q is not accepted: accepted is a path below the root of the filesystem, such as data/base", o.claimFile)
	}
	if !bench.CheckPath(o.claimFile) {
		return fmt.Errorf("--claim-file %q is not accepted: fio cannot read a file whose name has one of ; # $, a control character, or a blank at an end", o.claimFile)
	}
	if !o.yes && !o.Interactive {
		return fmt.Errorf("--claim %s: reading it loads its SSD and changes what its cache holds, and there is nobody to ask: add --yes", o.claim)
	}
	return nil
}

func (o *benchOptions) validateSizes() error {
	if n, err := quantity.Bytes(o.size); err != nil || n < minBenchSize {
		return fmt.Errorf("--size %q is not accepted: accepted are quantities of at least %s, such as 2Gi", o.size, quantity.Text(minBenchSize))
	}
	if o.cacheSize != "" {
		if _, err := quantity.Size(o.cacheSize); err != nil {
			return fmt.Errorf("--cache-size %q is not accepted: accepted are quantities of bytes such as 1Gi, and 1%% to 100%%", o.cacheSize)
		}
		if len(o.modes) == 0 && len(o.classes) > 0 {
			return fmt.Errorf("--cache-size %s is for --mode: classes of --class have one of their own", o.cacheSize)
		}
	}
	switch {
	case o.runtime < minRuntime || o.runtime%time.Second != 0:
		return fmt.Errorf("--runtime %s is not accepted: accepted are whole seconds, at least %s", o.runtime, minRuntime)
	case o.warmLimit < minWarmLimit:
		return fmt.Errorf("--warm-limit %s is too short: give at least %s", o.warmLimit, minWarmLimit)
	case o.depth < 0 || o.depth > 1024:
		return fmt.Errorf("--depth %d is not accepted: accepted are 1 to 1024, and 0 for each profile's own", o.depth)
	}
	return nil
}

// database tells whether a database is measured.
func (o *benchOptions) database() bool { return slices.Contains(o.profiles, bench.ProfilePostgres) }

func (o *benchOptions) validateDatabase() error {
	if !o.database() {
		if o.memory != "" {
			return fmt.Errorf("--memory %s is for --profile %s: add that, or leave both out", o.memory, bench.ProfilePostgres)
		}
		return nil
	}
	alone := func(flag, value string) error {
		return fmt.Errorf("--%s %s: a database is measured alone, on volumes of its own: accepted is --profile %s without it", flag, value, bench.ProfilePostgres)
	}
	switch {
	case len(o.profiles) > 1:
		return fmt.Errorf("--profile %s: a database is measured alone: accepted is --profile %s", strings.Join(o.profiles, ","), bench.ProfilePostgres)
	case o.jobFile != "":
		return alone("job-file", o.jobFile)
	case o.claim != "":
		return alone("claim", o.claim)
	}
	if n, _ := quantity.Bytes(o.size); n < bench.MinDatabaseSize { // validateSizes has read it
		return fmt.Errorf("--size %s is too small for a database: accepted are at least %s", o.size, quantity.Text(bench.MinDatabaseSize))
	}
	if o.memory == "" {
		return nil
	}
	if n, err := quantity.Bytes(o.memory); err != nil || n < bench.MinDatabaseMemory {
		return fmt.Errorf("--memory %q is not accepted: accepted are quantities of at least %s", o.memory, quantity.Text(bench.MinDatabaseMemory))
	}
	return nil
}

func (o *benchOptions) validateMove() error {
	switch {
	case o.to != "" && !o.move:
		return fmt.Errorf("--to %s is for --move: add that, or leave both out", o.to)
	case o.to != "" && o.to == o.node:
		return fmt.Errorf("--to %s is the node of --node: accepted is another one", o.to)
	}
	if o.html == "" {
		return nil
	}
	// What cannot be written at the end is better known before an hour of measuring.
	if info, err := os.Stat(filepath.Dir(o.html)); err != nil || !info.IsDir() {
		return fmt.Errorf("--html %s: its folder cannot be written to: accepted is a file in one that exists", o.html)
	}
	return nil
}

// Run implements options.
func (o *benchOptions) Run(ctx context.Context) error {
	if o.cleanUp != "" {
		return o.cleaned(ctx)
	}
	plan, err := o.plan(ctx)
	if err != nil {
		return err
	}
	if o.claim != "" {
		if err := o.tell("%s: reading it loads its SSD and changes what its cache holds. Nothing is written.", o.claim); err != nil {
			return err
		}
		if err := o.confirm(o.yes); err != nil {
			return err
		}
	}
	executor, err := o.Executor()
	if err != nil {
		return err
	}
	plan.Run = utilrand.String(6)
	if err := o.derive(plan); err != nil {
		return err
	}
	say := func(format string, args ...any) { _ = o.tell(format, args...) } // who does not read it misses nothing
	say("run %s on node %s, in namespace %s", plan.Run, plan.Node, plan.Namespace)
	nodes := &meter{session: &o.session, live: live{executor: executor}}
	runner := &bench.Runner{
		Client: o.client, Exec: executor, Meter: nodes, SSD: nodes,
		Now: o.Clock.Now, After: o.Clock.After, Say: say,
	}
	report, err := runner.Run(ctx, plan)
	return o.end(ctx, plan, report, err)
}

// tell prints a line of progress: the report alone is on standard output.
func (o *benchOptions) tell(format string, args ...any) error {
	_, err := fmt.Fprintf(o.ErrOut, format+"\n", args...)
	return err
}

// end shows what was measured, and deletes what was made, whatever came of the run.
func (o *benchOptions) end(ctx context.Context, plan *bench.Plan, report *bench.Report, err error) error {
	errs := []error{err}
	if !report.Empty() {
		errs = append(errs, o.show(report))
	}
	if err != nil && ctx.Err() != nil {
		// What other commands say of an interruption does not hold for this one.
		errs[0] = errors.New("interrupted")
	}
	if o.keep {
		errs = append(errs, o.tell("everything is left: `%s` deletes it", cleanCommand(plan.Namespace, plan.Run)))
		return inOneLine(errs)
	}
	cleaner := bench.Cleaner{Client: o.client, Namespace: plan.Namespace, Run: plan.Run, After: o.Clock.After}
	n, cleanErr := o.clean(ctx, cleaner)
	if cleanErr != nil {
		cleanErr = fmt.Errorf("not everything is deleted: %s: `%s` deletes it", oneLine(cleanErr.Error()), cleanCommand(plan.Namespace, plan.Run))
	} else if tellErr := o.tell("deleted: nothing is left of run %s (%s)", plan.Run, count(n, "object")); tellErr != nil {
		cleanErr = tellErr
	}
	return inOneLine(append(errs, cleanErr))
}

// inOneLine joins errors, each of which is one line.
func inOneLine(errs []error) error {
	var all error
	for _, err := range errs {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

// clean deletes what runs have made. It goes on when the run was interrupted, until somebody
// interrupts it again.
func (o *benchOptions) clean(ctx context.Context, c bench.Cleaner) (int, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	ctx, stop := o.Interruptible(ctx)
	defer stop()
	return c.Clean(ctx)
}

// cleaned is all that --clean-up does.
func (o *benchOptions) cleaned(ctx context.Context) error {
	run := o.cleanUp
	if run == everyRun {
		run = ""
	}
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	n, err := bench.Cleaner{Client: o.client, Namespace: o.namespace, Run: run, After: o.Clock.After}.Clean(ctx)
	if err != nil {
		return fmt.Errorf("not everything is deleted: %w", err)
	}
	_, err = fmt.Fprintf(o.Out, "deleted: %s; nothing is left of bench in namespace %s\n", count(n, "object"), o.namespace)
	return err
}

func cleanCommand(namespace, run string) string {
	return fmt.Sprintf("%s bench -n %s --clean-up %s", name, namespace, run)
}

// show prints the report, and writes the page.
func (o *benchOptions) show(r *bench.Report) error {
	if o.html != "" {
		page, err := r.HTML()
		if err != nil {
			return err
		}
		if err := durable.WriteFile(o.html, page); err != nil {
			return fmt.Errorf("--html %s: %w", o.html, err)
		}
	}
	if o.format == "" {
		return r.Table(o.Out)
	}
	return plain(o.Out, o.format, r)
}
