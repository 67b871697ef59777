package kubectl

import (
	"context"

	"github.com/spf13/cobra"
)

type releaseOptions struct{ adopting }

func newRelease(f *Factory) *cobra.Command {
	o := &releaseOptions{adopting{Factory: f}}
	cmd := &cobra.Command{
		Use:   "release PVC",
		Short: "Give an adopted claim back, without the cache",
		Long: `Give a claim back that was adopted, as it was: its PersistentVolume of the other driver with the same name, class, labels, annotations and reclaim
policy, and the claim bound to it. The data stay where they are.

Stop the pods first. It is refused while a node may hold unflushed writes. The controller of nearflash must run: it ends the CachedVolume. What
was changed while the claim was adopted stays: the size of the volume, labels and annotations of the claim.

If the command is interrupted, the same command goes on. It takes back an adoption that was begun and not ended, too.`,
		Example: `  kubectl nearflash release -n shop data --dry-run
  kubectl nearflash release -n shop data --yes`,
		ValidArgsFunction: f.completeVolumes(0),
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.exists, "volume-exists", false, "The original PersistentVolume vanished, and you have seen with the tools of the other driver that its volume is there.")
	return cmd
}

// Complete implements options.
func (o *releaseOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *releaseOptions) Validate() error { return o.validate("release") }

// Run implements options.
func (o *releaseOptions) Run(ctx context.Context) error { return again(o.release(ctx)) }

func (o *releaseOptions) release(ctx context.Context) error {
	a, err := o.adopter(ctx)
	if err != nil {
		return err
	}
	plan, err := a.PlanRelease(ctx, o.key())
	if err != nil {
		return o.titled(err)
	}
	if len(plan.Steps) == 0 {
		return o.say("it is not adopted: there is nothing to release")
	}
	goOn, err := o.agree(plan)
	if err != nil || !goOn {
		return err
	}
	if err := a.Release(ctx, o.key()); err != nil {
		return o.titled(err)
	}
	return o.say("done: it is given back, without a cache; start its pods")
}
