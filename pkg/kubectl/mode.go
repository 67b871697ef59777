package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/api/v1alpha1"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

var modes = []string{string(v1alpha1.CacheModeNone), string(v1alpha1.CacheModeWritethrough), string(v1alpha1.CacheModeWriteback), string(v1alpha1.CacheModeWritebackUnsafe)}

// losses are those that a mode may need accepted.
var losses = []string{string(v1alpha1.DirtyLossNodeLoss), string(v1alpha1.DirtyLossPowerLoss)}

type modeOptions struct {
	change
	consents

	mode v1alpha1.CacheMode
}

// consents are those that writeback needs.
type consents struct{ acceptLoss, withoutFence string }

func (c *consents) addConsents(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&c.acceptLoss, "accept-dirty-loss", "", "The consent that a mode needs: node-loss for writeback, power-loss for writeback-unsafe.")
	fs.StringVar(&c.withoutFence, "without-fence", "", "The consent that writeback needs over a driver whose detach keeps no lost node from writing: "+domain.AcceptTwoWriters+".")
	for flag, words := range map[string][]string{"accept-dirty-loss": losses, "without-fence": {domain.AcceptTwoWriters}} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
	}
}

func newMode(f *Factory) *cobra.Command {
	o := &modeOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "mode PVC none|writethrough|writeback|writeback-unsafe",
		Short: "Change how writes pass through the cache, while the pod runs",
		Long: `Change how writes pass through the cache of a volume, while its pod runs.

none           no cache; the SSD space is given back
writethrough   a write is acknowledged when the storage server has it
writeback      a write is acknowledged when the SSD has it: fast, and lost with the node if it was not flushed before.
               This needs consent: --accept-dirty-loss node-loss
               Over a CSI driver whose detach keeps no lost node from writing it needs another one from the next
               attachment on: --without-fence AcceptTwoWriters
writeback-unsafe
               as writeback, and flushes end at the cache: for scratch data. A loss of power, or a crash of the kernel, loses
               any write since the last drain, in any order. This needs consent: --accept-dirty-loss power-loss

Leaving writeback first writes everything to the storage server, which takes its time. The cached blocks stay between writethrough and writeback;
after none the cache starts cold. A volume that is attached nowhere takes the mode when a pod next uses it.`,
		Example: `  kubectl nearflash mode -n shop data writeback --accept-dirty-loss node-loss
  kubectl nearflash mode -n shop data writethrough`,
		ValidArgsFunction: f.completeVolumes(1, modes...),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 1)
	o.addConsents(cmd)
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *modeOptions) Complete(args []string) error {
	o.mode = v1alpha1.CacheMode(args[1])
	return o.complete(args[0])
}

// Validate implements options.
func (o *modeOptions) Validate() error {
	if !slices.Contains(modes, string(o.mode)) {
		return fmt.Errorf("mode %s is not known: accepted are %s", o.mode, strings.Join(modes, ", "))
	}
	if o.acceptLoss != "" && !slices.Contains(losses, o.acceptLoss) {
		return fmt.Errorf("--accept-dirty-loss %s is not known: accepted are %s", o.acceptLoss, strings.Join(losses, ", "))
	}
	if o.withoutFence != "" && o.withoutFence != domain.AcceptTwoWriters {
		return fmt.Errorf("--without-fence %s is not known: accepted is %s", o.withoutFence, domain.AcceptTwoWriters)
	}
	if o.mode.TakesWrites() && o.acceptLoss != "" && o.acceptLoss != string(o.mode.Consent()) {
		return fmt.Errorf("--accept-dirty-loss %s does not go with mode %s: accepted is %s", o.acceptLoss, o.mode, o.mode.Consent())
	}
	if o.withoutFence != "" && !o.mode.TakesWrites() {
		return fmt.Errorf("--without-fence %s is for mode %s, and the mode is %s", o.withoutFence, v1alpha1.CacheModeWriteback, o.mode)
	}
	return o.validate()
}

// Run implements options.
func (o *modeOptions) Run(ctx context.Context) error {
	v, err := o.resolve(ctx, o.reference)
	if err != nil {
		return err
	}
	consent := v.Spec.AcceptDirtyLoss == o.mode.Consent() || o.acceptLoss != ""
	switch {
	case o.mode == v1alpha1.CacheModeWritebackUnsafe && !consent:
		return fmt.Errorf("%s: writeback-unsafe loses writes in any order, flushed ones among them, when a node loses its power or its kernel crashes: add --accept-dirty-loss %s if that is acceptable", v.title(), o.mode.Consent())
	case o.mode == v1alpha1.CacheModeWriteback && !consent:
		return fmt.Errorf("%s: writeback loses the writes that were not flushed when node or SSD are lost: add --accept-dirty-loss %s if that is acceptable", v.title(), v1alpha1.DirtyLossNodeLoss)
	case o.withoutFence != "" && v.Spec.Origin == nil:
		return fmt.Errorf("%s: --without-fence %s is for volumes of another CSI driver, and this is none", v.title(), o.withoutFence)
	case o.mode != v1alpha1.CacheModeNone && v.Spec.CacheSize == "":
		return fmt.Errorf("%s: the volume has no cache size yet: give it one with `%s resize %s 10%%`, then repeat the command", v.title(), name, v.argument())
	}
	if err := o.say(v, "cacheMode %s -> %s", v.Spec.CacheMode, o.mode); err != nil {
		return err
	}
	return o.apply(ctx, v, func(spec *v1alpha1.CachedVolumeSpec) {
		spec.CacheMode = o.mode
		if o.mode.TakesWrites() {
			spec.AcceptDirtyLoss = o.mode.Consent()
		}
		if o.withoutFence != "" {
			spec.Origin.WithoutFence = v1alpha1.WithoutFenceAcceptTwoWriters
		}
	}, attachedAs)
}
