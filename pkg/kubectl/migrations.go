package kubectl

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type migrationsOptions struct {
	*Factory
	session
	output
	watching

	everywhere bool
	args       []string
}

func newMigrations(f *Factory) *cobra.Command {
	o := &migrationsOptions{Factory: f, output: newOutput(true)}
	cmd := &cobra.Command{
		Use:     "migrations [PVC...]",
		Aliases: []string{"moves", "migration"},
		Short:   "List warm moves: caches that follow their pods to other nodes",
		Long: `List warm moves: caches that follow their pods to other nodes. Those that go on come first; ended ones are kept for an hour.

FROM is the node whose cache the new one begins with, or origin. METHOD is Clone (the new node reads through that cache from the first I/O on), Stream (the
old node sends it while the volume runs on the storage server) or HotSet (blocks that were hottest, from the storage server); WHY-METHOD, with -o wide, says why. STATE is waiting (FROM has not answered yet), refused (it does not export its cache),
running, completed, ended (the volume left, or its cache was taken away, before everything was copied) or failed (the cache began colder than was asked for). SERVED-FROM is
where blocks that were not copied yet are read. PROGRESS is what was copied and what there is to copy; blocks of the cache that hold nothing count
as copied. RATE is the mean since the copy began, ETA when it ends at this rate. Nodes report every 5 seconds.`,
		Example: `  # what goes on in the cluster, renewed
  kubectl nearflash migrations -A -w

  # why a move failed
  kubectl nearflash migrations -n shop data -o wide`,
		ValidArgsFunction: f.completeVolumes(-1),
		RunE:              run(o),
	}
	cmd.Flags().BoolVarP(&o.everywhere, "all-namespaces", "A", false, "List the moves of the volumes of all namespaces, and of those without a claim.")
	o.watching.addFlags(cmd)
	o.output.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *migrationsOptions) Complete(args []string) error {
	o.args = args
	if err := o.complete(); err != nil {
		return err
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *migrationsOptions) Validate() error {
	if err := o.watching.validate(&o.output); err != nil {
		return err
	}
	return checkSelection(o.args, o.everywhere)
}

// Run implements options.
func (o *migrationsOptions) Run(ctx context.Context) error { return o.repeat(ctx, o.Factory, o.once) }

// once prints one table.
func (o *migrationsOptions) once(ctx context.Context, out io.Writer) error {
	volumes, err := o.choose(ctx, o.args, o.everywhere)
	if err != nil {
		return err
	}
	all, err := o.migrations(ctx)
	if err != nil {
		return err
	}
	moves := movesOf(all, volumes, o.everywhere)
	if !o.table() {
		objs := make([]client.Object, 0, len(moves))
		for _, m := range moves {
			objs = append(objs, m.CacheMigration)
		}
		return o.list(o.client, out, objs)
	}
	if len(moves) == 0 {
		return o.noMoves(volumes)
	}
	head := []string{"CLAIM", "FROM", "TO", "METHOD", "STATE", "SERVED-FROM", "PROGRESS", "DONE%", "RATE", "ETA", "AGE"}
	if o.wide {
		head = append(head, "MIGRATION", "GEN", "EXPORT", "LIMIT", "DEADLINE", "TOOK", "WHY-METHOD", "MESSAGE")
	}
	var rows [][]string
	var shown []*volume
	for _, m := range moves {
		rows, shown = append(rows, o.row(m)), append(shown, m.of)
	}
	return table(out, withNamespace(o.everywhere, head, rows, shown), rows)
}

// noMoves says that nothing moves.
func (o *migrationsOptions) noMoves(volumes []*volume) error {
	if len(o.args) == 0 {
		return o.nothing("migrations", o.everywhere, o.namespace)
	}
	var titles []string
	for _, v := range volumes {
		titles = append(titles, v.title())
	}
	_, err := fmt.Fprintf(o.ErrOut, "No migrations of %s found.\n", strings.Join(titles, ", "))
	return err
}

func (o *migrationsOptions) row(m move) []string {
	now := o.Clock.Now()
	row := []string{
		m.of.title(), m.from(), m.Spec.DestinationNode, m.method(), m.state(), orNone(string(m.Status.Progress.ServedFrom)),
		m.copied(), m.percent(), m.rate(), m.left(now), ago(now, m.CreationTimestamp),
	}
	if !o.wide {
		return row
	}
	return append(row, m.Name, fmt.Sprint(m.Spec.Generation), orNone(string(m.Status.Source.State.Now())),
		perSecond(m.Spec.BandwidthBytesPerSecond), m.deadline(now), m.took(), orNone(oneLine(m.Spec.MethodReason)), orNone(oneLine(m.message())))
}
