package kubectl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend/epoch"
)

// takeoverPatience is how long the controller may take to act on a consent.
const takeoverPatience = time.Minute

type takeoverOptions struct {
	*Factory
	session

	server string
	accept bool
}

func newTakeover(f *Factory) *cobra.Command {
	o := &takeoverOptions{Factory: f}
	cmd := &cobra.Command{
		Use:   "takeover [SERVER]",
		Short: "Say that a storage server that refuses this cluster belongs to it",
		Long: `Say that a storage server that refuses this cluster belongs to it.

A storage server takes orders of one cluster. It refuses those of a second cluster that was made from a copy of the first, because the records of
the two contradict each other: one would end or delete what the other uses. It cannot tell such a copy from a cluster whose etcd was restored
from a backup, or that was made anew, and refuses these too. Pods go on meanwhile; no volume of the server is attached, detached, made or deleted.

After a restore, or in a new cluster that is to use the volumes of a lost one: make sure that the other cluster's controller does not run, then
say so here. If this cluster is the copy, do not: uninstall nearflash here, or give it a storage server of its own.

From then on the server refuses every other cluster. What this one does rests on its own records: a record that is older than the truth is brought up to
date where the storage server knows better.`,
		Example: `  kubectl nearflash takeover --accept-cutoff`,
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: run(o),
	}
	cmd.Flags().BoolVar(&o.accept, "accept-cutoff", false, "The consent: the storage server refuses every other cluster from now on.")
	return cmd
}

// Complete implements options.
func (o *takeoverOptions) Complete(args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("takeover takes one storage server, got %d: write `%s takeover [SERVER]`", len(args), name)
	}
	if len(args) == 1 {
		o.server = args[0]
	}
	var err error
	o.session, err = o.connect()
	return err
}

// Validate implements options.
func (o *takeoverOptions) Validate() error { return nil }

// refusal is a storage server that refuses this cluster.
type refusal struct {
	// object has the record of the server, and those of others.
	object *corev1.ConfigMap
	server string
	record epoch.Record
}

// refusals are the storage servers that refuse this cluster, by name.
func (s *session) refusals(ctx context.Context) ([]refusal, error) {
	objects, err := s.controllerMaps(ctx)
	if err != nil {
		return nil, err
	}
	return refusalsIn(objects)
}

func refusalsIn(objects []corev1.ConfigMap) ([]refusal, error) {
	var out []refusal
	for i := range objects {
		obj := &objects[i]
		if obj.Name != epoch.RecordName {
			continue
		}
		for server := range obj.Data {
			rec, err := epoch.Decode(obj, server)
			if err != nil {
				return nil, err
			}
			if rec.Refused != nil {
				out = append(out, refusal{obj, server, rec})
			}
		}
	}
	slices.SortFunc(out, func(a, b refusal) int {
		return strings.Compare(a.object.Namespace+"/"+a.server, b.object.Namespace+"/"+b.server)
	})
	return out, nil
}

// Run implements options.
func (o *takeoverOptions) Run(ctx context.Context) error {
	all, err := o.refusals(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, r := range all {
		names = append(names, r.server)
	}
	meant := slices.DeleteFunc(slices.Clone(all), func(r refusal) bool { return o.server != "" && r.server != o.server })
	switch {
	case len(all) == 0:
		_, err := fmt.Fprintln(o.Out, "no storage server is known to refuse this cluster: there is nothing to take over")
		return err
	case len(meant) == 0:
		return fmt.Errorf("storage server %s does not refuse this cluster: accepted is %s", o.server, strings.Join(names, ", "))
	case len(meant) > 1:
		return fmt.Errorf("%d storage servers refuse this cluster: name one of %s", len(meant), strings.Join(names, ", "))
	}
	r := meant[0]
	if _, err := fmt.Fprintf(o.Out, "storage server %s has refused this cluster for %s: another cluster uses it, or the records of this one come from a backup\n",
		r.server, ago(o.Clock.Now(), r.record.Refused.Since)); err != nil {
		return err
	}
	if !o.accept {
		return errors.New("the storage server would refuse every other cluster: make sure that none is to use it, then add --accept-cutoff")
	}
	if err := o.consent(ctx, r); err != nil {
		return err
	}
	return o.await(ctx, r)
}

// consent writes the word down, for the epoch that was met, on the version that was read.
func (o *takeoverOptions) consent(ctx context.Context, r refusal) error {
	r.record.Takeover = &epoch.Takeover{Epoch: r.record.Refused.Epoch, Time: metav1.NewTime(o.Clock.Now()), By: userName(ctx, o.client)}
	if err := epoch.Encode(r.object, r.server, r.record); err != nil {
		return err
	}
	if err := o.client.Update(ctx, r.object); err != nil {
		return fmt.Errorf("change ConfigMap %s/%s: %w", r.object.Namespace, r.object.Name, err)
	}
	return nil
}

// await waits until the controller has acted on the consent.
func (o *takeoverOptions) await(ctx context.Context, r refusal) error {
	for began := o.Clock.Now(); ; {
		obj := &corev1.ConfigMap{}
		if err := o.client.Get(ctx, client.ObjectKeyFromObject(r.object), obj); err != nil {
			return fmt.Errorf("read ConfigMap %s/%s: %w", r.object.Namespace, r.object.Name, err)
		}
		rec, err := epoch.Decode(obj, r.server)
		switch {
		case err != nil:
			return err
		case rec.Refused == nil:
			_, err := fmt.Fprintf(o.Out, "storage server %s takes the orders of this cluster, and of no other\n", r.server)
			return err
		case rec.Takeover == nil:
			return fmt.Errorf("another cluster has used storage server %s in this moment: stop its controller, then say it again", r.server)
		case o.Clock.Now().Sub(began) > takeoverPatience:
			return fmt.Errorf("the controller has not acted on it for %s: see `%s doctor`; it does so when it runs", takeoverPatience, name)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.Clock.After(pollInterval):
		}
	}
}
