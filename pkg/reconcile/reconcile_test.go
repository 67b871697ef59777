package reconcile_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/backend/csi"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/reconcile"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	gib        = 1 << 30
	nodeA      = "node-a"
	iqnA       = "iqn.1993-08.org.debian:01:a"
	driverName = "csi.nearflash.io"
)

var chap = &volume.Credentials{Username: "user", Password: "password-of-user"}

// cluster is a real API server with the reconciler running on it.
type cluster struct {
	client  client.WithWatch
	storage *backendtest.Server
	origins *csitest.Cluster
	svc     *provision.Service
	locks   *keylock.Set
	records *records.Records
}

func startCluster(t *testing.T, cfg *rest.Config) *cluster {
	t.Helper()
	c := &cluster{client: apiserver.Client(t, cfg), storage: backendtest.New(100 * gib), locks: &keylock.Set{}}
	recorder := events.NewFakeRecorder(1000)
	c.origins = csitest.Start(t, c.client, "reconcile", 100*gib)
	key, err := keyagreement.New()
	c.must(t, err)
	c.svc = provision.New(provision.Config{
		Client: c.client, Servers: map[string]provision.Server{"": {Backend: c.storage}}, Events: recorder, LoginKey: func(context.Context) (*keyagreement.Key, error) { return key, nil },
		Origins: csi.New(csi.Config{Client: c.client, Namespace: c.origins.Namespace, Driver: driverName}),
	})
	c.records = records.New(c.client, recorder, time.Now)
	c.makeNode(t, nodeA)
	return c
}

// run runs the reconciler until the test ends.
func (c *cluster) run(t *testing.T, cfg *rest.Config) {
	t.Helper()
	logger, ctx := ktesting.NewTestContext(t)
	ctrl.SetLogger(klog.NewKlogr())
	mgr, err := ctrl.NewManager(cfg, manager.Options{
		Scheme: c.client.Scheme(), Logger: logger, Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = reconcile.Setup(ctx, mgr, reconcile.Config{Client: c.client, Volumes: c.svc, Locks: c.locks, Driver: driverName, SweepPause: 50 * time.Millisecond, AccountPause: 50 * time.Millisecond, ExpansionPause: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the informers did not start")
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("manager: %v", err)
		}
	})
}

func (c *cluster) makeNode(t *testing.T, name string) {
	t.Helper()
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.must(t, c.client.Create(t.Context(), pool))
	c.setPool(t, name, func(p *v1alpha1.CachePool) { p.Status.InitiatorIQN = iqnA })
	c.must(t, c.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
}

func (c *cluster) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) create(t *testing.T, id volume.ID) {
	t.Helper()
	_, err := c.svc.Create(t.Context(), id, volume.Spec{CapacityBytes: gib, Mode: volume.ModeWriteback, Cache: volume.Size{Percent: 10}, AcceptNodeLoss: true})
	c.must(t, err)
}

func (c *cluster) publish(t *testing.T, id volume.ID, static *volume.Spec) volume.Fence {
	t.Helper()
	var p volume.Publication
	c.locked(t, id, func() (err error) {
		p, err = c.svc.Publish(t.Context(), id, nodeA, static, chap)
		return err
	})
	return p.Fence
}

func (c *cluster) unpublish(t *testing.T, id volume.ID) {
	t.Helper()
	c.locked(t, id, func() error { return c.svc.Unpublish(t.Context(), id, nodeA) })
}

// locked does what a CSI call does, under the lock that a CSI call holds.
func (c *cluster) locked(t *testing.T, id volume.ID, do func() error) {
	t.Helper()
	eventually(t, "the reconciler lets go", func() bool {
		unlock, ok := c.locks.TryLock(string(id))
		if !ok {
			return false
		}
		defer unlock()
		c.must(t, do())
		return true
	})
}

func (c *cluster) load(t *testing.T, id volume.ID) *v1alpha1.CachedVolume {
	t.Helper()
	obj, err := records.Load(t.Context(), c.client, id)
	c.must(t, err)
	return obj
}

func (c *cluster) exists(t *testing.T, id volume.ID) bool {
	t.Helper()
	err := c.client.Get(t.Context(), client.ObjectKey{Name: string(id)}, &v1alpha1.CachedVolume{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 1200 { // a minute
		if done() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("waited in vain until %s", what)
}

// never watches that something stays as it is for a while.
func never(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for range 10 {
		if happened() {
			t.Fatal(what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func static() *volume.Spec {
	return &volume.Spec{
		Mode: volume.ModeWritethrough, Cache: volume.Size{Bytes: gib},
		Static: &volume.ISCSI{Portals: []string{"192.0.2.9:3260"}, IQN: "iqn.2003-01.org.example:disk1"},
	}
}

func persistentVolume(name, driver, handle string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: handle,
			}},
		},
	}
}

// TestReconcile runs the reconciler in a manager on a real API server. What is
// due when it starts is made before.
func TestReconcile(t *testing.T) {
	cfg := apiserver.Start(t)
	c := startCluster(t, cfg)
	c.create(t, "before")
	fence := c.publish(t, "before", nil)
	c.must(t, c.records.MarkPossiblyDirty(t.Context(), "before", fence))
	c.unpublish(t, "before")
	c.must(t, c.records.MarkClean(t.Context(), "before", fence))
	if got := c.storage.Exported("before"); len(got) != 1 {
		t.Fatalf("admitted before the reconciler runs: %q", got)
	}
	c.run(t, cfg)
	t.Run("flushed while nobody led", func(t *testing.T) {
		eventually(t, "the access ends", func() bool { return len(c.storage.Exported("before")) == 0 })
	})
	t.Run("flush", c.testFlush)
	t.Run("waits for the lock", c.testLock)
	t.Run("condition of a dead node", c.testCondition)
	t.Run("retained caches", c.testRetainedCaches)
	t.Run("peer that left", c.testPeerGone)
	t.Run("migration of a former owner", c.testSuperseded)
	t.Run("migration without its volume", c.testWithoutVolume)
	t.Run("migration of no owner", c.testUsurped)
	t.Run("migrations of readers", c.testReaders)
	t.Run("migration that ended", c.testExpiry)
	t.Run("request that was fulfilled", c.testFulfilled)
	t.Run("request that was taken back", c.testTakenBack)
	t.Run("names", c.testNames)
	t.Run("names of a static volume", c.testStaticNames)
	t.Run("static volume", c.testStatic)
	t.Run("interrupted retirement", c.testInterruptedRetirement)
	t.Run("interrupted deletion", c.testInterruptedDeletion)
	t.Run("volume without a PersistentVolume", c.testKept)
	t.Run("holds", c.testHolds)
	t.Run("cuts for nobody", c.testCuts)
	t.Run("origins", c.testOrigins)
	t.Run("origin that grows", c.testGrown)
	t.Run("another key of a node", c.testOtherKey)
}

// testFlush: the access of a node that was released dirty lasts until it reports
// the flush.
func (c *cluster) testFlush(t *testing.T) {
	const id = "flush"
	c.create(t, id)
	fence := c.publish(t, id, nil)
	c.must(t, c.records.MarkPossiblyDirty(t.Context(), id, fence))
	c.unpublish(t, id)
	never(t, "the access of a node that has to flush ended", func() bool { return len(c.storage.Exported(id)) == 0 })
	c.must(t, c.records.MarkClean(t.Context(), id, fence))
	eventually(t, "the access ends", func() bool { return len(c.storage.Exported(id)) == 0 })
	if v := c.load(t, id); v.Status.OwnerNode != nodeA || *v.Status.Generation != 1 {
		t.Errorf("the owner was forgotten: %+v", v.Status)
	}
}

// testLock: the reconciler does not touch a volume that a CSI call holds.
func (c *cluster) testLock(t *testing.T) {
	const id = "locked"
	unlock, ok := c.locks.TryLock(id)
	if !ok {
		t.Fatal("locked")
	}
	c.create(t, id)
	published, err := c.svc.Publish(t.Context(), id, nodeA, nil, chap)
	c.must(t, err)
	fence := published.Fence
	c.must(t, c.records.MarkPossiblyDirty(t.Context(), id, fence))
	c.must(t, c.svc.Unpublish(t.Context(), id, nodeA))
	c.must(t, c.records.MarkClean(t.Context(), id, fence))
	never(t, "a locked volume was settled", func() bool { return len(c.storage.Exported(id)) == 0 })
	unlock()
	eventually(t, "the access ends", func() bool { return len(c.storage.Exported(id)) == 0 })
}

// testCondition: the node died, so only the controller can say that nothing is
// served through its cache.
func (c *cluster) testCondition(t *testing.T) {
	const id = "condition"
	c.create(t, id)
	fence := c.publish(t, id, nil)
	c.must(t, c.records.MarkPossiblyDirty(t.Context(), id, fence))
	c.must(t, c.records.Report(t.Context(), id, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive, Message: "cached"}))
	never(t, "the condition of a published volume was changed", func() bool {
		return !meta.IsStatusConditionTrue(c.load(t, id).Status.Conditions, v1alpha1.ConditionCached)
	})
	c.must(t, c.records.ReportApplied(t.Context(), id, nodeA, volume.AppliedReport{State: volume.AppliedDone, Reason: v1alpha1.ReasonApplied, SpecGeneration: 1}))
	c.must(t, records.UpdateStatus(t.Context(), c.client, id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.Cache = v1alpha1.CacheStatus{
			Mode: v1alpha1.CacheModeWriteback, Health: v1alpha1.CacheHealthy,
			DirtyBytes: new(int64(4096)), DirtySinceTime: metav1.Unix(1, 0), ObservedTime: metav1.Unix(2, 0),
		}
		return nil
	}))
	never(t, "the state of a published volume was changed", func() bool {
		status := c.load(t, id).Status
		return status.Cache.Mode == "" || !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionApplied)
	})
	c.unpublish(t, id)
	const message = "not attached; node node-a may hold unflushed writes"
	eventually(t, "the conditions say that it is not attached", func() bool {
		status := c.load(t, id).Status
		cached := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionCached)
		applied := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionApplied)
		return cached != nil && cached.Status == metav1.ConditionFalse && cached.Reason == v1alpha1.ReasonDetached && cached.Message == message &&
			applied != nil && applied.Status == metav1.ConditionUnknown && applied.Reason == v1alpha1.ReasonNotAttached && applied.Message == message
	})
	version := c.load(t, id).ResourceVersion
	never(t, "a record that is right was written again", func() bool { return c.load(t, id).ResourceVersion != version })
	// Who gives the writes up is to know how many they were.
	if got := c.load(t, id).Status.Cache; got.DirtyBytes == nil || *got.DirtyBytes != 4096 || got.DirtySinceTime.IsZero() || got.ObservedTime.IsZero() {
		t.Errorf("what was last seen of unflushed writes is gone: %+v", got)
	}
	c.must(t, c.records.MarkClean(t.Context(), id, fence))
	eventually(t, "nothing is said of a cache that nobody has", func() bool {
		return reflect.DeepEqual(c.load(t, id).Status.Cache, v1alpha1.CacheStatus{})
	})
}

// testNames: a volume's record follows its PersistentVolume and its claim.
func (c *cluster) testNames(t *testing.T) {
	const id = "names"
	c.create(t, id)
	pv := persistentVolume("names-pv", driverName, id)
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "orders"}
	c.must(t, c.client.Create(t.Context(), pv))
	named := func(pv string, claim v1alpha1.ClaimReference) func() bool {
		return func() bool {
			obj := c.load(t, id)
			return obj.Status.PersistentVolumeName == pv && obj.Spec.ClaimRef != nil && *obj.Spec.ClaimRef == claim
		}
	}
	eventually(t, "the record has the names", named("names-pv", v1alpha1.ClaimReference{Namespace: "shop", Name: "orders"}))
	version := c.load(t, id).ResourceVersion
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`))
	c.must(t, c.client.Patch(t.Context(), pv, patch))
	never(t, "the record was written for a label", func() bool { return c.load(t, id).ResourceVersion != version })
	c.must(t, c.client.Delete(t.Context(), pv, client.GracePeriodSeconds(0)))
	c.must(t, c.removePVFinalizers(t, pv.Name))
	eventually(t, "the name goes and the last claim stays", named("", v1alpha1.ClaimReference{Namespace: "shop", Name: "orders"}))
}

// testStaticNames: the PersistentVolume is there before the record, and is claimed
// after it.
func (c *cluster) testStaticNames(t *testing.T) {
	const id = "static-names"
	pv := persistentVolume("static-names-pv", driverName, id)
	c.must(t, c.client.Create(t.Context(), pv))
	c.publish(t, id, static())
	eventually(t, "the record has the PersistentVolume's name", func() bool {
		obj := c.load(t, id)
		return obj.Status.PersistentVolumeName == pv.Name && obj.Spec.ClaimRef == nil
	})
	for _, name := range []string{"first", "second"} {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"claimRef":{"namespace":"shop","name":"`+name+`"}}}`))
		c.must(t, c.client.Patch(t.Context(), pv, patch))
		eventually(t, "the record has the claim's name", func() bool {
			ref := c.load(t, id).Spec.ClaimRef
			return ref != nil && *ref == v1alpha1.ClaimReference{Namespace: "shop", Name: name}
		})
	}
}

func (c *cluster) testRetainedCaches(t *testing.T) {
	const id = "retained"
	c.must(t, c.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-z"}}))
	c.create(t, id)
	c.publish(t, id, nil)
	c.unpublish(t, id)
	for _, node := range []string{nodeA, "node-z"} {
		c.must(t, c.records.SetRetainedCache(t.Context(), id, node, &volume.RetainedCache{Generation: 1, SizeBytes: gib}))
	}
	never(t, "the retained cache of a node that exists was dropped", func() bool { return len(c.load(t, id).Status.RetainedCaches) != 2 })
	c.must(t, c.client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-z"}}))
	eventually(t, "the retained cache of the deleted node goes", func() bool {
		list := c.load(t, id).Status.RetainedCaches
		return len(list) == 1 && list[0].NodeName == nodeA
	})
}

func (c *cluster) testStatic(t *testing.T) {
	const id = "static"
	pv := persistentVolume("static-pv", driverName, id)
	foreign := persistentVolume("foreign-pv", "other.example", id)
	c.must(t, c.client.Create(t.Context(), pv))
	c.must(t, c.client.Create(t.Context(), foreign))
	fence := c.publish(t, id, static())
	c.must(t, c.records.MarkPossiblyDirty(t.Context(), id, fence))
	c.unpublish(t, id)
	c.must(t, c.client.Delete(t.Context(), pv, client.GracePeriodSeconds(0)))
	c.must(t, c.removePVFinalizers(t, pv.Name))
	never(t, "a dirty record was forgotten", func() bool { return !c.exists(t, id) })
	again := persistentVolume("static-pv-2", driverName, id)
	c.must(t, c.client.Create(t.Context(), again))
	c.must(t, c.records.MarkClean(t.Context(), id, fence))
	never(t, "a record with a PersistentVolume was forgotten", func() bool { return !c.exists(t, id) })
	c.must(t, c.client.Delete(t.Context(), again, client.GracePeriodSeconds(0)))
	c.must(t, c.removePVFinalizers(t, again.Name))
	eventually(t, "the record goes", func() bool { return !c.exists(t, id) })
}

// testInterruptedRetirement: the record of a static volume is marked for deletion, its
// controller was killed then, and there is a PersistentVolume of it again.
func (c *cluster) testInterruptedRetirement(t *testing.T) {
	const id = "retiring"
	pv := persistentVolume("retiring-pv", driverName, id)
	c.must(t, c.client.Create(t.Context(), pv))
	fence := c.publish(t, id, static())
	c.must(t, c.client.Delete(t.Context(), &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: id}}))
	never(t, "a published record was forgotten", func() bool { return !c.exists(t, id) })
	c.unpublish(t, id)
	eventually(t, "the record goes", func() bool { return !c.exists(t, id) })
	if again := c.publish(t, id, static()); again.UID == fence.UID || again.Generation != 1 {
		t.Errorf("published as %+v after %+v", again, fence)
	}
	c.unpublish(t, id)
	never(t, "a record with a PersistentVolume was forgotten", func() bool { return !c.exists(t, id) })
}

// removePVFinalizers does what the controllers of Kubernetes would do.
func (c *cluster) removePVFinalizers(t *testing.T, name string) error {
	t.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := c.client.Patch(t.Context(), pv, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	return client.IgnoreNotFound(err)
}

// testInterruptedDeletion: the storage server has deleted the volume, and nobody
// came back for the record.
func (c *cluster) testInterruptedDeletion(t *testing.T) {
	const id = "interrupted"
	c.create(t, id)
	c.must(t, c.storage.Delete(t.Context(), id))
	c.must(t, c.client.Delete(t.Context(), &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: id}}))
	eventually(t, "the record goes", func() bool { return !c.exists(t, id) })
}

// testKept: a PersistentVolume with reclaim policy Retain may be gone; the volume
// and its record are nobody's to delete but DeleteVolume's.
func (c *cluster) testKept(t *testing.T) {
	const id = "kept"
	c.create(t, id)
	c.must(t, c.client.Delete(t.Context(), &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: id}}))
	never(t, "a volume without a PersistentVolume was forgotten", func() bool { return !c.exists(t, id) })
	if _, err := c.storage.Access(t.Context(), id); err != nil {
		t.Errorf("the volume was deleted: %v", err)
	}
}
