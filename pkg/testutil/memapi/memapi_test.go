package memapi_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/testutil/memapi"
)

// conversation is what somebody asks of the API server, and what is there after each word.
type conversation struct {
	t   *testing.T
	api client.Client
	// heard are objects as they came back, and as they were read; errs the kinds of errors.
	heard []v1alpha1.CachedVolume
	errs  []metav1.StatusReason
}

// hear notes the outcome of a call, and what a reader finds.
func (c *conversation) hear(obj *v1alpha1.CachedVolume, err error) {
	c.t.Helper()
	read := &v1alpha1.CachedVolume{}
	readErr := c.api.Get(c.t.Context(), client.ObjectKey{Name: "v"}, read)
	c.heard = append(c.heard, *obj.DeepCopy(), *read)
	c.errs = append(c.errs, apierrors.ReasonForError(err), apierrors.ReasonForError(readErr))
}

// patched changes an object by patches of what is given, with or without its version.
func (c *conversation) patched(base *v1alpha1.CachedVolume, status, locked bool, change func(*v1alpha1.CachedVolume)) {
	c.t.Helper()
	obj := base.DeepCopy()
	change(obj)
	patch := client.MergeFrom(base)
	if locked {
		patch = client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	}
	if status {
		c.hear(obj, c.api.Status().Patch(c.t.Context(), obj, patch))
		return
	}
	c.hear(obj, c.api.Patch(c.t.Context(), obj, patch))
}

func (c *conversation) read() *v1alpha1.CachedVolume {
	obj := &v1alpha1.CachedVolume{}
	if err := c.api.Get(c.t.Context(), client.ObjectKey{Name: "v"}, obj); err != nil {
		c.t.Fatal(err)
	}
	return obj
}

func (c *conversation) hold() {
	t := c.t
	obj := &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Labels: map[string]string{"a": "1", "b": "2"}, Finalizers: []string{"f/f"}, Annotations: map[string]string{}}}
	obj.CreationTimestamp = metav1.NewTime(time.Unix(4, 5678).UTC())
	c.hear(obj, c.api.Get(t.Context(), client.ObjectKey{Name: "v"}, &v1alpha1.CachedVolume{}))
	c.patched(obj, true, false, func(o *v1alpha1.CachedVolume) { o.Status.OwnerNode = "n" }) // of what is not there
	c.hear(obj, c.api.Create(t.Context(), obj))
	c.hear(obj, c.api.Create(t.Context(), &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}))
	first := c.read()
	for _, status := range []bool{true, false} {
		for _, locked := range []bool{true, false} {
			now := c.read()
			all := func(o *v1alpha1.CachedVolume) {
				o.Status.OwnerNode, o.Labels["a"], o.Annotations = "n", "3", map[string]string{"x": "y"}
				o.Status.DirtyState, o.Status.Cache.DirtyBytes = v1alpha1.DirtyStatePossiblyDirty, new(int64(7))
				o.Status.Cache.ObservedTime = metav1.NewTime(time.Unix(5, 6789).UTC())
				o.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "n"}, {NodeName: "m"}}
			}
			c.patched(now, status, locked, all)
			c.patched(first, status, locked, all)                                // of an old one: with its version a conflict
			c.patched(c.read(), status, locked, func(o *v1alpha1.CachedVolume) { // fields go
				delete(o.Labels, "b")
				o.Annotations = nil
				o.Status = v1alpha1.CachedVolumeStatus{OwnerNode: "k"}
			})
		}
	}
	now := c.read()
	now.Labels, now.Status.OwnerNode = map[string]string{"u": "v"}, "no"
	c.hear(now, c.api.Update(t.Context(), now))
	now.Status.OwnerNode, now.Status.Cache.ObservedTime = "yes", metav1.NewTime(time.Unix(6, 789).UTC())
	c.hear(now, c.api.Status().Update(t.Context(), now))
	if err := c.api.Delete(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if c.read().DeletionTimestamp == nil {
		t.Error("a finalizer was not waited for")
	}
	for _, o := range c.heard { // of each time of deletion, only that there is none
		if o.DeletionTimestamp != nil {
			t.Errorf("too early: %+v", o.ObjectMeta)
		}
	}
	last := c.read()
	obj = last.DeepCopy()
	obj.Finalizers = nil
	if err := c.api.Patch(t.Context(), obj, client.MergeFrom(last)); err != nil {
		t.Error(err)
	}
	if err := c.api.Get(t.Context(), client.ObjectKey{Name: "v"}, &v1alpha1.CachedVolume{}); !apierrors.IsNotFound(err) {
		t.Errorf("behind its last finalizer: %v", err)
	}
}

func newScheme(t *testing.T) *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestLikeFake: what the short way answers and keeps is what the fake client does.
func TestLikeFake(t *testing.T) {
	s := newScheme(t)
	quick := &conversation{t: t, api: memapi.New(s, &v1alpha1.CachedVolume{})}
	slow := &conversation{t: t, api: fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(&v1alpha1.CachedVolume{}).Build()}
	quick.hold()
	slow.hold()
	if !slices.Equal(quick.errs, slow.errs) {
		t.Errorf("errors %q, want %q", quick.errs, slow.errs)
	}
	if n := len(slow.heard); n < 30 || !slices.Contains(slow.errs, metav1.StatusReasonConflict) || !slices.Contains(slow.errs, metav1.StatusReasonAlreadyExists) {
		t.Errorf("%d objects, errors %q: the conversation says too little", n, slow.errs)
	}
	if diff := cmp.Diff(slow.heard, quick.heard); diff != "" {
		t.Errorf("-fake +quick:\n%s", diff)
	}
}

// TestRaces: no patch with a version is lost, whoever else writes.
func TestRaces(t *testing.T) {
	api := memapi.New(newScheme(t), &v1alpha1.CachedVolume{})
	obj := &v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	if err := api.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	const writers, each = 4, 25
	done := make(chan error)
	for i := range writers {
		go func() { done <- count(t.Context(), api, i%2 == 0, each) }()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil || ptr.Deref(obj.Status.Cache.DirtyBytes, 0) != writers*each {
		t.Errorf("%d, %v, want %d: writes were lost", ptr.Deref(obj.Status.Cache.DirtyBytes, 0), err, writers*each)
	}
}

// count raises a number n times, by patches or by updates.
func count(ctx context.Context, api client.Client, patch bool, n int) error {
	for n > 0 {
		base := &v1alpha1.CachedVolume{}
		if err := api.Get(ctx, client.ObjectKey{Name: "v"}, base); err != nil {
			return err
		}
		obj := base.DeepCopy()
		obj.Status.Cache.DirtyBytes = new(ptr.Deref(obj.Status.Cache.DirtyBytes, 0) + 1)
		var err error
		if patch {
			err = api.Status().Patch(ctx, obj, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		} else {
			err = api.Status().Update(ctx, obj)
		}
		switch {
		case err == nil:
			n--
		case !apierrors.IsConflict(err):
			return err
		}
	}
	return nil
}
