package bench

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

const (
	// watchBefore is how long a volume is watched before a move, and watchAfter after it.
	watchBefore, watchAfter = 10 * time.Second, 40 * time.Second
	// moveSampleEvery is as often as a node measures.
	moveSampleEvery = time.Second
	// levelPoints is how near the hit rate before the move has to be for being at its level again.
	levelPoints = 5.0
)

// moves moves a warm volume to the other node with its cache, warms it there, and moves it back
// without.
func (r *Runner) moves(ctx context.Context, v *volume, p Profile) error {
	if v.handle == "" || r.blind {
		r.note("%s: not moved: the node does not say what it counts, so that there is nothing to see.", v.Name)
		return nil
	}
	if err := r.move(ctx, v, p, r.plan.Other, true); err != nil {
		return fmt.Errorf("move with the cache: %w", err)
	}
	if _, _, err := r.warmUp(ctx, v, p.Name, r.window(v, p)); err != nil {
		return err
	}
	if err := r.forget(ctx, v); err != nil {
		return err
	}
	if err := r.move(ctx, v, p, r.plan.Node, false); err != nil {
		return fmt.Errorf("move without the cache: %w", err)
	}
	return nil
}

// forget has the next cache of a volume begin empty.
func (r *Runner) forget(ctx context.Context, v *volume) error {
	record := &v1alpha1.CachedVolume{}
	record.Name = v.handle
	patch := `{"spec":{"warmStart":{"from":"off","method":null,"bandwidthBytesPerSecond":null,"deadlineSeconds":null,"preload":null}}}`
	if err := r.Client.Patch(ctx, record, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("have CachedVolume %s begin with an empty cache: %w", v.handle, err)
	}
	return nil
}

// move moves a volume while it is read, and watches it before and after.
func (r *Runner) move(ctx context.Context, v *volume, p Profile, to string, warm bool) error {
	m := Move{Volume: v.Name, Profile: p.Name, Warm: warm, From: v.node, To: to, WatchSeconds: watchAfter.Seconds()}
	began := r.Now()
	r.Say("%s, %s: moving from %s to %s", v.Name, p.Name, m.From, to)
	if err := r.watched(ctx, v, p, watchBefore, began, &m.Series); err != nil {
		return err
	}
	m.BeforeHitPercent = lastHits(m.Series)
	before := len(m.Series)
	ended := r.Now()
	if err := r.stop(ctx, v); err != nil {
		return err
	}
	if err := r.start(ctx, v, to); err != nil {
		return err
	}
	back := r.Now()
	if err := r.watched(ctx, v, p, watchAfter, began, &m.Series); err != nil {
		return err
	}
	m.AwayFrom, m.AwayTo, m.AwaySeconds = ended.Sub(began).Seconds(), back.Sub(began).Seconds(), back.Sub(ended).Seconds()
	m.judge(m.Series[before:])
	if warm {
		var err error
		if m.Method, err = r.method(ctx, v); err != nil {
			return err
		}
	}
	r.Say("%s", m.text())
	r.report.Moves = append(r.report.Moves, m)
	return nil
}

// watched runs a profile and looks at the node as often as it measures.
func (r *Runner) watched(ctx context.Context, v *volume, p Profile, long time.Duration, began time.Time, series *[]Point) error {
	last, known := r.sample(ctx, v)
	done := make(chan error, 1)
	go func() {
		_, err := r.fio(ctx, v, p, Task{Time: long, Depth: r.plan.Depth})
		done <- err
	}()
	w := &watch{began: began, series: series}
	for {
		select {
		case err := <-done:
			return err
		case <-r.After(moveSampleEvery):
		}
		now, ok := r.sample(ctx, v)
		if known && ok {
			w.add(last, now)
		}
		if ok {
			last, known = now, true
		}
	}
}

// lastHits is the hit rate of the last point that has one.
func lastHits(series []Point) *float64 {
	for i := len(series) - 1; i >= 0; i-- {
		if p := series[i].HitPercent; p != nil {
			return p
		}
	}
	return nil
}

// judge says how the hit rate came back; after are the points of the new pod.
func (m *Move) judge(after []Point) {
	for _, p := range after {
		if p.HitPercent == nil {
			continue
		}
		if m.FirstHitPercent == nil {
			m.FirstHitPercent = p.HitPercent
		}
		if m.BeforeHitPercent != nil && *p.HitPercent >= *m.BeforeHitPercent-levelPoints {
			s := max(0, p.Seconds-m.AwayTo)
			m.LevelSeconds = &s
			return
		}
	}
}

// method says how the cache of the old node was read; "" if it was not, or may not be seen.
func (r *Runner) method(ctx context.Context, v *volume) (string, error) {
	var moves v1alpha1.CacheMigrationList
	if err := r.Client.List(ctx, &moves); err != nil {
		return "", fmt.Errorf("list CacheMigrations: %w", err)
	}
	var newest *v1alpha1.CacheMigration
	for i := range moves.Items {
		m := &moves.Items[i]
		if m.Spec.VolumeName == v.handle && m.Spec.DestinationNode == v.node && (newest == nil || m.Spec.Generation > newest.Spec.Generation) {
			newest = m
		}
	}
	if newest == nil {
		return "", nil
	}
	return string(newest.Spec.Method), nil
}
