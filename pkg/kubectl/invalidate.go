package kubectl

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

type invalidateOptions struct {
	change

	yes bool
}

func newInvalidate(f *Factory) *cobra.Command {
	o := &invalidateOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "invalidate PVC",
		Short: "Drop every cache of a volume whose content was replaced on the storage server",
		Long: `Drop every cache of a volume whose content was replaced on the storage server: a snapshot was rolled back or merged, a backup was written over it.

A node that the volume has left keeps its cache, for the next time. If the storage server's copy is changed meanwhile by anybody but a pod, that
cache shows what was there before. After this command no node uses what it has: the record forgets its last owner, so that the next one has a new
generation and starts cold, wherever it is.

Stop the pods first, and replace the content before they start again: this is refused while the volume is attached, and while a node may hold
unflushed writes of it, which would be written over the new content. Another LUN at the volume's address is noticed without this command, by its identity.`,
		Example:           `  kubectl nearflash invalidate -n shop data --yes`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask.")
	o.output.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *invalidateOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *invalidateOptions) Validate() error {
	if !o.yes && !o.Interactive {
		return errors.New("invalidate gives up every warm cache of the volume and there is nobody to ask: add --yes")
	}
	return checkReference(o.reference)
}

// Run implements options.
func (o *invalidateOptions) Run(ctx context.Context) error {
	v, err := o.resolve(ctx, o.reference)
	if err != nil {
		return err
	}
	switch {
	case v.Status.Publication == v1alpha1.PublicationPublished:
		return fmt.Errorf("%s: it is attached to node %s, whose pod goes on with what it has cached: stop its pods, and wait until `%s list %s` shows no node", v.title(), v.Status.OwnerNode, name, v.argument())
	case v.possiblyDirty():
		return fmt.Errorf("%s: node %s may hold unflushed writes of it, newer than what the storage server had: bring the node back so that it flushes them before the content is replaced, or give them up with `%s abandon %s --accept-data-loss`",
			v.title(), v.Status.OwnerNode, name, v.argument())
	case ptr.Deref(v.Status.Generation, 0) == 0 || v.Status.OwnerNode == "":
		if err := o.say(v, "there is nothing to drop: no node has had it since"); err != nil {
			return err
		}
		return o.object(o.client, o.Out, v.CachedVolume)
	}
	what := "no cache of generation " + number(v.Status.Generation) + " or before will be used again"
	if warm := warmOn(v); warm != none {
		what += "; what is kept warm on " + warm + " goes"
	}
	if err := o.say(v, "%s", what); err != nil {
		return err
	}
	if err := o.confirm(o.yes); err != nil {
		return err
	}
	if err := o.forgetOwner(ctx, v); err != nil {
		return err
	}
	if err := o.say(v, "done: its next pod starts cold, with what the storage server has"); err != nil {
		return err
	}
	return o.object(o.client, o.Out, v.CachedVolume)
}

// forgetOwner makes the next publication one to a new owner (states.md, The same LUN),
// unless the record has changed since it was looked at.
func (o *invalidateOptions) forgetOwner(ctx context.Context, v *volume) error {
	before := v.DeepCopy()
	v.Status.OwnerNode, v.Status.RetainedCaches, v.Status.WarmSource = "", nil, v1alpha1.WarmSource{}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := o.client.Status().Patch(ctx, v.CachedVolume, patch); err != nil {
		return fmt.Errorf("change the status of CachedVolume %s: %w", v.Name, err)
	}
	return nil
}
