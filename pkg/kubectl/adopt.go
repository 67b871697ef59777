package kubectl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/adopt"
	"github.com/nearflash/nearflash/pkg/driver"
	domain "github.com/nearflash/nearflash/pkg/volume"
)

// Parameters of the cache that flags name too.
const (
	parameterMode       = "cacheMode"
	parameterSize       = "cacheSize"
	parameterAcceptLoss = "acceptDirtyLoss"
)

// notOfCache are parameters of a class that say how its volumes are made, and are not taken over.
var notOfCache = []string{"backend", "originStorageClass", "provisioning", "fsType"}

type adoptOptions struct {
	adopting
	consents

	mode, size, class, fsType string
}

func newAdopt(f *Factory) *cobra.Command {
	o := &adoptOptions{adopting: adopting{Factory: f}}
	cmd := &cobra.Command{
		Use:   "adopt PVC",
		Short: "Put a cache in front of a claim that exists, whose pods are stopped",
		Long: `Put a cache in front of a claim of another CSI driver that exists, under the same name. The data stay where they are.

What a claim is bound to cannot be changed. So the claim and its PersistentVolume are deleted, with the PersistentVolume on Retain, and made again
with nearflash in between. Stop the pods first, and whatever would make the claim again: a StatefulSet is scaled to 0, an operator told to stop.

The originals are saved in a ConfigMap in the namespace of origins, and "kubectl nearflash release PVC" gives the claim back by it. If the
command is interrupted, the same command goes on, and release takes back what was done.

The cache has the mode and the size of the flags, or the parameters of a StorageClass of nearflash; its size is 10% of the volume by default, its
mode writethrough. While a claim is adopted, deleting it deletes no data.`,
		Example: `  kubectl nearflash adopt -n shop data --dry-run
  kubectl nearflash adopt -n shop data --cache-size 20Gi
  kubectl nearflash adopt -n shop data --storage-class cached-block --yes --save data.yaml`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              run(o),
	}
	cmd.Args = wantVolume(cmd, 0)
	fs := cmd.Flags()
	fs.StringVar(&o.mode, "cache-mode", "", "How writes pass through the cache: "+strings.Join(modes, ", ")+".")
	fs.StringVar(&o.size, "cache-size", "", "Size of the cache: a quantity of bytes (10Gi), or a percentage of the volume (10%).")
	o.addConsents(cmd)
	fs.StringVar(&o.class, "storage-class", "", "A StorageClass of nearflash whose parameters of the cache are taken; the other flags go before them.")
	fs.StringVar(&o.fsType, "fs-type", "", "The filesystem on a volume whose PersistentVolume names none: "+strings.Join(adopt.FSTypes, ", ")+". Nothing is formatted.")
	o.addFlags(cmd)
	for flag, words := range map[string][]string{"cache-mode": modes, "fs-type": adopt.FSTypes} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
	}
	return cmd
}

// Complete implements options.
func (o *adoptOptions) Complete(args []string) error { return o.complete(args[0]) }

// Validate implements options.
func (o *adoptOptions) Validate() error {
	if o.fsType != "" && !slices.Contains(adopt.FSTypes, o.fsType) {
		return fmt.Errorf("--fs-type %s is not known: accepted are %s", o.fsType, strings.Join(adopt.FSTypes, ", "))
	}
	return o.validate("adopt")
}

// Run implements options.
func (o *adoptOptions) Run(ctx context.Context) error { return again(o.adopt(ctx)) }

func (o *adoptOptions) adopt(ctx context.Context) error {
	w, err := o.want(ctx)
	if err != nil {
		return err
	}
	a, err := o.adopter(ctx)
	if err != nil {
		return err
	}
	plan, err := a.PlanAdopt(ctx, o.key(), w)
	if err != nil {
		return o.titled(err)
	}
	goOn, err := o.agree(plan)
	if err != nil {
		return err
	}
	if goOn {
		if err := a.Adopt(ctx, o.key(), w); err != nil {
			return o.titled(err)
		}
	}
	if o.dryRun {
		return nil
	}
	return o.say("done: it has a cache in front; start its pods")
}

// want reads the flags, and the class that they name.
func (o *adoptOptions) want(ctx context.Context) (adopt.Want, error) {
	w := adopt.Want{FSType: o.fsType, Attributes: map[string]string{}}
	if o.class != "" {
		var class storagev1.StorageClass
		err := o.client.Get(ctx, client.ObjectKey{Name: o.class}, &class)
		switch {
		case apierrors.IsNotFound(err):
			return w, fmt.Errorf("--storage-class %s: there is no such StorageClass: accepted are those with the provisioner %s", o.class, driverName)
		case err != nil:
			return w, fmt.Errorf("read StorageClass %s: %w", o.class, err)
		case class.Provisioner != driverName:
			return w, fmt.Errorf("--storage-class %s has the provisioner %s: accepted are those with %s", o.class, class.Provisioner, driverName)
		}
		maps.Copy(w.Attributes, class.Parameters)
		maps.DeleteFunc(w.Attributes, func(k, _ string) bool { return slices.Contains(notOfCache, k) || strings.Contains(k, "/") })
	}
	for key, value := range map[string]string{parameterMode: o.mode, parameterSize: o.size, parameterAcceptLoss: o.acceptLoss, "withoutFence": o.withoutFence} {
		if value != "" {
			w.Attributes[key] = value
		}
	}
	w.Chosen = len(w.Attributes) > 0 || w.FSType != ""
	checked := maps.Clone(w.Attributes)
	checked["originPersistentVolume"] = "origin" // any name
	if err := driver.CheckStatic(checked); err != nil {
		what := "the flags of the cache"
		if o.class != "" {
			what += " and the parameters of StorageClass " + o.class
		}
		return w, fmt.Errorf("%s: %s", what, strings.TrimPrefix(err.Error(), domain.ErrInvalid.Error()+": "))
	}
	return w, nil
}
