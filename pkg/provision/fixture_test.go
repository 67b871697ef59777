package provision

import (
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	gib   = 1 << 30
	nodeA = "node-a"
	nodeB = "node-b"
	iqnA  = "iqn.1993-08.org.debian:01:a"
	iqnB  = "iqn.1993-08.org.debian:01:b"
)

var (
	errInjected = errors.New("injected failure")
	chap        = &volume.Credentials{Username: "user", Password: "password-of-user"}
)

// fixture is a Service over a real API server and a storage server in memory.
// The server and its objects are shared by all tests; each has its own volume.
type fixture struct {
	client  client.WithWatch
	storage *backendtest.Server
	events  *events.FakeRecorder
	svc     *Service
	id      volume.ID

	mu sync.Mutex
	// steps are the acts on record and storage server, in their order.
	steps []string
	// fail is asked before and after each step.
	fail func(step string, done bool) error
	// taken is the last takeover of the storage server.
	taken string
	// read, when set, is called once a record was read.
	read func()
}

// newFixture returns a Service of its own for one test.
func newFixture(t *testing.T, cfg *rest.Config, id volume.ID) *fixture {
	t.Helper()
	f := &fixture{storage: backendtest.New(100 * gib), events: events.NewFakeRecorder(100), id: id}
	f.client = interceptor.NewClient(apiserver.Client(t, cfg), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, obj, opts...)
			if _, ok := obj.(*v1alpha1.CachedVolume); ok && f.read != nil {
				f.read()
			}
			return err
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			name := "record"
			if _, pool := obj.(*v1alpha1.CachePool); pool {
				name = "tell node"
			}
			return f.step(name, func() error { return c.SubResource(sub).Patch(ctx, obj, patch, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return f.step("make record", func() error { return c.Create(ctx, obj, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return f.step("delete record", func() error { return c.Delete(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return f.step("change record", func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
	})
	f.storage.Step = f.recordStep
	f.svc = New(Config{Client: f.client, Servers: f.servers(), Events: f.events})
	return f
}

// servers is the storage server with its takeover.
func (f *fixture) servers() map[string]Server {
	return map[string]Server{"": {Backend: f.storage, TakenOver: func(context.Context) (string, error) { return f.taken, nil }}}
}

// one is a default storage server alone.
func one(storage backend.Backend) map[string]Server { return map[string]Server{"": {Backend: storage}} }

// step runs one write of the record between its two failure points.
func (f *fixture) step(name string, act func() error) error {
	if err := f.recordStep(name, false); err != nil {
		return err
	}
	if err := act(); err != nil {
		return err
	}
	return f.recordStep(name, true)
}

// recordStep records a step that took effect and fails it if the test says so.
func (f *fixture) recordStep(name string, done bool) error {
	if name == "access" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if done {
		f.steps = append(f.steps, name)
	}
	if f.fail == nil {
		return nil
	}
	return f.fail(name, done)
}

// follow calls look at once and whenever a record has changed, until ctx ends. What look failed
// to do it does again after a while.
func follow(ctx context.Context, api client.WithWatch, id volume.ID, look func()) {
	var changes <-chan watch.Event // nil if there are none to be had: the pause is left
	if w, err := api.Watch(ctx, &v1alpha1.CachedVolumeList{}, client.MatchingFields{"metadata.name": string(id)}); err == nil {
		defer w.Stop()
		changes = w.ResultChan()
	}
	for ctx.Err() == nil {
		look()
		select {
		case <-ctx.Done():
		case _, open := <-changes:
			if !open {
				changes = nil
			}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// takeSteps returns the steps since the last call.
func (f *fixture) takeSteps() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.steps
	f.steps = nil
	return out
}

// redundant reports whether a kill at the n-th moment, of before and after each thing that is changed,
// is left to MATRIX=whole: before one is as behind the one before it, but for what others did in
// between.
func redundant(n int) bool { return n > 1 && n%2 == 1 && os.Getenv("MATRIX") != "whole" }

// failOnce lets one step fail once, before or after it took effect.
func (f *fixture) failOnce(step string, done bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = func(s string, d bool) error {
		if s != step || d != done {
			return nil
		}
		f.fail = nil
		return errInjected
	}
}

func (f *fixture) pending() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail != nil
}

func spec() volume.Spec {
	return volume.Spec{
		CapacityBytes: gib, Mode: volume.ModeWriteback, Cache: volume.Size{Percent: 10}, AcceptNodeLoss: true,
		Claim: &volume.Claim{Namespace: "default", Name: "data"},
	}
}

func staticSpec() *volume.Spec {
	return &volume.Spec{
		Mode: volume.ModeWritethrough, Cache: volume.Size{Bytes: gib},
		Static: &volume.ISCSI{Portals: []string{"192.0.2.9:3260"}, IQN: "iqn.2003-01.org.example:disk1", LUN: 3},
	}
}

// create makes the fixture's volume.
func (f *fixture) create(t *testing.T) {
	t.Helper()
	if _, err := f.svc.Create(t.Context(), f.id, spec()); err != nil {
		t.Fatal(err)
	}
	f.takeSteps()
}

// publish publishes the volume and checks the outcome.
func (f *fixture) publish(t *testing.T, node string, wantGeneration int64) volume.Publication {
	t.Helper()
	p, err := f.svc.Publish(t.Context(), f.id, node, nil, chap)
	if err != nil {
		t.Fatalf("publish to %s: %v", node, err)
	}
	f.wantOwner(t, node, wantGeneration, true)
	if got := (volume.Fence{UID: f.record(t).Fence.UID, Generation: wantGeneration, Node: node}); p.Fence != got {
		t.Fatalf("publication %+v, want %+v", p.Fence, got)
	}
	return p
}

func (f *fixture) unpublish(t *testing.T, node string) {
	t.Helper()
	if err := f.svc.Unpublish(t.Context(), f.id, node); err != nil {
		t.Fatalf("unpublish from %s: %v", node, err)
	}
}

// record reads the volume's record.
func (f *fixture) record(t *testing.T) volume.Volume {
	t.Helper()
	v, err := f.svc.Get(t.Context(), f.id)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// report is what an owner says of its cache.
func (f *fixture) report(t *testing.T) {
	t.Helper()
	err := records.UpdateStatus(t.Context(), f.client, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.Cache = v1alpha1.CacheStatus{Mode: v1alpha1.CacheModeWriteback, DirtyBytes: new(int64(1)), ObservedTime: metav1.Unix(1, 0)}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantNoReport fails if the record says of the owner's cache what another node reported.
func (f *fixture) wantNoReport(t *testing.T) {
	t.Helper()
	obj, err := records.Load(t.Context(), f.client, f.id)
	if err != nil {
		t.Fatal(err)
	}
	if got := obj.Status.Cache; !reflect.DeepEqual(got, v1alpha1.CacheStatus{}) {
		t.Errorf("the record says of another node's cache: %+v", got)
	}
}

func (f *fixture) wantOwner(t *testing.T, node string, generation int64, published bool) {
	t.Helper()
	v := f.record(t)
	if v.Fence.Node != node || v.Fence.Generation != generation || v.Published != published {
		t.Fatalf("record shows owner %q, generation %d, published %v; want %q, %d, %v",
			v.Fence.Node, v.Fence.Generation, v.Published, node, generation, published)
	}
}

func (f *fixture) wantExports(t *testing.T, want ...string) {
	t.Helper()
	if got := f.storage.Exported(f.id); !slices.Equal(got, append([]string{}, want...)) {
		t.Fatalf("admitted are %q, want %q", got, want)
	}
}

func (f *fixture) wantSteps(t *testing.T, want ...string) {
	t.Helper()
	if got := f.takeSteps(); !slices.Equal(got, want) {
		t.Fatalf("steps %q, want %q", got, want)
	}
}

func (f *fixture) wantGone(t *testing.T) {
	t.Helper()
	err := f.client.Get(t.Context(), client.ObjectKey{Name: string(f.id)}, &v1alpha1.CachedVolume{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the record is still there (%v)", err)
	}
	if _, ok := f.storage.Volume(f.id); ok {
		t.Error("the storage server still has the volume")
	}
}

// mark writes the dirty mark as the owner's node plugin does.
func (f *fixture) mark(t *testing.T, dirty bool) {
	t.Helper()
	rec := records.New(f.client, f.events, nil)
	fence := f.record(t).Fence
	var err error
	if dirty {
		err = rec.MarkPossiblyDirty(t.Context(), f.id, fence)
	} else {
		err = rec.MarkClean(t.Context(), f.id, fence)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.takeSteps()
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// makeNodes reports two nodes, a third with the initiator name of the first, and
// one that has not reported a name.
func makeNodes(t *testing.T, c client.Client) {
	t.Helper()
	for name, iqn := range map[string]string{nodeA: iqnA, nodeB: iqnB, "node-a-twin": iqnA, "node-new": ""} {
		pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := c.Create(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		pool.Status.InitiatorIQN = iqn
		if err := c.Status().Update(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{nodeA, nodeB} {
		makeNode(t, c, name, corev1.ConditionTrue)
	}
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	if err := c.Create(t.Context(), pvc); err != nil {
		t.Fatal(err)
	}
}

// makeNode makes the Node of a kubelet that says whether it is ready.
func makeNode(t *testing.T, c client.Client, name string, ready corev1.ConditionStatus) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	if err := c.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}
