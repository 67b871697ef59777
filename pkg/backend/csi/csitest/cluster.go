// Package csitest stands in for what serves claims in a cluster beside the API server:
// kube-controller-manager's binder, another CSI driver, and its provisioner, attacher,
// resizer and snapshotter. It does what they do to the objects, can be told to be slow, to refuse, or to stop,
// and notes when two nodes are attached at once, and whose data were deleted.
package csitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// tick is how often the stand-in looks when nothing has changed: what it failed to do comes again.
const tick = 250 * time.Millisecond

// settle is how long the stand-in waits before it looks at what has changed: most that is
// written to one object comes with writes to others, and it reads all of them.
const settle = 10 * time.Millisecond

// Behaviour is what a test may ask of the stand-in.
type Behaviour struct {
	// HoldBind, HoldAttach and HoldDetach let it do nothing of the kind.
	HoldBind, HoldAttach, HoldDetach bool
	// RefuseNode is a node for which nothing can be made.
	RefuseNode string
	// AttachError is the answer to attachments, "" for none.
	AttachError string
	// NodeStep says that an expansion has a part on the node.
	NodeStep bool
	// Larger is by how much more than asked is made.
	Larger int64
	// HoldCut, HoldReady and HoldCutDelete let it cut nothing, have no cut ready, and delete none.
	HoldCut, HoldReady, HoldCutDelete bool
	// ReadyAtOnce has a cut be ready when it is cut, and not a moment later.
	ReadyAtOnce bool
	// RestoreMore is by how much larger than the volume what is made of a cut has to be.
	RestoreMore int64
	// CutError is the answer to whoever wants a cut, "" for none.
	CutError string
	// Affinity is where volumes can be reached from; nil is everywhere.
	Affinity *corev1.VolumeNodeAffinity
}

// Cluster is the stand-in. Each has its own namespace, driver, classes and nodes, so that
// several share one API server.
type Cluster struct {
	// Namespace is that of the claims, Driver the other driver.
	Namespace, Driver string

	api client.WithWatch
	// changed has an element when there may be something to do.
	changed chan struct{}

	round     sync.Mutex // held while the stand-in acts; before mu
	mu        sync.Mutex
	behaviour Behaviour
	free      int64
	attached  map[string]string // node by PersistentVolume
	wrong     []string
	deleted   []string
	// snapshots says that the cluster knows VolumeSnapshots; contents are by PersistentVolume,
	// and cutContents by the UID of a VolumeSnapshot.
	snapshots             bool
	contents, cutContents map[string]string
	deletedCuts           []string
	erased                []string // handles
	apps                  []string // namespaces
	controller            csipb.ControllerServer
}

// Start makes the objects of a cluster by the name, and serves until the test ends. Classes
// are those of Class with "", "thin", "thick", "fixed" (no expansion) and "late"
// (WaitForFirstConsumer); nodes are those of Node with "a" and "b".
func Start(t testing.TB, api client.WithWatch, name string, free int64) *Cluster {
	t.Helper()
	c := &Cluster{Namespace: name, Driver: name + ".example.org", api: api, changed: make(chan struct{}, 1), free: free,
		attached: map[string]string{}, contents: map[string]string{}, cutContents: map[string]string{}}
	create := func(o client.Object) {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: c.Driver}})
	for _, class := range []string{"", "thin", "thick", "fixed", "late"} {
		object := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: c.Class(class)}, Provisioner: c.Driver, AllowVolumeExpansion: ptr.To(class != "fixed"),
		}
		if class == "late" {
			object.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}
		create(object)
	}
	for _, node := range []string{"a", "b"} {
		create(&storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: c.Node(node)},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: c.Driver, NodeID: node}}},
		})
	}
	c.serve(t, c.run)
	for _, list := range []client.ObjectList{
		&corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &corev1.PodList{}, &storagev1.VolumeAttachmentList{},
	} {
		c.serve(t, func(ctx context.Context) { c.watch(ctx, list) })
	}
	return c
}

// serve has work run beside the test, until its end.
func (c *Cluster) serve(t testing.TB, work func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	done.Go(func() { work(ctx) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

// watch has the stand-in look whenever one of a kind of objects changes.
func (c *Cluster) watch(ctx context.Context, list client.ObjectList) {
	for ctx.Err() == nil {
		w, err := c.api.Watch(ctx, list)
		if err != nil {
			return // the tick is left
		}
		context.AfterFunc(ctx, w.Stop) // a client in memory does not end it
		for range w.ResultChan() {
			c.look()
		}
	}
}

// look has the stand-in look soon.
func (c *Cluster) look() {
	select {
	case c.changed <- struct{}{}:
	default: // it will
	}
}

// settled forgets that something has changed, right before the stand-in looks.
func (c *Cluster) settled() {
	select {
	case <-c.changed:
	default:
	}
}

// Class returns the name of a class.
func (c *Cluster) Class(kind string) string { return strings.TrimSuffix(c.Namespace+"-"+kind, "-") }

// Node returns the name of a node.
func (c *Cluster) Node(name string) string { return c.Namespace + "-" + name }

// Behave changes what the stand-in does. When it returns, nothing is done any more
// that was begun before.
func (c *Cluster) Behave(b Behaviour) {
	c.round.Lock()
	defer c.round.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behaviour = b
	c.look()
}

// Wrong returns what must never happen and did.
func (c *Cluster) Wrong() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.wrong)
}

// Deleted returns the claims whose data were deleted.
func (c *Cluster) Deleted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.deleted)
}

// Erased returns the handles of the volumes whose data were deleted.
func (c *Cluster) Erased() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.erased)
}

// Attached returns the nodes by the PersistentVolumes that are attached to them.
func (c *Cluster) Attached() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.attached)
}

// Static makes a PersistentVolume that nobody has claimed.
func (c *Cluster) Static(t testing.TB, name string, size int64) *corev1.PersistentVolume {
	t.Helper()
	pv := c.volume(name, size, "")
	pv.Spec.StorageClassName = ""
	if err := errors.Join(c.create(t.Context(), pv, size), c.api.Create(t.Context(), pv)); err != nil {
		t.Fatal(err)
	}
	return pv
}

// run serves. What fails, as a write of what somebody else has changed, comes again.
func (c *Cluster) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.once(ctx)
		select {
		case <-ctx.Done():
		case <-c.changed:
			time.Sleep(settle)
			c.settled()
		case <-time.After(tick):
		}
	}
}

// once does what is to be done now.
func (c *Cluster) once(ctx context.Context) {
	c.round.Lock()
	defer c.round.Unlock()
	c.mu.Lock()
	b, snapshots := c.behaviour, c.snapshots
	c.mu.Unlock()
	if snapshots {
		c.cuts(ctx, b)
	}
	// Claims first: a volume that is reserved for one of them is there by then.
	var claims []corev1.PersistentVolumeClaim
	for _, namespace := range append([]string{c.Namespace}, c.served()...) {
		list := &corev1.PersistentVolumeClaimList{}
		if c.api.List(ctx, list, client.InNamespace(namespace)) != nil {
			return
		}
		claims = append(claims, list.Items...)
	}
	pvs := &corev1.PersistentVolumeList{}
	if c.api.List(ctx, pvs) != nil {
		return
	}
	live := map[types.UID]bool{} // of most volumes nothing else is to be known
	for i := range claims {
		live[claims[i].UID] = true
		c.claim(ctx, &claims[i], b, pvs.Items)
	}
	c.volumes(ctx, pvs.Items, live)
	c.attachments(ctx, b)
}

// event sends an event of a claim.
func (c *Cluster) event(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason, message string) {
	_ = c.api.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: claim.Namespace, GenerateName: claim.Name + "."},
		InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, APIVersion: "v1"},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: metav1.Now(),
	})
}

// attachments attaches and detaches, as the driver's attacher does.
func (c *Cluster) attachments(ctx context.Context, b Behaviour) {
	list := &storagev1.VolumeAttachmentList{}
	if c.api.List(ctx, list) != nil {
		return
	}
	finalizer := "external-attacher/" + strings.ReplaceAll(c.Driver, ".", "-")
	for i := range list.Items {
		va := &list.Items[i]
		pv := ptr.Deref(va.Spec.Source.PersistentVolumeName, "")
		switch {
		case va.Spec.Attacher != c.Driver:
		case va.DeletionTimestamp != nil && !b.HoldDetach && slices.Contains(va.Finalizers, finalizer):
			if err := c.detach(ctx, va, pv); err != nil {
				va.Status.DetachError = &storagev1.VolumeError{Time: metav1.Now(), Message: err.Error()}
				_ = c.api.Status().Update(ctx, va)
				continue
			}
			c.set(pv, va.Spec.NodeName, "")
			va.Finalizers = slices.DeleteFunc(va.Finalizers, func(f string) bool { return f == finalizer })
			_ = c.api.Update(ctx, va)
		case va.DeletionTimestamp != nil, va.Status.Attached, b.HoldAttach:
		case b.AttachError != "":
			va.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: b.AttachError}
			_ = c.api.Status().Update(ctx, va)
		case !slices.Contains(va.Finalizers, finalizer):
			va.Finalizers = append(va.Finalizers, finalizer)
			_ = c.api.Update(ctx, va)
		default:
			metadata, err := c.attach(ctx, va, pv)
			if err != nil {
				va.Status.AttachError = &storagev1.VolumeError{Time: metav1.Now(), Message: err.Error()}
				_ = c.api.Status().Update(ctx, va)
				continue
			}
			c.set(pv, va.Spec.NodeName, va.Spec.NodeName)
			va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: metadata}
			_ = c.api.Status().Update(ctx, va)
		}
	}
}

// set notes that a volume is attached to a node, or, with to empty, not any more.
func (c *Cluster) set(pv, node, to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.attached[pv]
	switch {
	case to == "" && now == node:
		delete(c.attached, pv)
	case to != "" && now != "" && now != to:
		c.wrong = append(c.wrong, fmt.Sprintf("%s is attached to %s and %s", pv, now, to))
	case to != "":
		c.attached[pv] = to
	}
}
