package reconcile_test

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/reconcile"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// sweepers runs controllers, one after the other, whose nodes have to be gone for a moment only.
type sweepers struct {
	*cluster
	cfg *rest.Config
	// silent has the storage not say whom it admits.
	silent atomic.Bool
}

// start runs a controller over a client of the API server until it is stopped.
func (c *sweepers) start(t *testing.T, api client.Client) (stop func()) {
	t.Helper()
	logger, ctx := ktesting.NewTestContext(t)
	ctrl.SetLogger(klog.NewKlogr())
	mgr, err := ctrl.NewManager(c.cfg, manager.Options{Scheme: c.client.Scheme(), Logger: logger, Metrics: server.Options{BindAddress: "0"}})
	c.must(t, err)
	svc := provision.New(provision.Config{Client: api, Servers: map[string]provision.Server{"": {Backend: c.storage}}, Events: events.NewFakeRecorder(1000)})
	c.must(t, reconcile.Setup(ctx, mgr, reconcile.Config{
		Client: api, Volumes: svc, Locks: c.locks, Driver: driverName, PoolPause: 20 * time.Millisecond, PoolGrace: 100 * time.Millisecond,
	}))
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the informers did not start")
	}
	return func() {
		cancel()
		c.must(t, <-done)
	}
}

// makePool makes the pool of a node that is gone.
func (c *sweepers) makePool(t *testing.T, node string, change func(*v1alpha1.CachePool)) {
	t.Helper()
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{v1alpha1.LabelPoolSource: v1alpha1.PoolSourceFlags}}}
	pool.Status.InitiatorIQN = "iqn.1993-08.org.debian:01:" + node
	if change != nil {
		change(pool)
	}
	status := pool.Status
	c.must(t, c.client.Create(t.Context(), pool))
	c.setPool(t, node, func(p *v1alpha1.CachePool) { p.Status = status })
}

// setPool changes the status of a pool, which the controller may be writing to too.
func (c *cluster) setPool(t *testing.T, node string, change func(*v1alpha1.CachePool)) {
	t.Helper()
	c.must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pool := &v1alpha1.CachePool{}
		if err := c.client.Get(t.Context(), client.ObjectKey{Name: node}, pool); err != nil {
			return err
		}
		change(pool)
		return c.client.Status().Update(t.Context(), pool)
	}))
}

// pool returns a pool, nil if there is none.
func (c *sweepers) pool(t *testing.T, node string) *v1alpha1.CachePool {
	t.Helper()
	pool := &v1alpha1.CachePool{}
	err := c.client.Get(t.Context(), client.ObjectKey{Name: node}, pool)
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.must(t, err)
	return pool
}

// goes waits until a pool is deleted.
func (c *sweepers) goes(t *testing.T, node string) {
	t.Helper()
	eventually(t, "the pool of "+node+" goes", func() bool { return c.pool(t, node) == nil })
}

// stays waits until a pool says why it is kept, and then a while.
func (c *sweepers) stays(t *testing.T, node, reason string) {
	t.Helper()
	eventually(t, "the pool of "+node+" says "+reason, func() bool {
		pool := c.pool(t, node)
		if pool == nil {
			t.Fatalf("the pool of %s was deleted", node)
		}
		said := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionNodeGone)
		return said != nil && said.Status == metav1.ConditionTrue && said.Reason == reason
	})
	never(t, "the pool of "+node+" was deleted", func() bool { return c.pool(t, node) == nil })
}

// have makes a node have a volume, and lose it clean.
func (c *sweepers) have(t *testing.T, id volume.ID, node string, spec volume.Spec) volume.Fence {
	t.Helper()
	_, err := c.svc.Create(t.Context(), id, spec)
	c.must(t, err)
	var p volume.Publication
	c.locked(t, id, func() (err error) {
		p, err = c.svc.Publish(t.Context(), id, node, nil, chap)
		return err
	})
	c.locked(t, id, func() error { return c.svc.Unpublish(t.Context(), id, node) })
	return p.Fence
}

// TestPools: what is left of nodes that an autoscaler deleted goes, and what names unflushed
// writes stays (states.md, When a pool may go).
func TestPools(t *testing.T) {
	cfg := apiserver.Start(t)
	c := &sweepers{cluster: startCluster(t, cfg), cfg: cfg}
	c.storage.Step = func(op string, _ bool) error {
		if op == "admitted" && c.silent.Load() {
			return volume.ErrUnavailable
		}
		return nil
	}
	for name, test := range map[string]func(*testing.T, *sweepers){
		"nothing needs it": testPoolFree, "records": testPoolRecords, "kept": testPoolKept, "storage": testPoolStorage,
		"by hand": testPoolByHand, "node comes back": testPoolBack, "stale informer": testPoolStale,
		"changed while it was judged": testPoolRaced, "published to": testPoolPublished, "killed": testPoolKilled,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// writethrough is a volume that never is dirty, writeback one that may be.
var (
	writethrough = volume.Spec{CapacityBytes: gib, Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}}
	writeback    = volume.Spec{CapacityBytes: gib, Mode: volume.ModeWriteback, Cache: volume.Size{Percent: 10}, AcceptNodeLoss: true}
)

// testPoolFree: neither clean caches nor a former owner, nor words for the node, keep its pool.
func testPoolFree(t *testing.T, c *sweepers) {
	c.makePool(t, "free", func(p *v1alpha1.CachePool) {
		p.Status.Deleted = []v1alpha1.DeletedVolume{{VolumeName: "deleted", VolumeUID: "u", Generation: ptr.To[int64](1)}}
	})
	c.makePool(t, "warm", nil)
	c.have(t, "was-warm", "warm", writethrough)
	c.must(t, c.records.SetRetainedCache(t.Context(), "was-warm", "warm", &volume.RetainedCache{Generation: 1, SizeBytes: gib}))
	defer c.start(t, c.client)()
	c.goes(t, "free")
	c.goes(t, "warm")
	if c.pool(t, nodeA) == nil {
		t.Error("the pool of a node that is there was deleted")
	}
}

// testPoolRecords: unflushed writes keep the pool; then that they could be out of a backup; until
// another node has had the volume.
func testPoolRecords(t *testing.T, c *sweepers) {
	c.makePool(t, "dirty", nil)
	_, err := c.svc.Create(t.Context(), "dirty", writeback)
	c.must(t, err)
	var p volume.Publication
	c.locked(t, "dirty", func() (err error) {
		p, err = c.svc.Publish(t.Context(), "dirty", "dirty", nil, chap)
		return err
	})
	defer c.start(t, c.client)()
	c.stays(t, "dirty", v1alpha1.ReasonOwnsVolumes)
	c.must(t, c.records.MarkPossiblyDirty(t.Context(), "dirty", p.Fence))
	c.locked(t, "dirty", func() error { return c.svc.Unpublish(t.Context(), "dirty", "dirty") })
	c.stays(t, "dirty", v1alpha1.ReasonUnflushedWrites)
	c.must(t, c.records.MarkClean(t.Context(), "dirty", p.Fence))
	c.stays(t, "dirty", v1alpha1.ReasonOwnsVolumes)
	c.publish(t, "dirty", nil)
	c.goes(t, "dirty")
}

func testPoolKept(t *testing.T, c *sweepers) {
	kept := v1alpha1.KeptCache{VolumeName: "kept", VolumeUID: "u", Generation: ptr.To[int64](2)}
	c.makePool(t, "keeps", func(p *v1alpha1.CachePool) { p.Status.Kept = []v1alpha1.KeptCache{kept} })
	defer c.start(t, c.client)()
	c.stays(t, "keeps", v1alpha1.ReasonWritesKept)
	c.setPool(t, "keeps", func(p *v1alpha1.CachePool) {
		p.Status.Deleted = []v1alpha1.DeletedVolume{{VolumeName: kept.VolumeName, VolumeUID: kept.VolumeUID, Generation: kept.Generation}}
	})
	c.goes(t, "keeps")
}

// testPoolStorage: a storage that admits the node, to a volume that has no record too, and one
// that does not answer.
func testPoolStorage(t *testing.T, c *sweepers) {
	c.silent.Store(true)
	c.makePool(t, "admitted", nil)
	c.must(t, c.storage.Create(t.Context(), "forgotten", backend.Request{SizeBytes: gib}))
	_, err := c.storage.Export(t.Context(), "forgotten", backendtest.Grant("iqn.1993-08.org.debian:01:admitted", 1))
	c.must(t, err)
	defer c.start(t, c.client)()
	c.stays(t, "admitted", v1alpha1.ReasonStorageUnknown)
	c.silent.Store(false)
	c.stays(t, "admitted", v1alpha1.ReasonStorageAdmits)
	c.storage.Evict("forgotten")
	c.goes(t, "admitted")
}

func testPoolByHand(t *testing.T, c *sweepers) {
	c.makePool(t, "by-hand", func(p *v1alpha1.CachePool) { p.Labels = nil })
	defer c.start(t, c.client)()
	c.stays(t, "by-hand", v1alpha1.ReasonMadeByAdministrator)
}

// testPoolBack: a node that comes back has its pool, which does not say any more that it is gone.
func testPoolBack(t *testing.T, c *sweepers) {
	c.makePool(t, "back", func(p *v1alpha1.CachePool) {
		p.Status.Kept = []v1alpha1.KeptCache{{VolumeName: "kept", VolumeUID: "u", Generation: ptr.To[int64](2)}}
	})
	defer c.start(t, c.client)()
	c.stays(t, "back", v1alpha1.ReasonWritesKept)
	c.must(t, c.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "back"}}))
	c.setPool(t, "back", func(p *v1alpha1.CachePool) { p.Status.Kept = nil })
	eventually(t, "the word is taken back", func() bool {
		return meta.FindStatusCondition(c.pool(t, "back").Status.Conditions, v1alpha1.ConditionNodeGone) == nil
	})
	never(t, "the pool was deleted", func() bool { return c.pool(t, "back") == nil })
	c.must(t, c.client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "back"}}))
	c.goes(t, "back")
}

// testPoolStale: the informer does not show a node that the API server has.
func testPoolStale(t *testing.T, c *sweepers) {
	c.makePool(t, "hidden", nil)
	var hidden atomic.Bool
	hidden.Store(true)
	api := interceptor.NewClient(c.client, interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		if _, node := obj.(*metav1.PartialObjectMetadata); node && key.Name == "hidden" && hidden.Load() {
			return nil
		}
		return w.Get(ctx, key, obj, opts...)
	}})
	defer c.start(t, api)()
	never(t, "the pool was deleted, or says that its node is gone", func() bool {
		pool := c.pool(t, "hidden")
		return pool == nil || len(pool.Status.Conditions) > 0
	})
	hidden.Store(false)
	c.goes(t, "hidden")
}

// testPoolRaced: what changed since it was read is not deleted.
func testPoolRaced(t *testing.T, c *sweepers) {
	c.makePool(t, "raced", nil)
	refused := make(chan error, 1)
	api := interceptor.NewClient(c.client, interceptor.Funcs{Delete: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
		if obj.GetName() != "raced" || len(refused) > 0 {
			return w.Delete(ctx, obj, opts...)
		}
		if err := w.Status().Patch(ctx, &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "raced"}}, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"volumeGroup":"x"}}`))); err != nil {
			return err
		}
		err := w.Delete(ctx, obj, opts...)
		refused <- err
		return err
	}})
	defer c.start(t, api)()
	c.goes(t, "raced")
	if err := <-refused; !apierrors.IsConflict(err) {
		t.Errorf("the deletion of another version was not refused: %v", err)
	}
}

// testPoolPublished: whoever makes a node the owner takes the word away first, so that the
// version that was judged is gone.
func testPoolPublished(t *testing.T, c *sweepers) {
	c.makePool(t, "said", func(p *v1alpha1.CachePool) {
		p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionNodeGone, Status: "True", Reason: v1alpha1.ReasonNodeMayReturn, LastTransitionTime: metav1.Now()}}
	})
	judged := c.pool(t, "said")
	c.have(t, "said", "said", writethrough)
	if got := c.pool(t, "said"); len(got.Status.Conditions) > 0 {
		t.Errorf("the pool of an owner says %+v", got.Status.Conditions)
	}
	err := c.client.Delete(t.Context(), judged, client.Preconditions{UID: &judged.UID, ResourceVersion: &judged.ResourceVersion})
	if !apierrors.IsConflict(err) {
		t.Errorf("the version that was judged is there still: %v", err)
	}
}

// errKilled is what a process hears that is ended in the middle of a call.
var errKilled = errors.New("killed")

// killing is a client whose process ends behind its n-th call, with it for odd at, else before
// it: none has an effect any more. calls counts them all.
func (c *sweepers) killing(at int64) (api client.Client, calls *atomic.Int64) {
	calls = &atomic.Int64{}
	last := at/2 + 1
	during := func(call func() error) error {
		switch n := calls.Add(1); {
		case n < last:
			return call()
		case n == last && at%2 == 1:
			return cmp.Or(errKilled, call())
		}
		return errKilled
	}
	return interceptor.NewClient(c.client, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return during(func() error { return w.Get(ctx, key, obj, opts...) })
		},
		List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return during(func() error { return w.List(ctx, list, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, w client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return during(func() error { return w.SubResource(sub).Patch(ctx, obj, patch, opts...) })
		},
		Delete: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return during(func() error { return w.Delete(ctx, obj, opts...) })
		},
	}), calls
}

// testPoolKilled ends the controller before or behind each of its calls. The next one goes on;
// what has to stay stays.
func testPoolKilled(t *testing.T, c *sweepers) {
	c.makePool(t, "stays", func(p *v1alpha1.CachePool) {
		p.Status.Kept = []v1alpha1.KeptCache{{VolumeName: "kept", VolumeUID: "u", Generation: ptr.To[int64](2)}}
	})
	for at := int64(1); ; at++ {
		c.makePool(t, "killed", nil)
		api, calls := c.killing(at)
		stop := c.start(t, api)
		eventually(t, "the controller is killed, or done", func() bool { return calls.Load() > at/2 || c.pool(t, "killed") == nil })
		whole := calls.Load() <= at/2
		stop()
		stop = c.start(t, c.client)
		c.goes(t, "killed")
		stop()
		if c.pool(t, "stays") == nil {
			t.Fatalf("killed at call %d: the pool that keeps writes was deleted", at)
		}
		if whole {
			return
		}
	}
}
