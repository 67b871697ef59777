package kubectl

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

type resizeOptions struct {
	change

	text string
	size domain.Size
}

func newResize(f *Factory) *cobra.Command {
	o := &resizeOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "resize PVC SIZE",
		Short: "Change the size of the cache, while the pod runs",
		Long: `Change the size of a volume's cache, while its pod runs. The volume itself keeps its size.

SIZE is a quantity of bytes (10Gi) or a percentage of the volume (10%). A cache that grows stays warm. One that shrinks is made anew and
starts cold; so does one that grows far beyond its first size, because the map of the cache has no room for more.`,
		Example: `  kubectl nearflash resize -n shop data 20Gi
  kubectl nearflash resize -n shop data 15%`,
		ValidArgsFunction: f.completeVolumes(1),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 1)
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *resizeOptions) Complete(args []string) error {
	o.text = args[1]
	return o.complete(args[0])
}

// Validate implements options.
func (o *resizeOptions) Validate() error {
	var err error
	if o.size, err = quantity.Size(o.text); err != nil {
		return fmt.Errorf("SIZE: %s", strings.TrimPrefix(err.Error(), domain.ErrInvalid.Error()+": "))
	}
	return o.validate()
}

// Run implements options.
func (o *resizeOptions) Run(ctx context.Context) error {
	v, err := o.resolve(ctx, o.reference)
	if err != nil {
		return err
	}
	if most := v.maxCache(); most > 0 && o.size.Bytes > most {
		return fmt.Errorf("SIZE: %q is more than the volume's maxCacheSize %s; accepted are at most that, or a percentage of the volume, which is cut down to it", o.text, v.Spec.MaxCacheSize)
	}
	if err := o.say(v, "cacheSize %s -> %s%s", orNone(v.Spec.CacheSize), o.size, o.means(v)); err != nil {
		return err
	}
	// As the controller writes it, so that `kubectl get cvol` shows 1Gi for 1073741824 too.
	return o.apply(ctx, v, func(spec *v1alpha1.CachedVolumeSpec) { spec.CacheSize = o.size.String() }, func(v *volume) string {
		if n := v.Status.Cache.SizeBytes; v.reported() && v.Spec.CacheMode != v1alpha1.CacheModeNone && n != nil {
			return fmt.Sprintf("done: %s on node %s", quantity.Text(*n), v.node())
		}
		return attachedAs(v)
	})
}

// means says what the change costs.
func (o *resizeOptions) means(v *volume) string {
	if v.Spec.CacheMode == v1alpha1.CacheModeNone {
		return fmt.Sprintf(" (the mode is none: the size counts once `%s mode` gives the volume a cache)", name)
	}
	before, err := quantity.Size(v.Spec.CacheSize)
	if err != nil || v.capacity() == 0 && (before.Percent != 0) != (o.size.Percent != 0) {
		return ""
	}
	old, now := before.Of(v.capacity()), o.size.Of(v.capacity())
	if most := v.maxCache(); most > 0 {
		old, now = min(old, most), min(now, most)
	}
	if v.capacity() == 0 {
		old, now = before.Bytes+int64(before.Percent), o.size.Bytes+int64(o.size.Percent)
	}
	switch {
	case now > old:
		return " (it grows and stays warm)"
	case now < old:
		return " (it shrinks and starts cold)"
	}
	return ""
}
