package kubectl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

// maxEvents is how many events are shown, the newest.
const maxEvents = 10

// eventName is the field by which the API server selects events.
const eventName = "involvedObject.name"

type describeOptions struct {
	*Factory
	session
	output

	reference string
}

func newDescribe(f *Factory) *cobra.Command {
	o := &describeOptions{Factory: f, output: newOutput(false)}
	cmd := &cobra.Command{
		Use:   "describe PVC",
		Short: "Show everything about a volume and what it means",
		Long: `Show everything about a volume: what is asked for and what is loaded, hits, load and latency, which nodes are warm, its last moves, conditions, the pods that
use it, recent events, and what all that means for its data.`,
		Example:           `  kubectl nearflash describe -n shop data`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *describeOptions) Complete(args []string) error {
	o.reference = args[0]
	if err := o.complete(); err != nil {
		return err
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *describeOptions) Validate() error { return checkReference(o.reference) }

// Run implements options.
func (o *describeOptions) Run(ctx context.Context) error {
	v, err := o.resolve(ctx, o.reference)
	if err != nil {
		return err
	}
	if !o.table() {
		return o.object(o.client, o.Out, v.CachedVolume)
	}
	pods, err := o.users(ctx, v.ClaimNamespace, v.Claim)
	if err != nil {
		return err
	}
	events, err := o.events(ctx, v)
	if err != nil {
		return err
	}
	var node nodeState
	if owner := v.Status.OwnerNode; owner != "" {
		if node, err = o.nodeState(ctx, owner); err != nil {
			return err
		}
	}
	facts, err := o.warmFacts(ctx, v)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	o.identity(w, v, node)
	o.abandoned(w, v)
	o.cache(w, v)
	o.warm(w, v, facts)
	users(w, pods)
	if err := w.Flush(); err != nil {
		return err
	}
	o.meaning(&text, v, node, facts)
	o.conditions(&text, v)
	o.showEvents(&text, events)
	_, err = o.Out.Write(text.Bytes())
	return err
}

// line writes a key and a value.
func line(w io.Writer, key, format string, args ...any) {
	fmt.Fprintf(w, "%s:\t%s\n", key, fmt.Sprintf(format, args...))
}

func (o *describeOptions) identity(w io.Writer, v *volume, node nodeState) {
	claim := none
	if v.Claim != "" {
		claim = v.ClaimNamespace + "/" + v.Claim
	}
	line(w, "Claim", "%s", claim)
	line(w, "CachedVolume", "%s", v.Name)
	pv := none
	if v.PV != nil {
		pv = v.PV.Name
	}
	line(w, "PersistentVolume", "%s", pv)
	if n := v.capacity(); n > 0 {
		line(w, "Capacity", "%s", quantity.Text(n))
	}
	line(w, "Origin", "%s", origin(v))
	switch owner := v.Status.OwnerNode; owner {
	case "":
		line(w, "Node", "none yet")
	case domain.Readers:
		line(w, "Read by", "%s", orNone(domain.NamesOfReaders(v.Status.Readers)))
	default:
		line(w, "Node", "%s (%s)", owner, o.nodeWords(node))
	}
	line(w, "State", "%s, %s, generation %s", orNone(string(v.Status.Publication)), orNone(string(v.Status.DirtyState)), number(v.Status.Generation))
	asked := "mode " + string(v.Spec.CacheMode)
	if v.Spec.CacheSize != "" {
		asked += ", size " + v.Spec.CacheSize
	}
	if n := v.maxCache(); n > 0 {
		asked += ", at most " + quantity.Text(n)
	}
	if n := v.Spec.ChunkSizeBytes; n != nil && *n > 0 {
		asked += ", chunks of " + quantity.Text(*n)
	}
	if v.Spec.AcceptDirtyLoss != "" {
		asked += ", acceptDirtyLoss " + string(v.Spec.AcceptDirtyLoss)
	}
	if v.Spec.Redundancy != "" {
		asked += ", redundancy " + string(v.Spec.Redundancy)
	}
	line(w, "Asked for", "%s", asked+dirtyLimit(v))
	if v.Spec.Hold != nil {
		line(w, "Held", "%s", o.held(v))
	}
	warmStart(w, v)
	if text := preloadText(v); text != "" {
		line(w, "Preload", "%s", text)
	}
	if d := v.DeletionTimestamp; d != nil {
		line(w, "Deleted", "%s ago, waits for %s", ago(o.Clock.Now(), *d), strings.Join(v.Finalizers, ", "))
	}
}

// held says for what a volume is held, and what that means.
func (o *describeOptions) held(v *volume) string {
	h := v.Spec.Hold
	what := "snapshot " + h.Name
	if domain.SnapshotID(h.Name).ForClone() {
		what = "a clone (" + h.Name + ")"
	}
	text := fmt.Sprintf("for %s, asked for %s ago: no write stays in the cache alone until it is cut", what, ago(o.Clock.Now(), h.Since))
	switch {
	case v.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty:
		text += fmt.Sprintf("; node %s flushes the cache", v.Status.OwnerNode)
	case v.Spec.FlushRequest == h.Token && v.Status.Flush.Request != h.Token:
		text += fmt.Sprintf("; node %s is asked for a flush", v.Status.OwnerNode)
	}
	return text
}

// dirtyLimit is what the spec says of unflushed writes, with a comma before it.
func dirtyLimit(v *volume) string {
	out := ""
	if b := v.Spec.MaxDirtyBytes; b != "" {
		out += ", at most " + b + " dirty"
	}
	if s := v.Spec.MaxDirtyAgeSeconds; s != nil && *s > 0 {
		out += ", flushed after " + (time.Duration(*s) * time.Second).String()
	}
	return out
}

// origin says where the data are.
func origin(v *volume) string {
	if s := v.Spec.Static; s != nil {
		var lun int32
		if s.LUN != nil {
			lun = *s.LUN
		}
		return fmt.Sprintf("%s LUN %d of %s at %s", v.Spec.Backend, lun, s.IQN, strings.Join(s.Portals, ", "))
	}
	switch o := v.Spec.Origin; {
	case o != nil && o.PersistentVolumeName != "":
		return v.Spec.Backend + ", PersistentVolume " + o.PersistentVolumeName
	case o != nil:
		return v.Spec.Backend + ", made by StorageClass " + o.StorageClassName
	}
	out := v.Spec.Backend + ", made by nearflash-target"
	if v.Spec.Target != "" {
		out += " on storage server " + v.Spec.Target
	}
	if v.Spec.Provisioning != "" {
		out += ", " + v.Spec.Provisioning
	}
	return out
}

// abandoned is what an administrator has given up of the volume.
func (o *describeOptions) abandoned(w io.Writer, v *volume) {
	for _, a := range v.Status.Abandoned {
		text := fmt.Sprintf("unflushed writes of generation %d on node %s, %s ago", a.Generation, a.NodeName, ago(o.Clock.Now(), a.Consent.Time))
		if a.Consent.By != "" {
			text += " by " + a.Consent.By
		}
		if seen := a.LastSeen; !seen.SinceTime.IsZero() {
			text += ", none of them older than " + ago(o.Clock.Now(), seen.SinceTime)
		}
		switch told := a.Told; {
		case told.Time.IsZero():
			text += "; no pod was told yet"
		case told.Name != "":
			text += fmt.Sprintf("; pod %s/%s was told", told.Namespace, told.Name)
		}
		line(w, "Abandoned", "%s", text)
	}
}

func (o *describeOptions) cache(w io.Writer, v *volume) {
	if !v.lastSeen() {
		line(w, "Cache", "none reported")
		return
	}
	c := v.Status.Cache
	line(w, "Cache", "mode %s, %s, seen %s ago", c.Mode, orNone(string(c.Health)), ago(o.Clock.Now(), c.ObservedTime))
	used := optionalSize(c.UsedBytes)
	if c.UsedBytes != nil && c.SizeBytes != nil && *c.SizeBytes > 0 {
		used += fmt.Sprintf(" (%d%%)", int64(float64(*c.UsedBytes)*100/float64(*c.SizeBytes)))
	}
	line(w, "  Size", "%s", optionalSize(c.SizeBytes))
	line(w, "  Used", "%s", used)
	dirty := optionalSize(c.DirtyBytes)
	if !c.DirtySinceTime.IsZero() {
		dirty += ", none of it older than " + ago(o.Clock.Now(), c.DirtySinceTime)
	}
	line(w, "  Dirty", "%s", dirty)
	h := c.HitRate
	line(w, "  Hits, 5 min", "reads %s, writes %s", percent(h.ReadPercent), percent(h.WritePercent))
	line(w, "  Hits, total", "reads %s, writes %s", percent(h.ReadTotalPercent), percent(h.WriteTotalPercent))
	p := c.Performance
	line(w, "  Load", "%s reads/s, %s writes/s", number(p.ReadIOPS), number(p.WriteIOPS))
	for _, l := range []struct {
		name string
		of   v1alpha1.Latency
	}{{"pod", p.Volume}, {"hit", p.Hit}, {"miss", p.Miss}} {
		line(w, "  Latency, "+l.name, "p50 %s, p99 %s", micros(l.of.P50Micros), micros(l.of.P99Micros))
	}
	if f := v.Status.Flush; f.Request != "" {
		line(w, "  Last flush", "%s ago", ago(o.Clock.Now(), f.CompletionTime))
	}
	if s := v.Status.Scrub; !s.CompletionTime.IsZero() {
		line(w, "  Last scrub", "%s ago, %s", ago(o.Clock.Now(), s.CompletionTime), scrubbed(v))
	}
}

func percent(n *int32) string {
	if n == nil {
		return none
	}
	return number(n) + "%"
}

// warmOn lists the nodes that keep a cache which may still be used.
func warmOn(v *volume) string {
	var nodes []string
	for _, r := range v.Status.RetainedCaches {
		if fresh(v, r) {
			nodes = append(nodes, r.NodeName)
		}
	}
	return orNone(strings.Join(nodes, ","))
}

// fresh is invariant I3 of states.md.
func fresh(v *volume, r v1alpha1.RetainedCache) bool {
	return v.Status.Generation != nil && r.Generation == *v.Status.Generation
}

func users(w io.Writer, pods []corev1.Pod) {
	if len(pods) == 0 {
		line(w, "Used by", "no pod")
		return
	}
	for _, pod := range pods {
		line(w, "Used by", "pod %s on %s (%s)", pod.Name, orNone(pod.Spec.NodeName), pod.Status.Phase)
	}
}

// meaning says what the state means for the data.
func (o *describeOptions) meaning(w io.Writer, v *volume, node nodeState, f warmFacts) {
	fmt.Fprintln(w, "What this means:")
	for _, s := range consequences(v, node, f) {
		fmt.Fprintf(w, "  - %s\n", s)
	}
}

func consequences(v *volume, node nodeState, f warmFacts) []string {
	var out []string
	owner := v.Status.OwnerNode
	switch dirty := v.possiblyDirty(); {
	case dirty && v.attached() && (node.ready || node.unknown):
		out = append(out, fmt.Sprintf("Writes are acknowledged by the SSD of %s: what is dirty is lost if that node or its SSD is lost now.", owner))
		out = append(out, fmt.Sprintf("No other node gets the volume before %s has flushed it.", owner))
		if v.Spec.CacheMode == v1alpha1.CacheModeWritebackUnsafe {
			out = append(out, fmt.Sprintf("Flushes end at the cache: if %s loses its power or its kernel crashes, any write since the last drain may be missing, in any order.", owner))
		}
	case dirty:
		out = append(out, fmt.Sprintf("Node %s may hold writes that the storage server does not have; the volume waits for that node, which flushes by itself when it is back.", owner))
		out = append(out, fmt.Sprintf("If the node is lost for good, so are the writes: `%s abandon %s --accept-data-loss` lets the volume go on without them.", name, v.argument()))
	case owner == "":
		out = append(out, "No pod has used the volume yet.")
	case v.torn():
		out = append(out, "A node stopped uncleanly while flushes ended at the cache: writes from before may be missing, in any order; of all later ones the storage server has every acknowledged one.")
	case len(v.Status.Abandoned) > 0:
		out = append(out, "Writes were abandoned and may be lost; of all others the storage server has every acknowledged one: losing a node or an SSD loses none of them.")
	default:
		out = append(out, "The storage server has every acknowledged write: losing a node or an SSD loses none.")
	}
	if warm := warmOn(v); warm != none && !v.attached() {
		what := "a warm cache"
		if !keptWhole(v) {
			what = "a cache that is warm in part"
		}
		out = append(out, fmt.Sprintf("A pod that starts on %s finds %s; on any other node it %s.", warm, what, elsewhere(v, node, f)))
	}
	if c := v.condition(v1alpha1.ConditionCached); v.attached() && c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonModeNone {
		out = append(out, fmt.Sprintf("The pod works without a cache now (%s): %s", c.Reason, remedyFor(c.Reason, owner)))
	}
	return out
}

func (o *describeOptions) conditions(w io.Writer, v *volume) {
	if len(v.Status.Conditions) == 0 {
		fmt.Fprintln(w, "Conditions: none")
		return
	}
	fmt.Fprintln(w, "Conditions:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  TYPE\tSTATUS\tREASON\tSINCE\tMESSAGE")
	for _, c := range v.Status.Conditions {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, c.Reason, ago(o.Clock.Now(), c.LastTransitionTime), orNone(oneLine(c.Message)))
	}
	// The buffer below cannot fail.
	_ = t.Flush()
}

// events returns the newest events about the volume and its claim. An account
// that may not read them sees none.
func (o *describeOptions) events(ctx context.Context, v *volume) ([]corev1.Event, error) {
	// Events of objects without a namespace are kept in default.
	places := [][2]string{{metav1.NamespaceDefault, v.Name}}
	if v.Claim != "" {
		places = append(places, [2]string{v.ClaimNamespace, v.Claim})
	}
	var out []corev1.Event
	for _, p := range places {
		var list corev1.EventList
		if err := o.client.List(ctx, &list, client.InNamespace(p[0]), client.MatchingFields{eventName: p[1]}); err != nil {
			return nil, fmt.Errorf("list events of %s: %w", p[1], err)
		}
		for _, e := range list.Items {
			if kind := e.InvolvedObject.Kind; kind == "CachedVolume" && p[1] == v.Name || kind == "PersistentVolumeClaim" && p[1] == v.Claim {
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b corev1.Event) int { return lastSeen(&a).Compare(lastSeen(&b).Time) })
	if len(out) > maxEvents {
		out = out[len(out)-maxEvents:]
	}
	return out, nil
}

// lastSeen is the time of an event, whichever of the two APIs it was made with.
func lastSeen(e *corev1.Event) metav1.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return metav1.NewTime(e.Series.LastObservedTime.Time)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	case !e.EventTime.IsZero():
		return metav1.NewTime(e.EventTime.Time)
	}
	return e.CreationTimestamp
}

func (o *describeOptions) showEvents(w io.Writer, events []corev1.Event) {
	if len(events) == 0 {
		fmt.Fprintln(w, "Events: none")
		return
	}
	fmt.Fprintln(w, "Events:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  AGE\tTYPE\tREASON\tOBJECT\tMESSAGE")
	for i := range events {
		e := &events[i]
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s/%s\t%s\n", ago(o.Clock.Now(), lastSeen(e)), e.Type, e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, oneLine(e.Message))
	}
	_ = t.Flush()
}
