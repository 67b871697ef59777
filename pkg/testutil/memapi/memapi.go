// Package memapi is controller-runtime's client in memory with a short way for what tests of
// thousands of lives do all the time: to read an object, and to patch it. The fake client converts
// an object some ten times for one patch, keeps managed fields of it, and looks at its own stack to
// see whose the call is; that took half of the time of such tests.
package memapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// Client is the fake client, but for what it does itself.
type Client struct {
	client.WithWatch
	// mu is held for a write, which reads before.
	mu      *sync.Mutex
	scheme  *runtime.Scheme
	tracker clienttesting.ObjectTracker
	quick   map[reflect.Type]schema.GroupVersionKind
}

// New returns a client without objects. Those of the kinds that are named have a subresource for
// their field Status, and take the short way.
func New(scheme *runtime.Scheme, kinds ...client.Object) *Client {
	c := &Client{
		mu: &sync.Mutex{}, scheme: scheme, quick: map[reflect.Type]schema.GroupVersionKind{},
		tracker: clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder()),
	}
	for _, kind := range kinds {
		gvk, err := apiutil.GVKForObject(kind, scheme)
		if err != nil {
			panic(err) // a kind that the scheme lacks
		}
		c.quick[reflect.TypeOf(kind)] = gvk
	}
	c.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(c.tracker).WithStatusSubresource(kinds...).Build()
	return c
}

// resource is that of an object's kind; quick tells whether it has the short way.
func (c *Client) resource(obj client.Object) (gvr schema.GroupVersionResource, quick bool) {
	gvk, quick := c.quick[reflect.TypeOf(obj)]
	gvr, _ = meta.UnsafeGuessKindToResource(gvk)
	return gvr, quick
}

// Get implements client.Reader.
func (c *Client) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	gvr, quick := c.resource(obj)
	if !quick {
		return c.WithWatch.Get(ctx, key, obj, opts...)
	}
	now, err := c.tracker.Get(gvr, key.Namespace, key.Name) // a copy
	if err != nil {
		return err
	}
	give(now, obj)
	return nil
}

// give makes obj what the server has, without type, as a client's objects are.
func give(now runtime.Object, obj client.Object) {
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(now).Elem())
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	obj.SetManagedFields(nil)
}

// Create implements client.Writer.
func (c *Client) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.WithWatch.Create(ctx, obj, opts...); err != nil {
		return err
	}
	return c.plain(obj)
}

// Update implements client.Writer.
func (c *Client) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.WithWatch.Update(ctx, obj, opts...); err != nil {
		return err
	}
	return c.plain(obj)
}

// plain makes what is kept of an object what JSON says of it: no parts of a second, no empty map.
// The fake client does so with each read.
func (c *Client) plain(obj client.Object) error {
	gvr, quick := c.resource(obj)
	if !quick {
		return nil
	}
	now, err := c.tracker.Get(gvr, obj.GetNamespace(), obj.GetName())
	if apierrors.IsNotFound(err) {
		return nil // an update that took the last finalizer
	}
	if err != nil {
		return err
	}
	kept, err := merged(now.(client.Object), []byte("{}"))
	if err != nil {
		return err
	}
	return c.tracker.Update(gvr, kept, kept.GetNamespace())
}

// Delete implements client.Writer.
func (c *Client) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.WithWatch.Delete(ctx, obj, opts...)
}

// Patch implements client.Writer.
func (c *Client) Patch(ctx context.Context, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gvr, quick := c.resource(obj); quick && p.Type() == types.MergePatchType && len(opts) == 0 {
		return c.merge(gvr, obj, p, false)
	}
	return c.WithWatch.Patch(ctx, obj, p, opts...)
}

// Status implements client.StatusClient.
func (c *Client) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource implements client.SubResourceClientConstructor.
func (c *Client) SubResource(name string) client.SubResourceClient {
	return &sub{SubResourceClient: c.WithWatch.SubResource(name), c: c, status: name == "status"}
}

type sub struct {
	client.SubResourceClient
	c      *Client
	status bool
}

// Update implements client.SubResourceWriter.
func (s *sub) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if err := s.SubResourceClient.Update(ctx, obj, opts...); err != nil {
		return err
	}
	return s.c.plain(obj)
}

// Patch implements client.SubResourceWriter.
func (s *sub) Patch(ctx context.Context, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if gvr, quick := s.c.resource(obj); quick && s.status && p.Type() == types.MergePatchType && len(opts) == 0 {
		return s.c.merge(gvr, obj, p, true)
	}
	return s.SubResourceClient.Patch(ctx, obj, p, opts...)
}

// merge applies a JSON merge patch to the status, or to everything else. Errors: not found, and a
// conflict when the patch has a version that is not the object's.
func (c *Client) merge(gvr schema.GroupVersionResource, obj client.Object, p client.Patch, status bool) error {
	data, err := p.Data(obj)
	if err != nil {
		return err
	}
	now, err := c.tracker.Get(gvr, obj.GetNamespace(), obj.GetName())
	if err != nil {
		return err
	}
	old := now.(client.Object)
	changed, err := merged(old, data)
	if err != nil {
		return err
	}
	version, err := next(gvr, old, changed.GetResourceVersion())
	if err != nil {
		return err
	}
	from, to := old, changed
	if status {
		from, to = changed, old // all but the status stays as it was
	}
	reflect.ValueOf(to).Elem().FieldByName("Status").Set(reflect.ValueOf(from).Elem().FieldByName("Status"))
	to.SetResourceVersion(version)
	switch {
	case to.GetDeletionTimestamp().IsZero() != old.GetDeletionTimestamp().IsZero():
		return fmt.Errorf("%s: a patch of the time of deletion", obj.GetName())
	case !to.GetDeletionTimestamp().IsZero() && len(to.GetFinalizers()) == 0:
		err = c.tracker.Delete(gvr, to.GetNamespace(), to.GetName())
	default:
		err = c.tracker.Update(gvr, to, to.GetNamespace()) // keeps a copy
	}
	if err != nil {
		return err
	}
	give(to, obj)
	return nil
}

// merged is an object with a JSON merge patch.
func merged(old client.Object, patch []byte) (client.Object, error) {
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	after, err := jsonpatch.MergePatch(before, patch)
	if err != nil {
		return nil, err
	}
	changed := reflect.New(reflect.TypeOf(old).Elem()).Interface().(client.Object)
	return changed, json.Unmarshal(after, changed)
}

// next is the version that follows an object's, of which the writer knows one; "" is any.
func next(gvr schema.GroupVersionResource, old client.Object, known string) (string, error) {
	if known != "" && known != old.GetResourceVersion() {
		return "", apierrors.NewConflict(gvr.GroupResource(), old.GetName(), errors.New("object was modified"))
	}
	n, err := strconv.ParseUint(old.GetResourceVersion(), 10, 64)
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", old.GetName(), err)
	}
	return strconv.FormatUint(n+1, 10), nil
}
