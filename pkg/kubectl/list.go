package kubectl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

type listOptions struct {
	*Factory
	session
	output

	everywhere bool
	args       []string
	// moves are those that go on, by the volume's UID.
	moves map[types.UID]move
	// nodes are the states of those that may have unflushed writes.
	nodes map[string]nodeState
}

func newList(f *Factory) *cobra.Command {
	o := &listOptions{Factory: f, output: newOutput(true)}
	cmd := &cobra.Command{
		Use:     "list [PVC...]",
		Aliases: []string{"ls", "get"},
		Short:   "List volumes and what their caches do",
		Long: `List the volumes of a namespace, or those that are named, and what their caches do.

SIZE is the size of the attached cache, else what is asked for. NODE is where the volume is attached, or which node may have writes of it that
the storage server does not have. CACHED is yes, or the reason why not. HIT% is of the reads of the last five minutes. DIRTY is what the storage server does
not have yet. WAITS-FOR is what the volume waits for: a node that is to come back, or to flush; a snapshot or a clone; a change of its mode or size.
MODE shows "writeback->none" while a change is being applied. MOVE is how much of a cache that follows its pod has been copied.

An account that may not read CachedVolumes, which have no namespace, sees the claims of nearflash in its namespace, with the last event of each.`,
		Example: `  # the volumes of namespace shop
  kubectl nearflash list -n shop

  # all volumes, with more columns
  kubectl nearflash list -A -o wide`,
		ValidArgsFunction: f.completeVolumes(-1),
		RunE:              run(o),
	}
	cmd.Flags().BoolVarP(&o.everywhere, "all-namespaces", "A", false, "List the volumes of all namespaces, and those without a claim.")
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *listOptions) Complete(args []string) error {
	o.args = args
	if err := o.complete(); err != nil {
		return err
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *listOptions) Validate() error { return checkSelection(o.args, o.everywhere) }

// checkSelection refuses names that are no volumes, and names besides -A.
func checkSelection(args []string, everywhere bool) error {
	if everywhere && len(args) > 0 {
		return fmt.Errorf("-A shows all volumes, %s only some: leave one of them out", args[0])
	}
	for _, arg := range args {
		if err := checkReference(arg); err != nil {
			return err
		}
	}
	return nil
}

// Run implements options.
func (o *listOptions) Run(ctx context.Context) error {
	volumes, err := o.choose(ctx, o.args, o.everywhere)
	if apierrors.IsForbidden(err) && !o.everywhere && o.table() {
		return o.ownClaims(ctx, err)
	}
	if err != nil {
		return err
	}
	if !o.table() {
		return o.list(o.client, o.Out, objectsOf(volumes))
	}
	if len(volumes) == 0 {
		return o.nothing("volumes", o.everywhere, o.namespace)
	}
	if o.nodes, err = o.nodesAtRisk(ctx, volumes); err != nil {
		return err
	}
	head := []string{"CLAIM", "MODE", "SIZE", "NODE", "CACHED", "HIT%", "DIRTY", "USED", "WAITS-FOR"}
	if o.wide {
		head = append(head, "VOLUME", "STATE", "HEALTH", "GEN", "WARM-ON", "MOVE", "APPLIED", "TOTAL-HIT%", "SEEN")
		if o.moves, err = o.movesNow(ctx, volumes); err != nil {
			return err
		}
	}
	var rows [][]string
	for _, v := range volumes {
		rows = append(rows, o.row(v))
	}
	return table(o.Out, withNamespace(o.everywhere, head, rows, volumes), rows)
}

// movesNow returns the moves of volumes that go on; a volume has one at most.
func (s *session) movesNow(ctx context.Context, volumes []*volume) (map[types.UID]move, error) {
	all, err := s.migrationsIfAny(ctx)
	out := map[types.UID]move{}
	for _, m := range movesOf(all, volumes, false) {
		if now := m.of.Status.Generation; !m.ended() && now != nil && m.Spec.Generation == *now {
			out[m.of.UID] = m
		}
	}
	return out, err
}

// nothing says that there is nothing to show, as kubectl does.
func (f *Factory) nothing(what string, everywhere bool, namespace string) error {
	if everywhere {
		_, err := fmt.Fprintf(f.ErrOut, "No %s found.\n", what)
		return err
	}
	_, err := fmt.Fprintf(f.ErrOut, "No %s found in namespace %s.\n", what, namespace)
	return err
}

// withNamespace puts the column of namespaces before the others if it is wanted,
// and returns the head.
func withNamespace(wanted bool, head []string, rows [][]string, volumes []*volume) []string {
	if !wanted {
		return head
	}
	for i, v := range volumes {
		rows[i] = append([]string{orNone(v.ClaimNamespace)}, rows[i]...)
	}
	return append([]string{"NAMESPACE"}, head...)
}

func (o *listOptions) row(v *volume) []string {
	cache := v.Status.Cache
	row := []string{
		v.title(), shownMode(v), shownSize(v), orNone(v.concerned()), cached(v),
		ifReported(v, number(cache.HitRate.ReadPercent)), shownDirty(v), ifReported(v, optionalSize(cache.UsedBytes)),
		waitsFor(v, o.nodes[v.Status.OwnerNode]),
	}
	if !o.wide {
		return row
	}
	state := string(v.Status.Publication)
	return append(row,
		v.Name, orNone(state), ifReported(v, orNone(string(cache.Health))), number(v.Status.Generation), warmOn(v), o.shownMove(v), applied(v),
		ifReported(v, number(cache.HitRate.ReadTotalPercent)), ifReported(v, ago(o.Clock.Now(), cache.ObservedTime)),
	)
}

// concerned is the node that has the volume, or may have writes of it.
func (v *volume) concerned() string {
	if v.possiblyDirty() {
		return v.Status.OwnerNode
	}
	return v.node()
}

// nodesAtRisk returns the states of nodes that may have unflushed writes.
func (s *session) nodesAtRisk(ctx context.Context, volumes []*volume) (map[string]nodeState, error) {
	out := map[string]nodeState{}
	for _, v := range volumes {
		owner := v.Status.OwnerNode
		if _, known := out[owner]; known || !v.possiblyDirty() || owner == "" {
			continue
		}
		state, err := s.nodeState(ctx, owner)
		if err != nil {
			return nil, err
		}
		out[owner] = state
	}
	return out, nil
}

// waitsFor says what a volume waits for; node is the state of its owner.
func waitsFor(v *volume, node nodeState) string {
	applied := v.condition(v1alpha1.ConditionApplied)
	switch dirty, owner := v.possiblyDirty(), v.Status.OwnerNode; {
	case owner == "" && dirty:
		return none
	case dirty && !node.ready && !node.unknown:
		return owner + ", " + unready(node)
	case dirty && !v.attached():
		return owner + " to flush"
	case v.Spec.Hold != nil && domain.SnapshotID(v.Spec.Hold.Name).ForClone():
		return "a clone"
	case v.Spec.Hold != nil:
		return "a snapshot"
	case v.attached() && applied != nil && applied.Status == metav1.ConditionFalse && applied.Reason != v1alpha1.ReasonRejected:
		return "a change"
	}
	return none
}

// shownMove is how far a move is, in percent once that is known.
func (o *listOptions) shownMove(v *volume) string {
	m, found := o.moves[v.UID]
	if !found {
		return none
	}
	if p := m.percent(); m.state() == moveRunning && p != none {
		return p + "%"
	}
	return m.state()
}

// ifReported returns a figure of the attached cache; that of another time is none.
func ifReported(v *volume, text string) string {
	if !v.reported() {
		return none
	}
	return text
}

// shownMode is the mode, and what it changes from.
func shownMode(v *volume) string {
	if loaded := v.Status.Cache.Mode; v.reported() && loaded != v.Spec.CacheMode {
		return string(loaded) + "->" + string(v.Spec.CacheMode)
	}
	return string(v.Spec.CacheMode)
}

func shownSize(v *volume) string {
	if n := v.Status.Cache.SizeBytes; v.reported() && n != nil && *n > 0 {
		return quantity.Text(*n)
	}
	if v.Spec.CacheMode == v1alpha1.CacheModeNone {
		return none
	}
	return orNone(v.Spec.CacheSize)
}

// shownDirty is how much is dirty; of a node that cannot be asked it is only
// known whether something may be.
func shownDirty(v *volume) string {
	switch {
	case v.reported() && v.Status.Cache.DirtyBytes != nil:
		return quantity.Text(*v.Status.Cache.DirtyBytes)
	case v.possiblyDirty():
		return "unknown"
	}
	return none
}

func cached(v *volume) string {
	c := v.condition(v1alpha1.ConditionCached)
	switch {
	case c == nil:
		return none
	case c.Status == metav1.ConditionTrue:
		return "yes"
	}
	return c.Reason
}

// applied is the reason of the condition, or that it does not speak of the spec
// as it is now.
func applied(v *volume) string {
	c := v.condition(v1alpha1.ConditionApplied)
	switch {
	case c == nil:
		return none
	case c.ObservedGeneration < v.Generation && v.attached():
		return "Pending"
	}
	return c.Reason
}
