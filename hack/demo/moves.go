package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// moves moves a volume with a warm cache to the other node, back by the method that it has not come
// by, and once more without the old node's cache. Once it is away, what is not needed any more is deleted.
func (d *demo) moves(ctx context.Context, t *table, v *volume, done ...*volume) error {
	d.say("moving %s to %s", v.claim, d.other)
	if err := d.stop(ctx, v); err != nil {
		return err
	}
	var first arrival
	var err error
	if first.first, err = d.firstSecond(ctx, v, d.other, d.secondOfMove); err != nil {
		return err
	}
	return together(
		func() error {
			if err := d.moveBack(ctx, t, v, first); err != nil {
				return err
			}
			return d.moveWithout(ctx, t, v)
		},
		func() error { return d.removeScratch(ctx) },
		func() error { return each(done, func(v *volume) error { return d.remove(ctx, v) }) })
}

// moveBack waits for the cache of a volume that has moved, and moves it back.
func (d *demo) moveBack(ctx context.Context, t *table, v *volume, first arrival) error {
	if err := d.rest(ctx, v, &first); err != nil {
		return err
	}
	t.moved.by = append(t.moved.by, first)
	if first.method != v1alpha1.MigrationClone {
		return nil // the kernel has no other
	}
	if err := d.ask(ctx, v, `{"method":"stream"}`); err != nil {
		return err
	}
	d.say("moving %s back by stream", v.claim)
	if err := d.stop(ctx, v); err != nil {
		return err
	}
	var second arrival
	var err error
	if second.first, err = d.firstSecond(ctx, v, d.node, d.secondOfMove); err != nil {
		return err
	}
	err = d.rest(ctx, v, &second)
	t.moved.by = append(t.moved.by, second)
	return err
}

// moveWithout moves a volume to the other node, where its cache is empty.
func (d *demo) moveWithout(ctx context.Context, t *table, v *volume) error {
	if err := d.ask(ctx, v, `{"from":"off"}`); err != nil {
		return err
	}
	to := d.other
	if v.node == d.other {
		to = d.node
	}
	d.say("moving %s to %s without its cache", v.claim, to)
	if err := d.stop(ctx, v); err != nil {
		return err
	}
	var err error
	t.moved.cold, err = d.firstSecond(ctx, v, to, d.second)
	return err
}

// rest waits until a volume's cache has come, and says by which method, and what it serves then.
func (d *demo) rest(ctx context.Context, v *volume, m *arrival) (err error) {
	if m.method, err = d.arrived(ctx, v); err != nil || m.method == "" {
		return err
	}
	m.then, err = d.second(ctx, v)
	return err
}

// firstSecond starts a volume on a node and returns the hit rate of its first second.
func (d *demo) firstSecond(ctx context.Context, v *volume, node string, second func(context.Context, *volume) (float64, error)) (float64, error) {
	if err := d.start(ctx, v, node); err != nil {
		return 0, err
	}
	rate, err := second(ctx, v)
	if err == nil {
		d.say("%s: hit rate of the first second on %s: %.1f %%", v.claim, node, 100*rate)
	}
	return rate, err
}

// second reads for a second and returns the hit rate.
func (d *demo) second(ctx context.Context, v *volume) (float64, error) {
	done, err := d.counted(ctx, v, func() error {
		_, err := d.Exec(ctx, d.name, v.pod, "", fioScript("randread", cluster.DevicePath, d.workingSet, job{deep, time.Second}))
		return err
	})
	return done.ReadHitRate(), err
}

// secondOfMove is second while a cache comes: the levels of a stream begin to serve, and tables with their
// counters change. A stream promotes nothing meanwhile, and a clone what the old cache lacked, so that the
// origin's reads are what this one lacks.
func (d *demo) secondOfMove(ctx context.Context, v *volume) (float64, error) {
	before, err := hoststate.CountReads(ctx, d.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	if _, err := d.Exec(ctx, d.name, v.pod, "", fioScript("randread", cluster.DevicePath, d.workingSet, job{deep, time.Second})); err != nil {
		return 0, err
	}
	after, err := hoststate.CountReads(ctx, d.Host, v.node, v.Handle)
	return after.Sub(before).HitRate(), err
}

// arrived waits until a volume's cache has come to the node where it is now, and says by which
// method; "" if it does not come.
func (d *demo) arrived(ctx context.Context, v *volume) (method v1alpha1.MigrationMethod, err error) {
	err = cluster.Await(ctx, waitLimit, func(ctx context.Context) (string, error) {
		var moves v1alpha1.CacheMigrationList
		if err := d.API.List(ctx, &moves); err != nil {
			return "", fmt.Errorf("moves: %w", err)
		}
		var newest *v1alpha1.CacheMigration
		for i := range moves.Items {
			m := &moves.Items[i]
			if m.Spec.VolumeName == v.Handle && m.Spec.DestinationNode == v.node && (newest == nil || m.Spec.Generation > newest.Spec.Generation) {
				newest = m
			}
		}
		switch {
		case newest == nil || newest.Spec.SourceNode == "":
			return "", nil
		case newest.Status.Outcome == "":
			return "move " + newest.Name + " is under way", nil
		case newest.Status.Outcome == v1alpha1.MigrationCompleted:
			method = newest.Spec.Method
		}
		return "", nil
	})
	return method, err
}

// ask changes how the next cache of a volume begins.
func (d *demo) ask(ctx context.Context, v *volume, warmStart string) error {
	var record v1alpha1.CachedVolume
	if err := d.API.Get(ctx, client.ObjectKey{Name: v.Handle}, &record); err != nil {
		return fmt.Errorf("volume %s: %w", v.Handle, err)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"warmStart":`+warmStart+`}}`))
	if err := d.API.Patch(ctx, &record, patch); err != nil {
		return fmt.Errorf("volume %s: %w", v.Handle, err)
	}
	return nil
}
