package kubectl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/records"
)

type discardOptions struct {
	*Factory
	session
	output

	node, volume string
	accept       bool
}

func newDiscard(f *Factory) *cobra.Command {
	o := &discardOptions{Factory: f, output: newOutput(false)}
	cmd := &cobra.Command{
		Use:   "discard NODE VOLUME",
		Short: "Abandon unflushed writes that a node keeps",
		Long: `Abandon unflushed writes that a node keeps because nobody can tell whether they are still wanted.

A node that has writes on its SSD alone, and finds no record of their volume, or one that was made anew, flushes them if the storage server still
shows it the volume as that of their owner. If it does not, the node keeps them, and no pod gets the volume on that node. "kubectl nearflash
doctor" lists what is kept, with the reason. Before you give it up: restore the records, or the node's access, or flush the SSD with
"nearflash-node rescue" (docs/how-to/recover-a-lost-cluster.md).

VOLUME is the name that doctor and status.kept of the CachePool have, which is the handle of the PersistentVolume. The writes are lost; the node
wipes its cache within a minute.`,
		Example: `  kubectl nearflash discard node-a pvc-0d7d1a7e --accept-data-loss`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("discard takes the name of a node and that of a volume: `%s doctor` lists what nodes keep", name)
			}
			return nil
		},
		ValidArgsFunction: f.completePools,
		RunE:              run(o),
	}
	cmd.Flags().BoolVar(&o.accept, "accept-data-loss", false, "The consent: acknowledged writes are lost.")
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *discardOptions) Complete(args []string) error {
	o.node, o.volume = args[0], strings.TrimPrefix(args[1], "cvol/")
	if err := o.complete(); err != nil {
		return err
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *discardOptions) Validate() error {
	for what, v := range map[string]string{"node": o.node, "volume": o.volume} {
		if v == "" || strings.Contains(v, "/") {
			return fmt.Errorf("%q does not name a %s: `%s doctor` lists what nodes keep", v, what, name)
		}
	}
	return nil
}

// Run implements options.
func (o *discardOptions) Run(ctx context.Context) error {
	pools, err := o.pools(ctx, []string{o.node})
	if err != nil {
		return err
	}
	pool := &pools[0]
	i := slices.IndexFunc(pool.Status.Kept, func(k v1alpha1.KeptCache) bool { return k.VolumeName == o.volume })
	if i < 0 {
		if err := o.say("node %s keeps no unflushed writes of volume %s", o.node, o.volume); err != nil {
			return err
		}
		return o.object(o.client, o.Out, pool)
	}
	k := pool.Status.Kept[i]
	if err := o.say("node %s keeps unflushed writes of volume %s, generation %s (UID %s), on a cache of %s: %s",
		o.node, k.VolumeName, number(k.Generation), k.VolumeUID, sizeOf(k.SizeBytes), k.Message); err != nil {
		return err
	}
	if !o.accept {
		return errors.New("acknowledged writes would be lost: add --accept-data-loss if nobody wants them")
	}
	if err := o.discard(ctx, pool, k); err != nil {
		return err
	}
	if err := o.say("the writes are abandoned: the node wipes the cache within a minute"); err != nil {
		return err
	}
	return o.object(o.client, o.Out, pool)
}

func (o *discardOptions) say(format string, args ...any) error {
	_, err := fmt.Fprintf(o.messages(o.Factory), format+"\n", args...)
	return err
}

// sizeOf is a size in words, if it is known.
func sizeOf(bytes *int64) string {
	if bytes == nil {
		return "unknown size"
	}
	return quantity.Text(*bytes)
}

// discard writes the word, unless the status has changed since it was looked at.
func (o *discardOptions) discard(ctx context.Context, pool *v1alpha1.CachePool, k v1alpha1.KeptCache) error {
	before := pool.DeepCopy()
	records.AddDeleted(&pool.Status, v1alpha1.DeletedVolume{VolumeName: k.VolumeName, VolumeUID: k.VolumeUID, Generation: ptr.To(ptr.Deref(k.Generation, 0))})
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := o.client.Status().Patch(ctx, pool, patch); err != nil {
		return fmt.Errorf("change the status of CachePool %s: %w", pool.Name, err)
	}
	return nil
}
