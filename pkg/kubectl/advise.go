package kubectl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/advise"
	"github.com/nearflash/nearflash/pkg/quantity"
)

type adviseOptions struct {
	*Factory
	session
	live

	everywhere     bool
	format, window string
	args           []string
}

var reuseWindows = []string{string(v1alpha1.ReuseHour), string(v1alpha1.ReuseDay), string(v1alpha1.ReuseWeek)}

func newAdvise(f *Factory) *cobra.Command {
	o := &adviseOptions{Factory: f}
	cmd := &cobra.Command{
		Use:   "advise [PVC...]",
		Short: "Say which cache a volume should have, and why",
		Long: `Say which cache a volume should have, and why; also of volumes that have none.

Nodes look every five minutes at what their volumes read, and predict from it what a cache of any size would answer. The advice is the size at the knee
of that curve, where more cache begins to help less; "a cache will not help here, because ..." where that is so; and "not known" as long as too little
was seen: half of a window, and a thousand reads and writes. It rests on the longest window of which enough is known, if --window names none.

With names it says everything about each volume, with the commands that do what is advised. Without, it lists the attached volumes, and what the pools
would need for all of them, two copies where there are two. It changes nothing. Predictions are of reads, and have limits: docs/explanation/measuring.md.

Nodes are asked as top does, which takes the same rights; without them, it shows what they reported, at most every ten minutes.`,
		Example: `  # everything about one volume
  kubectl nearflash advise -n shop data

  # all volumes, and what the pools would need
  kubectl nearflash advise -A`,
		ValidArgsFunction: f.completeVolumes(-1),
		RunE:              run(o),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "Show the volumes of all namespaces, and those without a claim.")
	flags.BoolVar(&o.reported, "reported", false, "Show what nodes reported last to the API server, and ask no node.")
	flags.StringVar(&o.window, "window", "", fmt.Sprintf("The time that the advice rests on. One of: (%s).", strings.Join(reuseWindows, ", ")))
	flags.StringVarP(&o.format, "output", "o", "", "Output format. One of: (json, yaml).")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("window", cobra.FixedCompletions(reuseWindows, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// Complete implements options.
func (o *adviseOptions) Complete(args []string) error {
	o.args = args
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *adviseOptions) Validate() error {
	if o.window != "" && !slices.Contains(reuseWindows, o.window) {
		return fmt.Errorf("--window %s is not known: accepted are %s", o.window, strings.Join(reuseWindows, ", "))
	}
	if err := checkPlain(o.format); err != nil {
		return err
	}
	return checkSelection(o.args, o.everywhere)
}

// advised is what is printed of a volume.
type advised struct {
	Namespace string `json:"namespace,omitempty"`
	Claim     string `json:"claim,omitempty"`
	Volume    string `json:"volume"`
	Node      string `json:"node,omitempty"`
	advise.Advice
	// Commands do what is advised; empty if it is so already.
	Commands []string `json:"commands,omitempty"`
	// Parameters are those of a VolumeAttributesClass that does.
	Parameters map[string]string `json:"parameters,omitempty"`

	v *volume
}

// poolNeed is what the caches of a node would need.
type poolNeed struct {
	Node string `json:"node"`
	// NowBytes is what the attached volumes have, AdvisedBytes what they would have, both with all copies;
	// those of which nothing is known keep what they have. CapacityBytes is the pool's; 0 if it is not known.
	NowBytes      int64 `json:"nowBytes"`
	AdvisedBytes  int64 `json:"advisedBytes"`
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
}

// Run implements options.
func (o *adviseOptions) Run(ctx context.Context) error {
	volumes, note, err := o.chosen(ctx, o.Factory, &o.session, o.args, o.everywhere)
	if err != nil {
		return err
	}
	if note != "" {
		if _, err := fmt.Fprintln(o.ErrOut, note); err != nil {
			return err
		}
	}
	pools, err := o.poolsByNode(ctx)
	if err != nil {
		return err
	}
	all := []advised{}
	for _, v := range volumes {
		p := pools[v.node()]
		all = append(all, o.advice(v, p.Status.Capacity.Value()/copiesOf(v, p)))
	}
	needs := poolNeeds(all, pools)
	switch {
	case o.format != "":
		return plain(o.Out, o.format, struct {
			Volumes []advised  `json:"volumes"`
			Pools   []poolNeed `json:"pools"`
		}{all, needs})
	case len(o.args) > 0:
		return o.blocks(all)
	case len(all) == 0:
		return o.nothing("attached volumes", o.everywhere, o.namespace)
	}
	return o.overview(all, needs)
}

// poolsByNode are those that the account may read.
func (o *adviseOptions) poolsByNode(ctx context.Context) (map[string]v1alpha1.CachePool, error) {
	pools, err := o.pools(ctx, nil)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	byNode := map[string]v1alpha1.CachePool{}
	for _, p := range pools {
		byNode[p.Name] = p
	}
	return byNode, nil
}

// copiesOf is how many copies of a volume's cache a pool has.
func copiesOf(v *volume, p v1alpha1.CachePool) int64 {
	if v.Spec.Redundancy == v1alpha1.RedundancyMirror || p.Spec.Redundancy == v1alpha1.RedundancyMirror {
		return 2
	}
	return 1
}

// advice decides for one volume, whose cache can have so many bytes of the node's pool.
func (o *adviseOptions) advice(v *volume, pool int64) advised {
	cache := v.Status.Cache
	unsafe := cache.Mode == v1alpha1.CacheModeWritebackUnsafe
	f := advise.Facts{
		Now: o.Clock.Now(), Attached: v.attached(), Capacity: v.capacity(), MaxCache: v.maxCache(), Pool: pool,
		Mode: cache.Mode, Consent: unsafe || v.Spec.AcceptDirtyLoss == v1alpha1.CacheModeWriteback.Consent(), Reuse: cache.Reuse, Window: v1alpha1.ReuseWindowName(o.window),
	}
	if unsafe {
		f.Mode = v1alpha1.CacheModeWriteback // what flushes do is nothing that figures could advise
	}
	if v.reported() && cache.Mode != v1alpha1.CacheModeNone && cache.SizeBytes != nil {
		f.Size = *cache.SizeBytes
	}
	out := advised{Namespace: v.ClaimNamespace, Claim: v.Claim, Volume: v.Name, Node: v.node(), Advice: advise.Decide(f), v: v}
	if unsafe && out.Mode == v1alpha1.CacheModeWriteback {
		out.Mode = cache.Mode
	}
	out.act()
	return out
}

// act fills in what does it.
func (a *advised) act() {
	size := ""
	if a.Verdict == advise.Cache && a.SizeBytes > 0 {
		size = resource.NewQuantity(a.SizeBytes, resource.BinarySI).String()
		if a.SizeBytes >= a.v.capacity() {
			size = "100%"
		}
	}
	argument := a.v.argument()
	if a.Resize {
		a.Commands = append(a.Commands, fmt.Sprintf("%s resize %s %s", name, argument, size))
	}
	if a.ChangeMode {
		a.Commands = append(a.Commands, fmt.Sprintf("%s mode %s %s", name, argument, a.Mode))
	}
	if len(a.Commands) == 0 {
		return
	}
	a.Parameters = map[string]string{"cacheMode": string(a.Mode)}
	if size != "" {
		a.Parameters["cacheSize"] = size
	}
	if a.Mode.TakesWrites() {
		a.Parameters["acceptDirtyLoss"] = string(a.Mode.Consent())
	}
}

// poolNeeds sums up the volumes by their nodes.
func poolNeeds(all []advised, pools map[string]v1alpha1.CachePool) []poolNeed {
	needs := []poolNeed{}
	for _, a := range all {
		if a.Node == "" {
			continue
		}
		p := pools[a.Node]
		copies := copiesOf(a.v, p)
		at := slices.IndexFunc(needs, func(n poolNeed) bool { return n.Node == a.Node })
		if at < 0 {
			at, needs = len(needs), append(needs, poolNeed{Node: a.Node, CapacityBytes: p.Status.Capacity.Value()})
		}
		now := int64(0)
		if n := a.v.Status.Cache.SizeBytes; n != nil && a.v.Status.Cache.Mode != v1alpha1.CacheModeNone {
			now = *n * copies
		}
		needs[at].NowBytes += now
		switch a.Verdict {
		case advise.Cache:
			needs[at].AdvisedBytes += a.SizeBytes * copies
		case advise.Unknown:
			needs[at].AdvisedBytes += now
		case advise.NoCache:
		}
	}
	slices.SortFunc(needs, func(a, b poolNeed) int { return strings.Compare(a.Node, b.Node) })
	return needs
}

// overview prints a table of volumes, and one of nodes.
func (o *adviseOptions) overview(all []advised, needs []poolNeed) error {
	var rows [][]string
	var volumes []*volume
	for _, a := range all {
		volumes = append(volumes, a.v)
		window, mode, size, hit := none, none, none, none
		if a.Window != "" {
			window = string(a.Window)
		}
		if a.Verdict != advise.Unknown {
			mode = string(a.Mode)
		}
		if a.SizeBytes > 0 {
			size = quantity.Text(a.SizeBytes)
		}
		if a.HitPercent != nil {
			hit = number(a.HitPercent)
		}
		rows = append(rows, []string{
			a.v.title(), a.Node, shownMode(a.v), shownSize(a.v), number(a.v.Status.Cache.HitRate.ReadPercent), window, mode, size, hit, a.Reason,
		})
	}
	head := withNamespace(o.everywhere, []string{"CLAIM", "NODE", "MODE", "SIZE", "HIT%", "WINDOW", "ADVISED", "ADVISED-SIZE", "PREDICTED-HIT%", "WHY"}, rows, volumes)
	if err := table(o.Out, head, rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(o.Out); err != nil {
		return err
	}
	rows = nil
	for _, n := range needs {
		capacity, fits := none, none
		if n.CapacityBytes > 0 {
			capacity, fits = quantity.Text(n.CapacityBytes), "yes"
			if n.AdvisedBytes > n.CapacityBytes {
				fits = "no"
			}
		}
		rows = append(rows, []string{n.Node, quantity.Text(n.NowBytes), quantity.Text(n.AdvisedBytes), capacity, fits})
	}
	return table(o.Out, []string{"NODE", "CACHES", "ADVISED", "POOL", "FITS"}, rows)
}

// blocks prints everything about each volume.
func (o *adviseOptions) blocks(all []advised) error {
	var text bytes.Buffer
	for i := range all {
		if i > 0 {
			text.WriteByte('\n')
		}
		w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		o.block(w, &all[i])
		if err := w.Flush(); err != nil {
			return err
		}
	}
	_, err := o.Out.Write(text.Bytes())
	return err
}

func (o *adviseOptions) block(w io.Writer, a *advised) {
	cache := a.v.Status.Cache
	line(w, "Volume", "%s, %s on node %s", a.v.title(), quantity.Text(a.v.capacity()), orNone(a.Node))
	if a.v.reported() {
		line(w, "Now", "%s", a.now())
	}
	if s := a.Seen; s != nil {
		line(w, "Seen", "in the last %s %s reads and writes, %s %% of them writes; looked at since %s ago", s.Window, number(s.Operations), number(s.WritePercent), ago(o.Clock.Now(), cache.Reuse.SinceTime))
		line(w, "Average", "%s a read, %s a write, chunk %s", optionalSize(s.ReadBytes), optionalSize(s.WriteBytes), optionalSize(cache.Reuse.ChunkBytes))
		if len(s.ReadSizePercents) > 0 {
			line(w, "Reads", "%s", sizesText(s))
		}
		if len(s.HitPercents) > 0 {
			line(w, "Predicted", "%s", curveText(s))
		}
		if s.KneeBytes != nil {
			line(w, "Knee", "%s, %s %%", quantity.Text(*s.KneeBytes), number(s.KneeHitPercent))
		}
	}
	what := a.Reason
	if a.Verdict == advise.Cache {
		what = fmt.Sprintf("%s, %s", a.Mode, quantity.Text(a.SizeBytes))
		if a.HitPercent != nil {
			what += fmt.Sprintf(", %d %% of the reads hit", *a.HitPercent)
		}
		what += ": " + a.Reason
	}
	line(w, "Advice", "%s", what)
	if a.ModeReason != "" {
		line(w, "Mode", "%s", a.ModeReason)
	}
	for _, n := range a.Notes {
		line(w, "Note", "%s", n)
	}
	o.todo(w, a)
}

// now is what the volume has, and how well that does, whether or not anything can be advised.
func (a *advised) now() string {
	cache, text := a.v.Status.Cache, shownMode(a.v)
	if cache.Mode == v1alpha1.CacheModeNone || cache.SizeBytes == nil {
		return text
	}
	text += ", " + shownSize(a.v)
	if cache.HitRate.ReadPercent != nil {
		text += fmt.Sprintf("; of the reads hit %d %% (5 minutes)", *cache.HitRate.ReadPercent)
	}
	if a.NowHitPercent != nil {
		text += fmt.Sprintf(", %d %% are predicted", *a.NowHitPercent)
	}
	return text
}

// todo prints what does it.
func (o *adviseOptions) todo(w io.Writer, a *advised) {
	for _, c := range a.Commands {
		line(w, "Do", "%s", c)
	}
	if len(a.Commands) > 0 {
		var parameters []string
		for k, v := range a.Parameters {
			parameters = append(parameters, k+": "+v)
		}
		slices.Sort(parameters)
		line(w, "Or", "a VolumeAttributesClass with the parameters %s", strings.Join(parameters, ", "))
	} else if a.Verdict != advise.Unknown {
		line(w, "Do", "nothing: it is so already")
	}
	if a.Writeback && !a.Mode.TakesWrites() {
		line(w, "For writes", "%s mode %s writeback --accept-dirty-loss node-loss", name, a.v.argument())
	}
}

// curveText is the predicted hit rates by size.
func curveText(s *v1alpha1.ReuseWindow) string {
	var parts []string
	for i, f := range v1alpha1.ReuseFractions() {
		if i < len(s.HitPercents) {
			parts = append(parts, fmt.Sprintf("%d %% at %d %%", s.HitPercents[i], f))
		}
	}
	return strings.Join(parts, ", ") + " of the volume"
}

// sizesText is how many of the reads have at most which sizes: those at which some begin to.
func sizesText(s *v1alpha1.ReuseWindow) string {
	var parts []string
	below := int32(0)
	for i, size := range v1alpha1.ReuseReadSizes() {
		if i < len(s.ReadSizePercents) && s.ReadSizePercents[i] > below {
			below = s.ReadSizePercents[i]
			parts = append(parts, fmt.Sprintf("%d %% of at most %s", below, quantity.Text(size)))
		}
	}
	if below < 100 {
		parts = append(parts, fmt.Sprintf("%d %% longer", 100-below))
	}
	return strings.Join(parts, ", ")
}
