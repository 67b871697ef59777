package kubectl_test

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/kubectl"
)

const (
	driver = "csi.nearflash.io"
	mib    = int64(1) << 20
	gib    = int64(1) << 30
)

// start is the time at which every test begins.
var start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// before returns a time before the test began.
func before(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(-d)) }

// clock passes time when it is waited for, and lets the cluster go on meanwhile.
type clock struct {
	now time.Time
	// ticks are what happens while the program waits, one for each wait. When they
	// are used up, stop is called.
	ticks []func()
	stop  func()
	// free lets time pass for ever.
	free bool
	mu   sync.Mutex
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	c.now = c.now.Add(d)
	now := c.now
	c.mu.Unlock()
	switch {
	case c.free:
	case len(c.ticks) > 0:
		tick := c.ticks[0]
		c.ticks = c.ticks[1:]
		tick()
	case c.stop != nil:
		c.stop()
		return nil
	}
	ch := make(chan time.Time, 1)
	ch <- now
	return ch
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// rig is a cluster of objects and a terminal.
type rig struct {
	t      *testing.T
	client client.Client
	clock  *clock
	// input is what is typed; interactive tells that somebody types.
	input       string
	interactive bool
	terminal    bool
	// executor runs commands in pods; nil fails a test whose program wants one.
	executor kubectl.Executor
	// again interrupts a program that deletes what it made; nil never does.
	again func(context.Context) (context.Context, context.CancelFunc)
}

func newRig(t *testing.T, objs ...client.Object) *rig {
	t.Helper()
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objs...).
		WithStatusSubresource(&v1alpha1.CachedVolume{}, &v1alpha1.CachePool{}, &v1alpha1.CacheMigration{}).
		WithIndex(&corev1.Event{}, "involvedObject.name", func(o client.Object) []string {
			return []string{o.(*corev1.Event).InvolvedObject.Name}
		}).Build()
	return &rig{t: t, client: c, clock: &clock{now: start}}
}

// forbid takes rights away from the account, to objects without a namespace.
func (r *rig) forbid(kinds ...client.Object) {
	refuse := func(kind any) error {
		for _, k := range kinds {
			if strings.TrimSuffix(reflect.TypeOf(kind).Elem().Name(), "List") == reflect.TypeOf(k).Elem().Name() {
				return apierrors.NewForbidden(schema.GroupResource{Resource: strings.ToLower(reflect.TypeOf(k).Elem().Name()) + "s"}, "", errors.New("no role"))
			}
		}
		return nil
	}
	r.client = interceptor.NewClient(r.client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if err := refuse(obj); err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := refuse(list); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
	})
}

// run calls the plugin and returns exit status, standard output and errors.
func (r *rig) run(args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	return r.runUntil(nil, args...)
}

// runUntil is run for a program that the user interrupts.
func (r *rig) runUntil(interrupt <-chan struct{}, args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	r.t.Setenv("KUBECONFIG", filepath.Join(r.t.TempDir(), "none"))
	streams, in, out, errOut := genericiooptions.NewTestIOStreams()
	in.WriteString(r.input)
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	if interrupt != nil {
		go func() { <-interrupt; cancel() }()
	}
	if r.clock.stop == nil {
		r.clock.stop = func() { r.t.Error("the program waits, and nothing will happen any more"); cancel() }
	}
	if r.again == nil {
		r.again = context.WithCancel
	}
	f := &kubectl.Factory{
		Interruptible: r.again,
		IOStreams:     streams, Config: genericclioptions.NewConfigFlags(false), Clock: r.clock, Interactive: r.interactive, Terminal: r.terminal,
		Client: func() (client.Client, error) { return r.client, nil },
		Executor: func() (kubectl.Executor, error) {
			if r.executor == nil {
				r.t.Error("the program runs commands in pods")
			}
			return r.executor, nil
		},
	}
	code = kubectl.Execute(ctx, f, args)
	return code, out.String(), errOut.String()
}

// tick adds changes of a record that happen while the program waits.
func (r *rig) tick(name string, changes ...func(*v1alpha1.CachedVolume)) {
	for _, change := range changes {
		r.clock.ticks = append(r.clock.ticks, func() {
			var obj v1alpha1.CachedVolume
			if err := r.client.Get(r.t.Context(), client.ObjectKey{Name: name}, &obj); err != nil {
				r.t.Fatal(err)
			}
			// The API server counts changes of the spec, the fake does not.
			change(&obj)
			if err := r.client.Status().Update(r.t.Context(), &obj); err != nil {
				r.t.Fatal(err)
			}
		})
	}
}

// record reads a CachedVolume.
func (r *rig) record(name string) *v1alpha1.CachedVolume {
	r.t.Helper()
	var obj v1alpha1.CachedVolume
	if err := r.client.Get(r.t.Context(), client.ObjectKey{Name: name}, &obj); err != nil {
		r.t.Fatal(err)
	}
	return &obj
}

// expect compares what a command printed.
func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s\ngot:\n%s", what, diff, got)
	}
}

func ptr[T any](v T) *T { return &v }

// bound returns a claim, its PersistentVolume and its CachedVolume; the record is
// changed by opts.
func bound(namespace, claim, id string, opts ...func(*v1alpha1.CachedVolume)) []client.Object {
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claim},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: id},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	return append([]client.Object{pvc}, pvAndRecord(namespace, claim, id, opts...)...)
}

func pvAndRecord(namespace, claim, id string, opts ...func(*v1alpha1.CachedVolume)) []client.Object {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: id}},
			ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: claim},
		},
	}
	record := &v1alpha1.CachedVolume{
		ObjectMeta: metav1.ObjectMeta{Name: id, UID: types.UID("uid-" + id), Generation: 1},
		Spec: v1alpha1.CachedVolumeSpec{
			Backend: "iscsi", CapacityBytes: ptr(100 * gib), CacheMode: v1alpha1.CacheModeWritethrough, CacheSize: "10%",
		},
		Status: v1alpha1.CachedVolumeStatus{DirtyState: v1alpha1.DirtyStateClean},
	}
	for _, o := range opts {
		o(record)
	}
	return []client.Object{pv, record}
}

// on attaches the volume to a node through a cache of 10 GiB.
func on(node string) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) {
		v.Status.OwnerNode, v.Status.Generation, v.Status.Publication = node, ptr(int64(3)), v1alpha1.PublicationPublished
		v.Status.Cache = v1alpha1.CacheStatus{
			Mode: v.Spec.CacheMode, Health: v1alpha1.CacheHealthy, SizeBytes: ptr(10 * gib), UsedBytes: ptr(8396 * mib), DirtyBytes: ptr(int64(0)),
			HitRate: v1alpha1.HitRate{ReadPercent: ptr(int32(94)), WritePercent: ptr(int32(99)), ReadTotalPercent: ptr(int32(91)), WriteTotalPercent: ptr(int32(98))},
			Performance: v1alpha1.Performance{
				ReadIOPS: ptr(int64(1200)), WriteIOPS: ptr(int64(310)),
				Volume: v1alpha1.Latency{P50Micros: ptr(int64(250)), P99Micros: ptr(int64(4200))},
				Hit:    v1alpha1.Latency{P50Micros: ptr(int64(120)), P99Micros: ptr(int64(500))},
				Miss:   v1alpha1.Latency{P50Micros: ptr(int64(2100)), P99Micros: ptr(int64(15000))},
			},
			ObservedTime: before(12 * time.Second),
		}
		condition(v, v1alpha1.ConditionCached, metav1.ConditionTrue, v1alpha1.ReasonCacheActive, "")
		condition(v, v1alpha1.ConditionApplied, metav1.ConditionTrue, v1alpha1.ReasonApplied, "mode "+string(v.Spec.CacheMode))
	}
}

// writeback makes it a writeback volume with dirty blocks; before on.
func writeback(v *v1alpha1.CachedVolume) {
	v.Spec.CacheMode, v.Spec.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss
	v.Status.DirtyState = v1alpha1.DirtyStatePossiblyDirty
}

// dirty sets how much is dirty, since 40 seconds.
func dirty(n int64) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) {
		v.Status.Cache.DirtyBytes, v.Status.Cache.DirtySinceTime = &n, before(40*time.Second)
	}
}

// released detaches the volume from a node.
func released(node string) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) {
		v.Status.OwnerNode, v.Status.Generation, v.Status.Publication = node, ptr(int64(3)), v1alpha1.PublicationReleased
		v.Status.Cache = v1alpha1.CacheStatus{}
		condition(v, v1alpha1.ConditionCached, metav1.ConditionFalse, v1alpha1.ReasonDetached, "not attached")
		condition(v, v1alpha1.ConditionApplied, metav1.ConditionUnknown, v1alpha1.ReasonNotAttached, "takes effect when the volume is attached")
	}
}

func condition(v *v1alpha1.CachedVolume, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: v.Generation, LastTransitionTime: before(10 * time.Minute),
	})
}

// with sets a condition.
func with(kind string, status metav1.ConditionStatus, reason, message string) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) { condition(v, kind, status, reason, message) }
}

// applied sets the condition Applied.
func applied(status metav1.ConditionStatus, reason, message string) func(*v1alpha1.CachedVolume) {
	return with(v1alpha1.ConditionApplied, status, reason, message)
}

// node returns a node whose state has been the same for 20 minutes.
func node(name string, ready bool) *corev1.Node {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: status, LastTransitionTime: before(20 * time.Minute)},
		}},
	}
}

// userPod returns a running pod that uses a claim.
func userPod(namespace, name, claim, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}
