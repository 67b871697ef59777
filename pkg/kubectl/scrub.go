package kubectl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

type scrubOptions struct{ change }

func newScrub(f *Factory) *cobra.Command {
	o := &scrubOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "scrub PVC",
		Short: "Compare a volume's cache with the storage server, while its pod runs",
		Long: `Compare a volume's cache with the storage server, while its pod runs, to find what the SSD has lost without saying so.

All of the cache that is clean is read from the SSD and from the storage server, at the rate that the chart sets (node.scrub.rate). What differs is
looked at again with the volume suspended for a moment, so that no write is taken for a difference. A chunk that is corrupted is
reported, and replaced by what the storage server has. In a cache that is, or ever was, in a writeback mode it stays, because a storage server that has
lost its write cache has the wrong copy. The storage server is never written to. What is dirty is not compared: the SSD alone has it. Findings are events on the claim, and in the
condition CacheIntact.`,
		Example: `  kubectl nearflash scrub -n shop data
  kubectl nearflash scrub -n shop data --timeout 6h`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *scrubOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *scrubOptions) Validate() error { return o.validate() }

// Run implements options.
func (o *scrubOptions) Run(ctx context.Context) error {
	v, err := o.resolve(ctx, o.reference)
	if err != nil {
		return err
	}
	switch {
	case !v.attached():
		return fmt.Errorf("%s: attached nowhere: a cache is compared while its volume is attached, so start a pod with it first", v.title())
	case v.byMany():
		return fmt.Errorf("%s: %w", v.title(), readersError(v, "compared"))
	case v.Spec.CacheMode == v1alpha1.CacheModeNone:
		return fmt.Errorf("%s: it has no cache (mode none)", v.title())
	}
	err = o.request(ctx, v, func(spec *v1alpha1.CachedVolumeSpec, token string) { spec.ScrubRequest = token },
		func(token string) string { return "scrub requested (" + token + ")" }, judgeScrub)
	if err != nil {
		return err
	}
	return o.object(o.client, o.Out, v.CachedVolume)
}

// judgeScrub waits until the node has carried out a request, or a later one.
func judgeScrub(token string) func(*volume) (outcome, error) {
	return func(v *volume) (outcome, error) {
		done := v.Status.Scrub.Request
		switch {
		case done == token || done != "" && done == v.Spec.ScrubRequest:
			return outcome{done: true, text: scrubbed(v)}, nil
		case !v.attached():
			return outcome{}, fmt.Errorf("the volume was detached before its cache was compared; the request stays, and is carried out when it is attached again")
		}
		return outcome{text: fmt.Sprintf("node %s compares the cache with the storage server", v.node())}, nil
	}
}

// scrubbed says what the last scrub has found.
func scrubbed(v *volume) string {
	s := v.Status.Scrub
	checked, corrupted, unjudged := ptr.Deref(s.CheckedBytes, 0), ptr.Deref(s.CorruptedChunks, 0), ptr.Deref(s.UnjudgedPieces, 0)
	text := fmt.Sprintf("%s compared on node %s, ", quantity.Text(checked), s.NodeName)
	switch {
	case checked == 0:
		text = "nothing was compared: there is nothing in a cache"
	case corrupted > 0:
		text += fmt.Sprintf("corrupted chunks: %d", corrupted)
		// The node says there what it has done about them.
		if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionCacheIntact); c != nil && c.Status == metav1.ConditionFalse {
			text = c.Message
		}
	default:
		text += "nothing is corrupted"
	}
	if unjudged > 0 {
		text += fmt.Sprintf("; %d pieces were written to all the time and could not be judged", unjudged)
	}
	return text
}
