package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

type topOptions struct {
	*Factory
	session
	output
	watching
	live

	everywhere bool
	sortBy     string
	args       []string
}

// order is what volumes can be sorted by; those for which the figure is not known
// come last.
type order struct {
	name  string
	value func(*volume) *int64
}

var orders = []order{
	{"hit", func(v *volume) *int64 { return widen(v.Status.Cache.HitRate.ReadPercent) }},
	{"iops", iops},
	{"dirty", func(v *volume) *int64 { return v.Status.Cache.DirtyBytes }},
	{"used", func(v *volume) *int64 { return v.Status.Cache.UsedBytes }},
	{"p99", func(v *volume) *int64 { return v.Status.Cache.Performance.Volume.P99Micros }},
}

func widen(n *int32) *int64 {
	if n == nil {
		return nil
	}
	w := int64(*n)
	return &w
}

// iops is the sum of reads and writes.
func iops(v *volume) *int64 {
	p := v.Status.Cache.Performance
	if p.ReadIOPS == nil && p.WriteIOPS == nil {
		return nil
	}
	var sum int64
	for _, n := range []*int64{p.ReadIOPS, p.WriteIOPS} {
		if n != nil {
			sum += *n
		}
	}
	return &sum
}

func orderNames() []string {
	names := make([]string, 0, len(orders))
	for _, o := range orders {
		names = append(names, o.name)
	}
	return names
}

func newTop(f *Factory) *cobra.Command {
	o := &topOptions{Factory: f, output: newOutput(true)}
	cmd := &cobra.Command{
		Use:   "top [PVC...]",
		Short: "Show hit rate, load and latency of attached volumes",
		Long: `Show hit rate, load and latency of attached volumes.

HIT% is of the reads of the last five minutes; rates and latencies are of the last minute. P99 is what the pod sees, HIT-P50 and HIT-P99 are
the SSD's, MISS-P50 and MISS-P99 the storage server's; each is the upper bound of its bucket. DIRTY is what the storage server does not have yet.

Nodes measure when they are asked, and SEEN is how old the figures are. To ask, top runs a program in the pods of the node plugin, as "kubectl exec"
does. It needs the right to list pods in all namespaces, and to create pods/exec in nearflash's namespace. That right is for administrators: it makes
one root on the nodes. Without it, top says so and shows what the nodes reported last to the API server, as --reported does. Nodes measure every 15
seconds by themselves, and report what changed noticeably, at most every 30 seconds. If a node does not answer, a line on standard error says why.

A rate takes two measurements, at least a second apart: right after a volume was attached, the second look has it.`,
		Example: `  # what is slow, of all namespaces
  kubectl nearflash top -A --sort-by p99

  # a table that renews itself
  kubectl nearflash top -n shop -w`,
		ValidArgsFunction: f.completeVolumes(-1),
		RunE:              run(o),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "Show the volumes of all namespaces, and those without a claim.")
	o.watching.addFlags(cmd)
	flags.BoolVar(&o.reported, "reported", false, "Show what nodes reported last to the API server, and ask no node.")
	flags.StringVar(&o.sortBy, "sort-by", "", fmt.Sprintf("Highest first by: (%s). The default is by name.", strings.Join(orderNames(), ", ")))
	o.output.addFlags(cmd)
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions(orderNames(), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// Complete implements options.
func (o *topOptions) Complete(args []string) error {
	o.args = args
	if err := o.complete(); err != nil {
		return err
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *topOptions) Validate() error {
	if o.sortBy != "" && !slices.Contains(orderNames(), o.sortBy) {
		return fmt.Errorf("--sort-by %s is not known: accepted are %s", o.sortBy, strings.Join(orderNames(), ", "))
	}
	if err := o.watching.validate(&o.output); err != nil {
		return err
	}
	return checkSelection(o.args, o.everywhere)
}

// Run implements options.
func (o *topOptions) Run(ctx context.Context) error { return o.repeat(ctx, o.Factory, o.once) }

// once prints one table.
func (o *topOptions) once(ctx context.Context, out io.Writer) error {
	volumes, note, err := o.chosen(ctx, o.Factory, &o.session, o.args, o.everywhere)
	if err != nil {
		return err
	}
	if note != "" {
		if err := o.note(o.Factory, note); err != nil {
			return err
		}
	}
	o.sort(volumes)
	if !o.table() {
		return o.list(o.client, out, objectsOf(volumes))
	}
	if len(volumes) == 0 {
		return o.nothing("attached volumes", o.everywhere, o.namespace)
	}
	head := []string{"CLAIM", "NODE", "HIT%", "READ/S", "WRITE/S", "P99", "HIT-P50", "HIT-P99", "MISS-P50", "MISS-P99", "DIRTY", "USED", "SEEN"}
	if o.wide {
		head = append(head, "MODE", "P50", "WRITE-HIT%", "TOTAL-HIT%", "SIZE")
	}
	var rows [][]string
	for _, v := range volumes {
		rows = append(rows, o.row(v))
	}
	return table(out, withNamespace(o.everywhere, head, rows, volumes), rows)
}

func (o *topOptions) sort(volumes []*volume) {
	for _, by := range orders {
		if by.name != o.sortBy {
			continue
		}
		slices.SortStableFunc(volumes, func(a, b *volume) int {
			x, y := by.value(a), by.value(b)
			if x == nil || y == nil {
				return cmp.Compare(known(y), known(x))
			}
			return cmp.Compare(*y, *x)
		})
	}
}

func known(n *int64) int {
	if n == nil {
		return 0
	}
	return 1
}

func (o *topOptions) row(v *volume) []string {
	cache := v.Status.Cache
	p := cache.Performance
	row := []string{v.title(), orNone(v.node())}
	for _, text := range []string{
		number(cache.HitRate.ReadPercent), number(p.ReadIOPS), number(p.WriteIOPS),
		micros(p.Volume.P99Micros), micros(p.Hit.P50Micros), micros(p.Hit.P99Micros), micros(p.Miss.P50Micros), micros(p.Miss.P99Micros),
	} {
		row = append(row, ifReported(v, text))
	}
	row = append(row, shownDirty(v), ifReported(v, optionalSize(cache.UsedBytes)), ifReported(v, ago(o.Clock.Now(), cache.ObservedTime)))
	if !o.wide {
		return row
	}
	return append(row, shownMode(v), ifReported(v, micros(p.Volume.P50Micros)), ifReported(v, number(cache.HitRate.WritePercent)),
		ifReported(v, number(cache.HitRate.ReadTotalPercent)), shownSize(v))
}
