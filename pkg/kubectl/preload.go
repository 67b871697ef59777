package kubectl

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

// leastBandwidth is the least that spec.preload takes, and maxPath the longest path.
const leastBandwidth, maxPath = 1 << 20, 1024

type preloadOptions struct {
	change

	path, bandwidth string
	bytes           int64
	cancel          bool
}

func newPreload(f *Factory) *cobra.Command {
	o := &preloadOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "preload PVC",
		Short: "Fill the cache with what the volume has, before anything is read twice, while the pod runs",
		Long: `Fill the cache with what the volume has, before anything is read twice, while the pod runs.

Without --path it is all files of the volume's filesystem, as far as the cache has room; of a raw block volume it is everything, from its beginning on.
Space that is not allocated is not read. With --path it is the files of a directory, or one file.

The node reads a little of each chunk that is not cached, again and again, until the kernel has taken it in; what is cached stays. It ends when everything
is cached, or when the cache takes no more in: one that is full of what is read often gives nothing up. The reads count in hit rates and in advice.

If the volume moves meanwhile, its next node goes on. What is cached when a preload is cancelled stays.`,
		Example: `  kubectl nearflash preload -n shop data --path models/large
  kubectl nearflash preload -n shop data --bandwidth 100Mi
  kubectl nearflash preload -n shop data --cancel`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	cmd.Flags().StringVar(&o.path, "path", "", "A directory or a file, from the root of the volume, whatever the pod has it mounted at.")
	cmd.Flags().StringVar(&o.bandwidth, "bandwidth", "", "How much may come into the cache in a second (100Mi), at least 1Mi; by default the volume's warmStartBandwidth, or the node's.")
	cmd.Flags().BoolVar(&o.cancel, "cancel", false, "End what was asked for.")
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *preloadOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *preloadOptions) Validate() error {
	if o.cancel && (o.path != "" || o.bandwidth != "") {
		return errors.New("--cancel ends what was asked for, whatever it was: leave --path and --bandwidth out")
	}
	if o.path != "" {
		clean := strings.TrimPrefix(path.Clean("/"+o.path), "/")
		switch {
		case strings.Contains("/"+o.path+"/", "/../"):
			return fmt.Errorf("--path %s has ..: give a path from the root of the volume", o.path)
		case len(clean) > maxPath:
			return fmt.Errorf("--path has %d characters: accepted are %d", len(clean), maxPath)
		}
		o.path = clean
	}
	if o.bandwidth != "" {
		var err error
		if o.bytes, err = quantity.Bytes(o.bandwidth); err != nil || o.bytes < leastBandwidth {
			return fmt.Errorf("--bandwidth %s: accepted is a quantity of bytes in a second, such as 100Mi, and at least 1Mi", o.bandwidth)
		}
	}
	return o.validate()
}

// Run implements options.
func (o *preloadOptions) Run(ctx context.Context) error {
	return o.either(ctx, o.cancel, o.takeBack, o.ask)
}

func (o *preloadOptions) takeBack(ctx context.Context, v *volume) error {
	if v.Spec.Preload == nil {
		return o.say(v, "no preload was asked for")
	}
	over := v.Status.Preload.Request == v.Spec.Preload.Request && v.Status.Preload.State.Over()
	if err := o.patchSpec(ctx, v, func(spec *v1alpha1.CachedVolumeSpec) { spec.Preload = nil }); err != nil {
		return err
	}
	if over {
		return o.say(v, "the preload was over (%s)", v.Status.Preload.State)
	}
	return o.say(v, "the preload is not asked for any more; what is cached stays")
}

func (o *preloadOptions) ask(ctx context.Context, v *volume) error {
	switch {
	case v.byMany():
		return fmt.Errorf("%s: %w", v.title(), readersError(v, "preloaded"))
	case v.Spec.CacheMode == v1alpha1.CacheModeNone:
		return fmt.Errorf("%s: it has no cache: `%s mode %s writethrough` gives it one", v.title(), name, v.argument())
	case !v.attached():
		return fmt.Errorf("%s: it is attached nowhere: start its pod first; the class parameter preload fills the cache of a volume when it is attached", v.title())
	}
	return o.request(ctx, v, func(spec *v1alpha1.CachedVolumeSpec, token string) {
		spec.Preload = &v1alpha1.PreloadRequest{Request: token, Path: o.path}
		if o.bytes > 0 {
			spec.Preload.BandwidthBytesPerSecond = &o.bytes
		}
	}, func(string) string {
		return fmt.Sprintf("preload requested: `%s describe %s` shows it, and --cancel ends it", name, v.argument())
	}, judgePreload)
}

// judgePreload waits until the node says that a request is over.
func judgePreload(token string) func(*volume) (outcome, error) {
	return func(v *volume) (outcome, error) {
		p := v.Status.Preload
		switch {
		case v.Spec.Preload == nil || v.Spec.Preload.Request != token:
			return outcome{}, errors.New("the request was taken back, or replaced by another one; what is cached stays")
		case !v.attached():
			return outcome{}, errors.New("the volume was detached meanwhile: the preload goes on where it is attached next")
		case p.Request != token:
			return outcome{silent: true, text: "waiting for node " + v.node()}, nil
		}
		switch p.State {
		case v1alpha1.PreloadPending:
			return outcome{text: fmt.Sprintf("node %s waits: %s", v.node(), p.Message)}, nil
		case v1alpha1.PreloadRunning:
			return outcome{text: fmt.Sprintf("node %s fills the cache: %s", v.node(), preloadAmount(p))}, nil
		case v1alpha1.PreloadFailed:
			return outcome{}, fmt.Errorf("node %s cannot do it: %s", v.node(), p.Message)
		case v1alpha1.PreloadCompleted, v1alpha1.PreloadEnded, v1alpha1.PreloadCancelled:
		}
		return outcome{done: true, text: fmt.Sprintf("%s: %s", preloadAmount(p), p.Message)}, nil
	}
}

// preloadAmount is how much of what was asked for is cached.
func preloadAmount(p v1alpha1.PreloadStatus) string {
	if p.TotalBytes == nil {
		return "looking for what is allocated"
	}
	cached := int64(0)
	if p.CachedBytes != nil {
		cached = *p.CachedBytes
	}
	return fmt.Sprintf("%s of %s cached", quantity.Text(cached), quantity.Text(*p.TotalBytes))
}

// preloadText is what describe shows; "" if none was asked for.
func preloadText(v *volume) string {
	asked, p := v.Spec.Preload, v.Status.Preload
	if asked == nil && p.State == "" {
		return ""
	}
	text := "everything"
	if asked != nil && asked.Path != "" {
		text = asked.Path
	}
	if asked == nil {
		text = "not asked for any more"
	}
	if asked != nil && p.Request != asked.Request {
		return text + ": the node has not begun"
	}
	text += ": " + string(p.State)
	if p.TotalBytes != nil {
		text += ", " + preloadAmount(p)
	}
	if p.Message != "" {
		text += " (" + p.Message + ")"
	}
	return text
}
