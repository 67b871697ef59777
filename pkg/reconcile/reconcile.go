// Package reconcile finishes for the controller what no CSI call asks for any
// more (docs/design/states.md, "The record"):
//
//   - a volume that its node released with unflushed writes keeps its access
//     until the node reports the flush; then the access ends;
//   - the record of a static volume goes with its PersistentVolume, and so does
//     one whose deletion was interrupted behind the storage server's part;
//   - what a node said of a volume that left it without the node's saying so (a
//     node that died) is taken back: the conditions and the state of the cache;
//   - a record carries the names of its PersistentVolume and its claim, by which
//     people know the volume;
//   - residencies of nodes that left the cluster are dropped;
//   - a migration that nobody waits for any more is ended, so that its source lets
//     go, and the objects of ended ones are deleted after an hour.
//
// It admits nobody: exports outlive a restart of the storage server, which keeps
// them itself, and the CHAP account that an export needs comes with the CSI call.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// lockedRetry is when a volume is looked at again that a CSI call holds.
const lockedRetry = time.Second

// listPage is the number of objects asked for at once.
const listPage = 500

// Volumes are the acts that finish a volume; provision.Service has them. Each is
// safe to call for every volume and judges the record anew.
type Volumes interface {
	// Settle ends all access to a volume that is released and clean.
	Settle(ctx context.Context, id volume.ID) error
	// Retire removes a record that nothing but a PersistentVolume could need.
	Retire(ctx context.Context, id volume.ID) error
}

// Locker is the per-volume lock that is shared with the CSI services.
type Locker interface {
	TryLock(key string) (unlock func(), ok bool)
}

// Config is what the reconciler works with.
type Config struct {
	// Client reads from the API server itself.
	Client  client.Client
	Volumes Volumes
	Locks   Locker
	// Driver is the name of the CSI driver in PersistentVolumes.
	Driver string
	// Clock stamps conditions; nil means the wall clock.
	Clock clock.PassiveClock
	// Retention is how long an ended CacheMigration is kept for people to look at;
	// 0 means an hour.
	Retention time.Duration
}

func (c Config) clock() clock.PassiveClock {
	if c.Clock == nil {
		return clock.RealClock{}
	}
	return c.Clock
}

func (c Config) now() time.Time { return c.clock().Now() }

// Reconciler finishes volumes. informed answers from informers and only says
// when the API server itself need not be asked.
type Reconciler struct {
	Config
	informed client.Reader
}

// Reconcile implements reconcile.Reconciler for the CachedVolume of req.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	id, err := volume.ParseID(req.Name)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Not a volume of this driver", "reason", err.Error())
		return ctrl.Result{}, nil
	}
	unlock, ok := r.Locks.TryLock(string(id))
	if !ok {
		return ctrl.Result{RequeueAfter: lockedRetry}, nil
	}
	defer unlock()
	err = r.finish(ctx, id)
	if errors.Is(err, volume.ErrBusy) {
		klog.FromContext(ctx).V(2).Info("Coming back", "reason", err.Error())
		return ctrl.Result{RequeueAfter: lockedRetry}, nil
	}
	return ctrl.Result{}, err
}

// finish does all that is due. One part that fails does not hold up the others.
func (r *Reconciler) finish(ctx context.Context, id volume.ID) error {
	obj, err := records.Load(ctx, r.Client, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	err = errors.Join(r.detached(ctx, obj), r.prune(ctx, obj), r.name(ctx, obj))
	if released(obj) && obj.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
		err = errors.Join(err, r.Volumes.Settle(ctx, id))
	}
	return errors.Join(err, r.retire(ctx, obj))
}

// released tells whether the volume had an owner who is not entitled any more.
func released(obj *v1alpha1.CachedVolume) bool {
	return obj.Status.Publication == v1alpha1.PublicationReleased
}

// detached takes back what a node left behind.
func (r *Reconciler) detached(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	if !leftBehind(obj) {
		return nil
	}
	return records.UpdateStatus(ctx, r.Client, volume.ID(obj.Name), func(now *v1alpha1.CachedVolume) error {
		if !leftBehind(now) {
			return nil
		}
		message := "not attached"
		if now.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty {
			message = fmt.Sprintf("not attached; node %s may hold unflushed writes", now.Status.OwnerNode)
		}
		set := func(kind string, status metav1.ConditionStatus, reason string) {
			meta.SetStatusCondition(&now.Status.Conditions, metav1.Condition{
				Type: kind, Status: status, Reason: reason, Message: message,
				ObservedGeneration: now.Generation, LastTransitionTime: metav1.NewTime(r.now()),
			})
		}
		if meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionCached) {
			set(v1alpha1.ConditionCached, metav1.ConditionFalse, v1alpha1.ReasonDetached)
		}
		if saysApplied(now) {
			set(v1alpha1.ConditionApplied, metav1.ConditionUnknown, v1alpha1.ReasonNotAttached)
		}
		now.Status.Cache = v1alpha1.CacheStatus{}
		return nil
	})
}

// leftBehind tells whether a volume that no node is entitled to looks attached.
func leftBehind(obj *v1alpha1.CachedVolume) bool {
	return released(obj) && (obj.Status.Cache.Mode != "" || saysApplied(obj) ||
		meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionCached))
}

// saysApplied tells whether a node says how far it is with the spec.
func saysApplied(obj *v1alpha1.CachedVolume) bool {
	c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionApplied)
	return c != nil && c.Status != metav1.ConditionUnknown
}

// prune drops the residencies of nodes that left the cluster, and the warm source if
// it is one of them, so that the new owner does not wait for its answer. Nothing
// else is dropped here: a residency of an older generation is its node's to give
// up, which may be about to lend it. The list informs; should the node come back,
// its own journal decides about its caches.
func (r *Reconciler) prune(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	var gone []string
	for _, name := range residentNodes(obj) {
		exists, err := r.nodeExists(ctx, name)
		if err != nil {
			return err
		}
		if !exists {
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	klog.FromContext(ctx).Info("Dropping residencies of nodes that left the cluster", "nodes", gone)
	return records.UpdateStatus(ctx, r.Client, volume.ID(obj.Name), func(now *v1alpha1.CachedVolume) error {
		now.Status.Residency = slices.DeleteFunc(now.Status.Residency, func(e v1alpha1.Residency) bool {
			return slices.Contains(gone, e.NodeName)
		})
		if slices.Contains(gone, now.Status.WarmSource.NodeName) {
			now.Status.WarmSource = v1alpha1.WarmSource{}
		}
		return nil
	})
}

// residentNodes returns the nodes that a record says keep caches of the volume.
func residentNodes(obj *v1alpha1.CachedVolume) []string {
	var nodes []string
	for _, e := range obj.Status.Residency {
		nodes = append(nodes, e.NodeName)
	}
	if source := obj.Status.WarmSource.NodeName; source != "" && !slices.Contains(nodes, source) {
		nodes = append(nodes, source)
	}
	return nodes
}

func (r *Reconciler) nodeExists(ctx context.Context, name string) (bool, error) {
	for _, reader := range []client.Reader{r.informed, r.Client} {
		node := &metav1.PartialObjectMetadata{}
		node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		err := reader.Get(ctx, types.NamespacedName{Name: name}, node)
		if err == nil {
			return true, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("read Node %s: %w", name, err)
		}
	}
	return false, nil
}

// retire forgets a record whose PersistentVolume is gone, if nothing else needs
// it. The data of a volume that nearflash made is not touched: only DeleteVolume
// says that nobody wants it.
func (r *Reconciler) retire(ctx context.Context, obj *v1alpha1.CachedVolume) error {
	if obj.Spec.Static == nil && obj.DeletionTimestamp == nil {
		return nil
	}
	used, err := r.used(ctx, obj.Name)
	if used || err != nil {
		return err
	}
	return r.Volumes.Retire(ctx, volume.ID(obj.Name))
}

// used tells whether a PersistentVolume has the handle.
func (r *Reconciler) used(ctx context.Context, handle string) (bool, error) {
	if known, err := r.persistentVolume(ctx, handle); err != nil || known != nil {
		return known != nil, err
	}
	// The informer may lag behind; a record must not be forgotten for that.
	page := &corev1.PersistentVolumeList{}
	for {
		if err := r.Client.List(ctx, page, client.Limit(listPage), client.Continue(page.Continue)); err != nil {
			return false, fmt.Errorf("list PersistentVolumes: %w", err)
		}
		for i := range page.Items {
			if r.handle(&page.Items[i]) == handle {
				return true, nil
			}
		}
		if page.Continue == "" {
			return false, nil
		}
	}
}

// handle returns the ID of the volume of a PersistentVolume, "" if it is another
// driver's.
func (r *Reconciler) handle(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != r.Driver {
		return ""
	}
	return pv.Spec.CSI.VolumeHandle
}
