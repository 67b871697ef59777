package kubectl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

type dropOptions struct {
	change

	yes bool
}

func newDrop(f *Factory) *cobra.Command {
	o := &dropOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "drop PVC",
		Short: "Give a volume's SSD space back, while its pod runs",
		Long: `Give a volume's SSD space back, while its pod runs: the same as mode none.

What is dirty is first written to the storage server. Then the pod reads and writes the storage server directly. The warm cache is gone, also the
one that a node keeps of a volume that has left it. The cache size stays on record: "kubectl nearflash mode PVC writethrough" brings a cache of
that size back, which starts cold.`,
		Example:           `  kubectl nearflash drop -n shop data --yes`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask.")
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *dropOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *dropOptions) Validate() error {
	if !o.yes && !o.Interactive {
		return fmt.Errorf("drop gives up the warm cache and there is nobody to ask: add --yes")
	}
	return o.validate()
}

// Run implements options.
func (o *dropOptions) Run(ctx context.Context) error {
	v, err := o.resolve(ctx, o.reference)
	if err != nil {
		return err
	}
	what := "gives up its cache"
	if v.reported() && v.Status.Cache.SizeBytes != nil {
		what += fmt.Sprintf(" of %s on node %s", quantity.Text(*v.Status.Cache.SizeBytes), v.node())
	}
	if warm := warmOn(v); warm != none {
		what += "; what is kept warm on " + warm + " goes too"
	}
	if err := o.say(v, "%s", what); err != nil {
		return err
	}
	if err := o.confirm(o.yes); err != nil {
		return err
	}
	mode := v.Spec.CacheMode
	return o.apply(ctx, v, func(spec *v1alpha1.CachedVolumeSpec) { spec.CacheMode = v1alpha1.CacheModeNone }, func(v *volume) string {
		text := attachedAs(v)
		if mode != v1alpha1.CacheModeNone {
			text += fmt.Sprintf("; `%s mode %s %s` brings one of %s back", name, v.argument(), mode, v.Spec.CacheSize)
		}
		return text
	})
}
