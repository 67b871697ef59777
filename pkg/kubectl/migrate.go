package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

type migrateOptions struct {
	change

	to     string
	cancel bool
	// shown is the last line of progress.
	shown string
}

func newMigrate(f *Factory) *cobra.Command {
	o := &migrateOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "migrate PVC",
		Short: "Copy a volume's cache to the node that its pod is going to, while the pod runs",
		Long: `Copy a volume's cache to the node that its pod is going to, while the pod runs where it is.

The pod is not moved, and goes on reading and writing. When it is moved later, the new node has most of the cache at once; only what was written since
the copy began comes from the old node, or from the storage server, as in every warm move. The copy keeps within the volume's warmStartBandwidth. It
is given up when the new node needs the space for a volume of its own, and when the volume goes elsewhere; then the move is an ordinary one.

--cancel ends a copy under way; one that is complete stays.`,
		Example: `  # before a node is drained
  kubectl nearflash migrate -n shop data --to node-b
  kubectl cordon node-a && kubectl delete pod -n shop shop-0

  kubectl nearflash migrate -n shop data --cancel`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	cmd.Flags().StringVar(&o.to, "to", "", "The node to copy to.")
	cmd.Flags().BoolVar(&o.cancel, "cancel", false, "Take the request back.")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("to", f.completeNode))
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *migrateOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *migrateOptions) Validate() error {
	switch {
	case o.cancel && o.to != "":
		return fmt.Errorf("--cancel takes back what was asked for, whatever the node: leave --to out")
	case !o.cancel && o.to == "":
		return fmt.Errorf("migrate needs the node to copy to: add --to NODE, `%s pools` lists those with SSDs", name)
	case strings.Contains(o.to, "/"):
		return fmt.Errorf("%q does not name a node: `%s pools` lists those with SSDs", o.to, name)
	}
	return o.validate()
}

// Run implements options.
func (o *migrateOptions) Run(ctx context.Context) error {
	return o.either(ctx, o.cancel, o.takeBack, o.ask)
}

func (o *migrateOptions) takeBack(ctx context.Context, v *volume) error {
	node := v.Spec.PrewarmNode
	if node == "" {
		return o.say(v, "no copy was asked for")
	}
	if err := o.clear(ctx, v); err != nil {
		return err
	}
	return o.say(v, "the copy to node %s is not asked for any more", node)
}

// clear takes the request back.
func (o *migrateOptions) clear(ctx context.Context, v *volume) error {
	return o.patchSpec(ctx, v, func(spec *v1alpha1.CachedVolumeSpec) { spec.PrewarmNode, spec.PrewarmRequest = "", "" })
}

func (o *migrateOptions) ask(ctx context.Context, v *volume) error {
	if err := o.movable(ctx, v); err != nil {
		return fmt.Errorf("%s: %w", v.title(), err)
	}
	token := o.Clock.Now().UTC().Format(time.RFC3339Nano)
	err := o.patchSpec(ctx, v, func(spec *v1alpha1.CachedVolumeSpec) { spec.PrewarmNode, spec.PrewarmRequest = o.to, token })
	if err != nil {
		return err
	}
	if !o.wait {
		return o.say(v, "copy to node %s requested: `%s migrations %s` shows it", o.to, name, v.argument())
	}
	m, err := o.follow(ctx, v, token)
	if err != nil {
		return fmt.Errorf("%s: %w", v.title(), err)
	}
	// The copy stays; the request has been carried out.
	if v.Spec.PrewarmRequest == token {
		if err := o.clear(ctx, v); err != nil {
			return err
		}
	}
	return o.conclude(v, m)
}

// movable says what stands against a copy.
func (o *migrateOptions) movable(ctx context.Context, v *volume) error {
	cachedAs := v.condition(v1alpha1.ConditionCached)
	switch w := v.Spec.WarmStart.From; {
	case v.Spec.CacheMode == v1alpha1.CacheModeNone:
		return fmt.Errorf("it has no cache that could be copied: `%s mode %s writethrough` gives it one", name, v.argument())
	case w != "" && w != v1alpha1.WarmStartPeer:
		return fmt.Errorf("its warmStart is %s, so that a move never begins with a node's cache: set spec.warmStart.from of CachedVolume %s to peer", w, v.Name)
	case !v.attached():
		return fmt.Errorf("it is attached nowhere: start its pod where you want it, a move then takes the cache along by itself")
	case v.byMany():
		return readersError(v, "copied")
	case v.node() == o.to:
		return fmt.Errorf("it is on node %s already: name the node that its pod is going to", o.to)
	case cachedAs != nil && cachedAs.Reason != v1alpha1.ReasonCacheActive:
		return fmt.Errorf("there is no cache on node %s (%s: %s): `%s doctor` says what helps", v.node(), cachedAs.Reason, cachedAs.Message, name)
	}
	pool := &v1alpha1.CachePool{}
	err := o.client.Get(ctx, client.ObjectKey{Name: o.to}, pool)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("node %s has no pool of SSDs: `%s pools` lists the nodes that have", o.to, name)
	}
	if err != nil {
		return fmt.Errorf("read CachePool %s: %w", o.to, err)
	}
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady); c == nil || c.Status != metav1.ConditionTrue {
		why := "it has not reported yet"
		if c != nil {
			why = c.Reason + ": " + c.Message
		}
		return fmt.Errorf("the pool of node %s is not ready (%s): `%s doctor` says what helps", o.to, oneLine(why), name)
	}
	return o.reaches(ctx, v)
}

// reaches reports whether the volume can be used on the node at all: a copy of its cache would be of
// use to nobody. An account that may not read PersistentVolumes or nodes learns it from the scheduler.
func (o *migrateOptions) reaches(ctx context.Context, v *volume) error {
	if v.PV == nil || v.PV.Spec.NodeAffinity == nil || v.PV.Spec.NodeAffinity.Required == nil {
		return nil
	}
	node := &corev1.Node{}
	switch err := o.client.Get(ctx, client.ObjectKey{Name: o.to}, node); {
	case apierrors.IsForbidden(err):
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no node %s: `%s pools` lists the nodes that have SSDs", o.to, name)
	case err != nil:
		return fmt.Errorf("read node %s: %w", o.to, err)
	}
	within, err := schedulinghelpers.MatchNodeSelectorTerms(node, v.PV.Spec.NodeAffinity.Required)
	if err != nil {
		return fmt.Errorf("node affinity of PersistentVolume %s: %w", v.PV.Name, err)
	}
	if !within {
		return fmt.Errorf("node %s is outside of the node affinity of PersistentVolume %s (%s): the volume cannot be attached there; name a node that it allows",
			o.to, v.PV.Name, affinityText(v.PV.Spec.NodeAffinity.Required))
	}
	return nil
}

// affinityText names the labels of nodes that a PersistentVolume allows.
func affinityText(s *corev1.NodeSelector) string {
	var terms []string
	for _, term := range s.NodeSelectorTerms {
		var all []string
		for _, e := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ","))))
		}
		terms = append(terms, strings.Join(all, " and "))
	}
	return strings.Join(terms, "; or ")
}

// follow waits for the end of the copy and shows how far it is. The migration is nil
// if the volume has moved meanwhile.
func (o *migrateOptions) follow(ctx context.Context, v *volume, token string) (*move, error) {
	begin := o.Clock.Now()
	for {
		m, err := o.migrationOf(ctx, v, token)
		if err != nil {
			return nil, err
		}
		elapsed := o.Clock.Now().Sub(begin)
		switch {
		case m != nil && m.ended(), v.attached() && v.node() == o.to:
			return m, o.endLine()
		case v.Spec.PrewarmRequest != token:
			return nil, fmt.Errorf("the request was taken back, or replaced by another one: `%s migrations %s` shows what goes on", name, v.argument())
		}
		if err := o.show(v, m, elapsed); err != nil {
			return nil, err
		}
		if o.timeout > 0 && elapsed >= o.timeout {
			if err := o.endLine(); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("%w after %s: the copy goes on, `%s migrations %s` shows it and --cancel ends it", errTimeout, o.timeout, name, v.argument())
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-o.Clock.After(pollInterval):
		}
		if err := o.refresh(ctx, v); err != nil {
			return nil, err
		}
	}
}

// migrationOf returns the migration that carries out a request, nil if there is none
// yet.
func (o *migrateOptions) migrationOf(ctx context.Context, v *volume, token string) (*move, error) {
	all, err := o.migrations(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range movesOf(all, []*volume{v}, false) {
		if m.Spec.PrewarmRequest == token {
			return &m, nil
		}
	}
	return nil, nil
}

// show prints what has changed: on a terminal one line that is renewed, elsewhere
// lines.
func (o *migrateOptions) show(v *volume, m *move, elapsed time.Duration) error {
	line := v.title() + ": " + o.progress(m, elapsed)
	news := line
	if !o.Terminal {
		// Of a log, the time that is left is no news by itself.
		news, _, _ = strings.Cut(line, "/s, ")
	}
	if news == o.shown {
		return nil
	}
	before := o.shown
	o.shown = news
	if !o.Terminal {
		_, err := fmt.Fprintln(o.out(), line)
		return err
	}
	if pad := len(before) - len(line); pad > 0 {
		line += strings.Repeat(" ", pad)
	}
	_, err := fmt.Fprint(o.out(), "\r"+line)
	return err
}

// endLine ends the line that is renewed.
func (o *migrateOptions) endLine() error {
	if !o.Terminal || o.shown == "" {
		return nil
	}
	_, err := fmt.Fprintln(o.out())
	return err
}

// progress says how far the copy is.
func (o *migrateOptions) progress(m *move, elapsed time.Duration) string {
	switch {
	case m == nil && elapsed >= silence:
		return fmt.Sprintf("node %s has not taken note for %s: `%s doctor` shows whether its plugin works", o.to, silence, name)
	case m == nil:
		return "waiting for node " + o.to
	case m.state() == moveWaiting:
		return fmt.Sprintf("waiting for node %s to export its cache", m.Spec.SourceNode)
	}
	done, total := m.bytes()
	if total == 0 {
		return fmt.Sprintf("node %s begins to copy from node %s", o.to, m.Spec.SourceNode)
	}
	text := fmt.Sprintf("%s copied, %s, %s, %s left", m.percentWord(), m.copied(), m.rate(), m.left(o.Clock.Now()))
	if o.Terminal {
		return bar(done, total) + " " + text
	}
	return text
}

// percentWord is how much is copied, in percent.
func (m move) percentWord() string { return m.percent() + "%" }

// barWidth is how many characters the bar has.
const barWidth = 30

// bar draws how much of something is done.
func bar(done, total int64) string {
	n := int(float64(barWidth) * float64(done) / float64(total))
	n = max(0, min(n, barWidth))
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", barWidth-n) + "]"
}

// conclude says what has come of it, and what to do next.
func (o *migrateOptions) conclude(v *volume, m *move) error {
	if m == nil {
		return o.say(v, "the volume is on node %s by now", o.to)
	}
	switch m.Status.Outcome {
	case v1alpha1.MigrationFailed:
		return fmt.Errorf("%s: nothing was copied to node %s: %s: the move will be an ordinary one", v.title(), o.to, orNone(oneLine(m.Status.OutcomeMessage)))
	case v1alpha1.MigrationEnded:
		if err := o.say(v, "the copy ended early: %s", orNone(oneLine(m.Status.OutcomeMessage))); err != nil {
			return err
		}
	case v1alpha1.MigrationCompleted:
		_, total := m.bytes()
		if err := o.say(v, "node %s has a copy of %s of the cache; what is written from now on is copied after the move", o.to, quantity.Text(total)); err != nil {
			return err
		}
	}
	if v.node() == o.to {
		return nil
	}
	return o.say(v, "next: `kubectl cordon %s`, then delete the pod that uses the volume; it must be able to run on node %s", v.node(), o.to)
}
