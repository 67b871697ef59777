package kubectl

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

type flushOptions struct{ change }

func newFlush(f *Factory) *cobra.Command {
	o := &flushOptions{change: newChange(f)}
	cmd := &cobra.Command{
		Use:   "flush PVC",
		Short: "Write everything that is dirty to the storage server, while the pod runs",
		Long: `Write everything of a volume that is dirty to the storage server, while its pod runs.

It ends when each block that was dirty at the request is on the storage server. What the pod writes meanwhile goes to the storage server at once;
afterwards the volume is in writeback mode again. Before a snapshot on the storage server, quiesce the application first: a flush
knows nothing of what is still in the memory of the node.`,
		Example: `  kubectl nearflash flush -n shop data
  kubectl nearflash flush -n shop data --timeout 1h`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	o.addFlags(cmd)
	return cmd
}

// Complete implements options.
func (o *flushOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *flushOptions) Validate() error { return o.validate() }

// Run implements options.
func (o *flushOptions) Run(ctx context.Context) error {
	v, err := o.resolve(ctx, o.reference)
	if err != nil {
		return err
	}
	if !v.possiblyDirty() {
		// states.md, I2: the mark is set before the first dirty block can be.
		if err := o.say(v, "nothing is dirty: the storage server has every write"); err != nil {
			return err
		}
		return o.object(o.client, o.Out, v.CachedVolume)
	}
	if err := detachedDirty(v); err != nil {
		return fmt.Errorf("%s: %w", v.title(), err)
	}
	err = o.request(ctx, v, func(spec *v1alpha1.CachedVolumeSpec, token string) { spec.FlushRequest = token },
		func(token string) string { return "flush requested (" + token + ")" }, judgeFlush)
	if err != nil {
		return err
	}
	return o.object(o.client, o.Out, v.CachedVolume)
}

// detachedDirty is the error of a volume that nobody can flush now.
func detachedDirty(v *volume) error {
	if v.attached() || !v.possiblyDirty() {
		return nil
	}
	return fmt.Errorf("attached nowhere, and node %[1]s may hold unflushed writes of it: bring %[1]s back, its plugin flushes by itself; if it is lost for good, `%[2]s abandon %[3]s --accept-data-loss` gives the writes up",
		v.Status.OwnerNode, name, v.argument())
}

// why is what a condition says, in words where it has any.
func why(c *metav1.Condition) string { return cmp.Or(readable(oneLine(c.Message)), c.Reason) }

// judgeFlush waits until the node has carried out a request, or a later one.
func judgeFlush(token string) func(*volume) (outcome, error) {
	return func(v *volume) (outcome, error) {
		flushed := v.Status.Flush.Request
		if flushed == token || flushed != "" && flushed == v.Spec.FlushRequest {
			return outcome{done: true, text: "flushed: the storage server has every write that was made before"}, nil
		}
		if !v.attached() {
			if err := detachedDirty(v); err != nil {
				return outcome{}, err
			}
			return outcome{done: true, text: "flushed when it was detached: the storage server has every write"}, nil
		}
		c := v.condition(v1alpha1.ConditionApplied)
		if c == nil || c.ObservedGeneration < v.Generation {
			return outcome{silent: true, text: fmt.Sprintf("waiting for node %s: %s dirty", v.node(), shownDirty(v))}, nil
		}
		if c.Reason == v1alpha1.ReasonFlushing || c.Reason == v1alpha1.ReasonApplying {
			return outcome{text: fmt.Sprintf("node %s flushes: %s", v.node(), readable(c.Message))}, nil
		}
		return outcome{text: fmt.Sprintf("node %s does not flush now (%s), %s are dirty", v.node(), why(c), shownDirty(v))}, nil
	}
}
