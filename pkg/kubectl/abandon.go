package kubectl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
)

type abandonOptions struct {
	change

	accept, force bool
}

func newAbandon(f *Factory) *cobra.Command {
	o := &abandonOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "abandon VOLUME",
		Short: "Abandon the unflushed writes of a node that is lost",
		Long: `Abandon the unflushed writes of a node that is lost for good, so that the volume can be used on other nodes with what the storage server has.

A writeback volume whose node went away is kept for that node, because only its SSD has the newest writes. When the node comes back it flushes by
itself. Abandon only what cannot come back: the writes are lost, and the filesystem may need a check. Should the node come
back after all, it finds a newer owner and discards its cache.

What was abandoned, when, and by whom is kept in status.abandoned of the CachedVolume, and the next pod is told by an event.

While the node is Ready the writes can be had: this is refused without --force, which is for an SSD that is lost while its node lives. It is
refused in any case while a pod runs with the volume there. Of a node that is not Ready nobody can tell: make sure that the machine is off. One
that is only cut off would flush when it is back.`,
		Example:           `  kubectl nearflash abandon -n shop data --accept-data-loss`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	cmd.Flags().BoolVar(&o.accept, "accept-data-loss", false, "The consent: acknowledged writes are lost.")
	cmd.Flags().BoolVar(&o.force, "force", false, "Do it although the node is Ready: its SSD is lost.")
	o.output.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *abandonOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *abandonOptions) Validate() error { return checkReference(o.reference) }

// Run implements options.
func (o *abandonOptions) Run(ctx context.Context) error {
	v, err := o.resolve(ctx, o.reference)
	if err != nil {
		return err
	}
	if !v.possiblyDirty() {
		if err := o.say(v, "there is nothing to abandon: the storage server has every write"); err != nil {
			return err
		}
		return o.object(o.client, o.Out, v.CachedVolume)
	}
	node, err := o.nodeState(ctx, v.Status.OwnerNode)
	if err != nil {
		return err
	}
	if err := o.say(v, "unflushed writes of generation %s on node %s, which is %s%s",
		number(v.Status.Generation), v.Status.OwnerNode, o.nodeWords(node), o.known(v)); err != nil {
		return err
	}
	if err := o.refuse(ctx, v, node); err != nil {
		return fmt.Errorf("%s: %w", v.title(), err)
	}
	if err := o.abandon(ctx, v); err != nil {
		return err
	}
	if len(v.Status.Abandoned) == 0 {
		// A field that the API server does not know is dropped without an error.
		if err := o.say(v, "warning: the CustomResourceDefinition of this cluster is of an older version, so that the record does not keep what was given up and no pod will be told"); err != nil {
			return err
		}
	}
	if err := o.say(v, "the writes are abandoned: the volume goes on with what the storage server has; check its filesystem before you trust it"); err != nil {
		return err
	}
	return o.object(o.client, o.Out, v.CachedVolume)
}

// known is what the node last said of the dirty blocks, for a person to judge.
func (o *abandonOptions) known(v *volume) string {
	cache := v.Status.Cache
	if cache.DirtyBytes == nil || cache.ObservedTime.IsZero() {
		return ""
	}
	return fmt.Sprintf("; %s ago %s were dirty", ago(o.Clock.Now(), cache.ObservedTime), quantity.Text(*cache.DirtyBytes))
}

// refuse returns why the writes must not be abandoned.
func (o *abandonOptions) refuse(ctx context.Context, v *volume, node nodeState) error {
	if node.ready {
		pods, err := o.users(ctx, v.ClaimNamespace, v.Claim)
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if pod.Spec.NodeName == v.Status.OwnerNode && pod.Status.Phase == corev1.PodRunning {
				return fmt.Errorf("pod %s runs with the volume on node %s, which would go on writing: delete the pod, or use `%s flush %s`", pod.Name, v.Status.OwnerNode, name, v.argument())
			}
		}
		if !o.force {
			return fmt.Errorf("node %s is Ready and flushes by itself: see `%s doctor` if it does not; add --force only if its SSD is lost", v.Status.OwnerNode, name)
		}
	}
	if !o.accept {
		return errors.New("acknowledged writes would be lost: add --accept-data-loss if they cannot come back")
	}
	return nil
}

// abandon takes the mark away and writes down what is abandoned, in one write, unless
// the record has changed since it was looked at: the node may have come back in that
// moment.
func (o *abandonOptions) abandon(ctx context.Context, v *volume) error {
	before := v.DeepCopy()
	v.Status.DirtyState = v1alpha1.DirtyStateClean
	all := append(slices.Clone(v.Status.Abandoned), o.loss(ctx, v))
	v.Status.Abandoned = all[max(0, len(all)-v1alpha1.MaxAbandoned):]
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := o.client.Status().Patch(ctx, v.CachedVolume, patch); err != nil {
		return fmt.Errorf("change the status of CachedVolume %s: %w", v.Name, err)
	}
	return nil
}

// loss is what goes on record about the writes.
func (o *abandonOptions) loss(ctx context.Context, v *volume) v1alpha1.AbandonedWrites {
	given := "--accept-data-loss"
	if o.force {
		given += " --force"
	}
	out := v1alpha1.AbandonedWrites{
		Generation: ptr.Deref(v.Status.Generation, 0), NodeName: v.Status.OwnerNode,
		Consent: v1alpha1.LossConsent{Time: metav1.NewTime(o.Clock.Now()), By: userName(ctx, o.client), Given: given},
	}
	seen := v.Status.Cache
	if seen.ObservedTime.IsZero() || seen.DirtyBytes == nil {
		return out
	}
	out.LastSeen = v1alpha1.LastSeenWrites{ObservedTime: seen.ObservedTime, DirtyBytes: seen.DirtyBytes, SinceTime: seen.DirtySinceTime}
	if *seen.DirtyBytes == 0 {
		// Nothing was dirty then, so that whatever is lost is younger.
		out.LastSeen.SinceTime = seen.ObservedTime
	}
	return out
}

// maxUser is the bound of the API for the name of who consented.
const maxUser = 253

// userName is the name by which the API server knows who runs the command; "" if it does
// not say, which must not be in the way of an emergency.
func userName(ctx context.Context, c client.Client) string {
	var review authenticationv1.SelfSubjectReview
	if err := c.Create(ctx, &review); err != nil {
		return ""
	}
	name := review.Status.UserInfo.Username
	return name[:min(len(name), maxUser)]
}
