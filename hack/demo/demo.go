package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

const (
	// waitLimit bounds every single wait for the cluster.
	waitLimit = 2 * time.Minute
	// cleanLimit bounds the deletion of everything.
	cleanLimit = 6 * time.Minute
	// warmLimit bounds the time that a cache is given to fill.
	warmLimit = 3 * time.Minute
	// warmRound is how long the cache is filled between two looks at it.
	warmRound = 2 * time.Second
	// wholeVolume is the size of each cache.
	wholeVolume = "100%"
	// deep is the queue depth at which throughput is measured.
	deep = 16
	// warmEnough is the hit rate at which the cache counts as warm.
	warmEnough = 0.995
)

// demo is one run.
type demo struct {
	*cluster.Cluster
	options
	name string
	// node is where everything is measured; other is where a volume moves to.
	node, other string
	volumes     []*volume
	// scratch is the logical volume for the bare SSD; empty while there is none.
	scratch string
	began   time.Time
}

// volume is a claim of the demo and the pod that has it now.
type volume struct {
	cluster.Volume
	claim, pod, node string
	pods             int
	mode             v1alpha1.CacheMode
	// cold tells that the volume gets its cache when it has been filled, which then is cold.
	cold bool
}

func newDemo(ctx context.Context, c *cluster.Cluster, o options) (*demo, error) {
	if len(c.Workers) < 2 {
		return nil, fmt.Errorf("the demo needs two nodes with a cache pool, found %v", c.Workers)
	}
	d := &demo{Cluster: c, options: o, name: "nearflash-demo-" + utilrand.String(4), node: c.Workers[0], other: c.Workers[1], began: time.Now()}
	if err := c.API.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.name}}); err != nil {
		return nil, fmt.Errorf("namespace: %w", err)
	}
	d.say("measuring on %s, in namespace %s", d.node, d.name)
	return d, nil
}

// say prints one line of progress.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// measure runs all cases.
func (d *demo) measure(ctx context.Context) (table, error) {
	t := table{title: fmt.Sprintf("4 KiB random I/O, direct, working set %d MiB: IOPS at queue depth %d, latency at queue depth 1.", d.workingSet, deep)}
	remote, through, back, err := d.makeAll(ctx)
	if err != nil {
		return t, err
	}
	steps := []func(context.Context, *table) error{
		func(ctx context.Context, t *table) error { return d.remoteOnly(ctx, t, remote) },
		func(ctx context.Context, t *table) error { return d.writethrough(ctx, t, through) },
		func(ctx context.Context, t *table) error { return d.writeback(ctx, t, back) },
		d.advise,
		// From here on rates of hits are measured, not times.
		func(ctx context.Context, t *table) error { return d.moves(ctx, t, through, remote, back) },
	}
	for _, step := range steps {
		if err := step(ctx, &t); err != nil {
			return t, err
		}
	}
	return t, nil
}

// makeAll makes a volume for each mode, each with its working set written and on the measured
// node, and a bare one beside them. There the cache is cold of the one whose case that is, and
// that of the other is warm.
func (d *demo) makeAll(ctx context.Context) (remote, through, back *volume, err error) {
	remote, through, back = d.volume(v1alpha1.CacheModeNone), d.volume(v1alpha1.CacheModeWritethrough), d.volume(v1alpha1.CacheModeWriteback)
	through.cold = true
	if err := each(d.volumes, func(v *volume) error { return d.make(ctx, v) }); err != nil {
		return nil, nil, nil, err
	}
	d.say("writing the working sets")
	err = together(
		func() error { return d.makeScratch(ctx) },
		func() error { return d.fill(ctx, remote, d.node) },
		func() error {
			if err := d.fill(ctx, back, d.node); err != nil {
				return err
			}
			return d.warmUp(ctx, back)
		},
		func() error {
			if err := d.fill(ctx, through, d.node); err != nil {
				return err
			}
			return d.addCache(ctx, through)
		})
	return remote, through, back, err
}

// remoteOnly measures a volume without a cache.
func (d *demo) remoteOnly(ctx context.Context, t *table, v *volume) error {
	var err error
	if t.remote, err = d.run(ctx, v, "remote only, read", "randread"); err != nil {
		return err
	}
	write, err := d.run(ctx, v, "remote only, write", "randwrite")
	t.rows = append(t.rows, t.remote, write)
	return err
}

// writethrough measures a cold and a warm cache, the bare SSD just before
// the warm one, and writes.
func (d *demo) writethrough(ctx context.Context, t *table, v *volume) error {
	cold, err := d.run(ctx, v, "cold cache, read", "randread")
	if err != nil {
		return err
	}
	if err := d.warmUp(ctx, v); err != nil {
		return err
	}
	if t.raw, err = d.rawSSD(ctx); err != nil {
		return err
	}
	if t.warm, err = d.run(ctx, v, "warm cache, read", "randread"); err != nil {
		return err
	}
	write, err := d.run(ctx, v, "writethrough, write", "randwrite")
	t.rows = append(t.rows, cold, t.warm, t.raw, write)
	return err
}

// writeback measures writes that the SSD acknowledges, with a warm cache.
func (d *demo) writeback(ctx context.Context, t *table, v *volume) error {
	write, err := d.run(ctx, v, "writeback, write", "randwrite")
	t.rows = append(t.rows, write)
	return err
}

// volume is one that is to be made.
func (d *demo) volume(mode v1alpha1.CacheMode) *volume {
	v := &volume{claim: string(mode), mode: mode}
	d.volumes = append(d.volumes, v)
	return v
}

// class is the name of a volume's own.
func (d *demo) class(v *volume) string { return d.name + "-" + v.claim }

// make makes a volume.
func (d *demo) make(ctx context.Context, v *volume) error {
	size := fmt.Sprintf("%dMi", max(2*d.workingSet, 64))
	class := cluster.ClassSpec{Name: d.class(v), Mode: v.mode, CacheSize: wholeVolume}
	if v.cold || v.mode == v1alpha1.CacheModeNone {
		class.Mode, class.CacheSize = v1alpha1.CacheModeNone, ""
	}
	if err := d.API.Create(ctx, d.Class(class)); err != nil {
		return fmt.Errorf("class %s: %w", class.Name, err)
	}
	claim := cluster.Claim(cluster.ClaimSpec{Namespace: d.name, Name: v.claim, Class: class.Name, Size: size, Block: true})
	if err := d.API.Create(ctx, claim); err != nil {
		return fmt.Errorf("claim %s: %w", v.claim, err)
	}
	var err error
	if v.Volume, err = d.AwaitBound(ctx, d.name, v.claim, waitLimit); err != nil {
		return err
	}
	d.say("%s: volume %s of %s", v.claim, v.Handle, size)
	return nil
}

// addCache has a volume without a cache get one below its running pod.
func (d *demo) addCache(ctx context.Context, v *volume) error {
	err := d.Change(ctx, v.Volume, waitLimit, func(spec *v1alpha1.CachedVolumeSpec) { spec.CacheMode, spec.CacheSize = v.mode, wholeVolume })
	if err == nil {
		d.say("%s: has got an empty cache below its pod", v.claim)
	}
	return err
}

// fill starts a volume on a node and writes its working set. Blocks that were never written
// would not come from the storage server's disks at all.
func (d *demo) fill(ctx context.Context, v *volume, node string) error {
	if err := d.start(ctx, v, node); err != nil {
		return err
	}
	if _, err := d.Exec(ctx, d.name, v.pod, "", fioScript("write", cluster.DevicePath, d.workingSet)); err != nil {
		return fmt.Errorf("fill volume %s: %w", v.claim, err)
	}
	return nil
}

// together does several things at the same time.
func together(do ...func() error) error {
	return each(do, func(one func() error) error { return one() })
}

// each does the same to several things at the same time.
func each[T any](list []T, do func(T) error) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i := range list {
		wg.Go(func() { errs[i] = do(list[i]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (d *demo) start(ctx context.Context, v *volume, node string) error {
	v.pods++
	v.pod, v.node = fmt.Sprintf("%s-%d", v.claim, v.pods), node
	pod := d.Pod(cluster.PodSpec{Namespace: d.name, Name: v.pod, Node: node, Claim: v.claim, Block: true})
	if err := d.API.Create(ctx, pod); err != nil {
		return fmt.Errorf("pod %s: %w", v.pod, err)
	}
	return d.AwaitPodReady(ctx, d.name, v.pod, waitLimit)
}

func (d *demo) stop(ctx context.Context, v *volume) error {
	if err := d.DeleteAndWait(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: d.name, Name: v.pod}}, waitLimit); err != nil {
		return err
	}
	return d.AwaitDetached(ctx, v.Volume, waitLimit)
}

// run measures one case on a running volume.
func (d *demo) run(ctx context.Context, v *volume, name, kind string) (row, error) {
	r := row{name: name, hits: math.NaN()}
	measure := func() error { return d.jobs(ctx, v.pod, kind, cluster.DevicePath, &r) }
	if v.mode == v1alpha1.CacheModeNone {
		if err := measure(); err != nil {
			return r, err
		}
	} else {
		done, err := d.counted(ctx, v, measure)
		if err != nil {
			return r, err
		}
		r.hits = hitRate(kind, done)
	}
	d.say("%s: %.0f IOPS, p50 %s", name, r.deep.IOPS, micros(r.single.P50))
	return r, nil
}

// counted does something and returns what the cache of a volume has counted meanwhile.
func (d *demo) counted(ctx context.Context, v *volume, do func() error) (hoststate.Counters, error) {
	before, err := hoststate.ReadCounters(ctx, d.Host, v.node, v.Handle)
	if err != nil {
		return before, err
	}
	if err := do(); err != nil {
		return before, err
	}
	after, err := hoststate.ReadCounters(ctx, d.Host, v.node, v.Handle)
	return after.Sub(before), err
}

// jobs measures latency, and then throughput: with many I/Os under way their latency is that of
// the queue, and they fill a cold cache sooner.
func (d *demo) jobs(ctx context.Context, pod, kind, device string, r *row) error {
	jobs := []job{{1, max(d.runtime/2, time.Second)}, {deep, d.runtime}}
	out, err := d.Exec(ctx, d.name, pod, "", fioScript(kind, device, d.workingSet, jobs...))
	if err != nil {
		return err
	}
	results, err := parseFio([]byte(out), len(jobs))
	if err != nil {
		return err
	}
	r.single, r.deep = results[0], results[1]
	return nil
}

func hitRate(kind string, c hoststate.Counters) float64 {
	if kind == "randwrite" {
		return float64(c.WriteHits) / float64(c.WriteHits+c.WriteMisses)
	}
	return c.ReadHitRate()
}

// warmUp reads the working set until the kernel has promoted it.
func (d *demo) warmUp(ctx context.Context, v *volume) error {
	d.say("%s: warming up", v.claim)
	return cluster.AwaitEvery(ctx, time.Millisecond, warmLimit, func(ctx context.Context) (string, error) {
		done, err := d.counted(ctx, v, func() error {
			_, err := d.Exec(ctx, d.name, v.pod, "", fioScript("randread", cluster.DevicePath, d.workingSet, job{deep, warmRound}))
			return err
		})
		if err != nil {
			return "", err
		}
		if rate := done.ReadHitRate(); rate < warmEnough {
			return fmt.Sprintf("the cache of volume %s has a hit rate of %.3f", v.Handle, rate), nil
		}
		return "", nil
	})
}

// clean deletes everything and verifies that nothing is left.
func (d *demo) clean(ctx context.Context) error {
	d.say("deleting everything")
	err := together(
		func() error { return d.removeScratch(ctx) },
		func() error { return each(d.volumes, func(v *volume) error { return d.remove(ctx, v) }) })
	errs := []error{err}
	for _, v := range d.volumes {
		errs = append(errs, d.DeleteAndWait(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: d.class(v)}}, waitLimit))
	}
	errs = append(errs, d.API.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.name}}), d.awaitGone(ctx))
	return errors.Join(errs...)
}

// remove deletes a volume as far as it was made. Who deletes one that is attached tries again later
// and later.
func (d *demo) remove(ctx context.Context, v *volume) error {
	if v.pod != "" {
		if err := d.DeleteAndWait(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: d.name, Name: v.pod}}, waitLimit); err != nil {
			return err
		}
	}
	if v.Handle != "" {
		if err := d.AwaitDetached(ctx, v.Volume, waitLimit); err != nil {
			return err
		}
	}
	return d.DeleteAndWait(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: d.name, Name: v.claim}}, waitLimit)
}

// awaitGone waits until neither the cluster nor a machine knows the volumes.
func (d *demo) awaitGone(ctx context.Context) error {
	made := slices.DeleteFunc(slices.Clone(d.volumes), func(v *volume) bool { return v.Handle == "" })
	var words []string
	for _, v := range made {
		words = append(words, hoststate.Words(v.Handle, v.PV)...)
	}
	var servers []string
	if d.Lab != nil {
		servers = []string{cluster.StorageMachine}
	}
	err := cluster.AwaitEvery(ctx, time.Second, waitLimit, func(ctx context.Context) (string, error) {
		for _, v := range made {
			if pending, err := d.objects(ctx, v); pending != "" || err != nil {
				return pending, err
			}
		}
		items, err := hoststate.All(ctx, d.Host, d.Workers, servers)
		if err != nil {
			return "", err
		}
		if left := hoststate.Mentioning(items, words...); len(words) > 0 && len(left) > 0 {
			return fmt.Sprintf("left on the machines: %v", left), nil
		}
		return "", nil
	})
	if err != nil {
		return fmt.Errorf("verify the deletion: %w", err)
	}
	d.say("deleted: nothing is left of %d volumes in the cluster, on %v or on the storage server", len(made), d.Workers)
	return nil
}

// objects names an object that the cluster still has of a volume.
func (d *demo) objects(ctx context.Context, v *volume) (string, error) {
	err := d.API.Get(ctx, client.ObjectKey{Name: v.PV}, &corev1.PersistentVolume{})
	if err == nil {
		return "PersistentVolume " + v.PV + " still exists", nil
	}
	if client.IgnoreNotFound(err) != nil {
		return "", err
	}
	_, err = d.CachedVolume(ctx, v.Volume)
	if err == nil {
		return "CachedVolume " + v.Handle + " still exists", nil
	}
	return "", client.IgnoreNotFound(err)
}
