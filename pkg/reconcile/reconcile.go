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
//   - a hold for which nobody asks any more ends, and what was cut under one and never
//     accepted is deleted;
//   - the claim below a volume says that it has grown once the claim above does;
//   - retained caches of nodes that left the cluster are dropped, and their pools deleted
//     once nothing needs them;
//   - a migration that nobody waits for any more is ended, so that its source lets
//     go, and the objects of ended ones are deleted after an hour;
//   - a node that has another key than it was admitted with is admitted anew.
//
// It admits nobody else: exports outlive a restart of the storage server, which keeps
// them itself.
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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// lockedRetry is when a volume is looked at again that a CSI call holds.
const lockedRetry = time.Second

// Volumes are the acts that finish a volume; provision.Service has them. Each is
// safe to call for every volume and judges the record anew.
type Volumes interface {
	// Settle ends all access to a volume that is released and clean.
	Settle(ctx context.Context, id volume.ID) error
	// Retire removes a record that nothing but a PersistentVolume could need.
	Retire(ctx context.Context, id volume.ID) error
	// ExpireHold ends a hold for which nobody asks any more.
	ExpireHold(ctx context.Context, id volume.ID) error
	// SweepCuts deletes what was cut, and never accepted, for requests that nobody repeats.
	SweepCuts(ctx context.Context, lock func(key string) (unlock func(), ok bool)) error
	// FinishExpansions says on the claims below volumes that their expansion is done.
	FinishExpansions(ctx context.Context, lock func(key string) (unlock func(), ok bool)) error
	// RenewAccount admits the owner of a volume anew if its node has another key since; wait
	// reports that this is due once the owner has no session any more.
	RenewAccount(ctx context.Context, id volume.ID, node string) (wait bool, err error)
	// NamedNodes reads what names nodes that are gone.
	NamedNodes(ctx context.Context, nodes map[string]bool) (*provision.Named, error)
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
	// Retention is how long an ended CacheMigration is kept for people to look at;
	// 0 means an hour.
	Retention time.Duration
	// SweepPause is the pause between two looks at what was cut and never accepted; 0 means
	// ten minutes.
	SweepPause time.Duration
	// ExpansionPause is the pause between two looks at volumes that grow; 0 means ten seconds.
	ExpansionPause time.Duration
	// AccountPause is the pause between two looks at accounts that have to wait for the end of a
	// session; 0 means a minute.
	AccountPause time.Duration
	// PoolPause is the pause between two looks at pools whose node is gone, and PoolGrace how
	// long it has to be gone; 0 means half a minute and ten minutes.
	PoolPause, PoolGrace time.Duration
}

// Reconciler finishes volumes. What informers show decides whether there is
// anything to do; what is done is judged by the API server's own answer (states.md,
// "Many nodes, many volumes").
type Reconciler struct {
	Config
	informed     client.Reader
	volumeLookup volumeLookup
}

// Reconcile implements reconcile.Reconciler for the CachedVolume of req.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	id, err := volume.ParseID(req.Name)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Not a volume of this driver", "reason", err.Error())
		return ctrl.Result{}, nil
	}
	d, err := r.due(ctx, id)
	if d.nothing() {
		return ctrl.Result{RequeueAfter: d.untilExpiry()}, err
	}
	unlock, ok := r.Locks.TryLock(string(id))
	if !ok {
		return ctrl.Result{RequeueAfter: lockedRetry}, err
	}
	defer unlock()
	again, actErr := r.act(ctx, id, d)
	if again == 0 {
		again = d.untilExpiry()
	}
	err = errors.Join(err, actErr)
	if errors.Is(err, volume.ErrBusy) {
		klog.FromContext(ctx).V(2).Info("Coming back", "reason", err.Error())
		return ctrl.Result{RequeueAfter: lockedRetry}, nil
	}
	return ctrl.Result{RequeueAfter: again}, err
}

// due is what informers show that is to be done for a volume.
type due struct {
	// detach: the record looks attached, and no node is entitled to the volume.
	detach bool
	// gone are nodes that may have left the cluster and that the record names.
	gone []string
	// rename and claim: the record lacks the names of its PersistentVolume.
	rename bool
	name   string
	claim  *v1alpha1.ClaimReference
	// settle: nobody may be admitted any more.
	settle bool
	// retire: no PersistentVolume needs the record. begun: its deletion has begun, so that
	// none keeps it.
	retire, begun bool
	// expire: the volume is held, and nobody asks for it any more. held is when that is so,
	// the zero time for a volume that is not held.
	expire bool
	held   time.Time
}

func (d due) nothing() bool {
	return !d.writes() && d.claim == nil && !d.settle && !d.retire && !d.expire
}

// untilExpiry is when to look at a hold again that is not over yet, 0 if there is none.
func (d due) untilExpiry() time.Duration {
	if d.held.IsZero() || d.expire {
		return 0
	}
	return max(time.Until(d.held), lockedRetry)
}

// writes reports whether the status of the record is to be written.
func (d due) writes() bool { return d.detach || d.rename || len(d.gone) > 0 }

// due looks at a volume as informers show it. With an error, it is what is known to
// be due in spite of it.
func (r *Reconciler) due(ctx context.Context, id volume.ID) (due, error) {
	obj := &v1alpha1.CachedVolume{}
	err := r.informed.Get(ctx, types.NamespacedName{Name: string(id)}, obj)
	if apierrors.IsNotFound(err) {
		return due{}, nil
	}
	if err != nil {
		return due{}, fmt.Errorf("look for CachedVolume %s: %w", id, err)
	}
	d := due{
		detach: leftBehind(obj),
		settle: released(obj) && obj.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty && obj.Spec.Static == nil,
	}
	if h := obj.Spec.Hold; h != nil {
		d.held = provision.HoldExpires(h.Since.Time)
		d.expire = !time.Now().Before(d.held)
	}
	var errs []error
	for _, name := range retainingNodes(obj) {
		exists, err := nodeExists(ctx, r.informed, name)
		if err == nil && !exists {
			d.gone = append(d.gone, name)
		}
		errs = append(errs, err)
	}
	pv, err := r.persistentVolume(ctx, obj.Name)
	if err != nil {
		return d, errors.Join(append(errs, err)...)
	}
	d.begun = begun(obj)
	d.retire = (pv == nil || d.begun) && mayRetire(obj)
	if pv != nil {
		d.name = pv.Name
	}
	d.rename = obj.Status.PersistentVolumeName != d.name
	if ref := claimOf(pv); ref != nil && (obj.Spec.ClaimRef == nil || *obj.Spec.ClaimRef != *ref) {
		d.claim = ref
	}
	return d, errors.Join(errs...)
}

// begun reports whether the deletion of a static volume's record has begun.
func begun(obj *v1alpha1.CachedVolume) bool {
	return records.IsStatic(obj) && obj.DeletionTimestamp != nil
}

// mayRetire reports whether a record might be one that nothing but a PersistentVolume
// needs.
func mayRetire(obj *v1alpha1.CachedVolume) bool {
	switch {
	case obj.Status.Publication == v1alpha1.PublicationPublished:
		return false
	case records.IsStatic(obj):
		return obj.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty
	}
	return obj.DeletionTimestamp != nil
}

// act does what is due. One part that fails does not hold up the others.
func (r *Reconciler) act(ctx context.Context, id volume.ID, d due) (again time.Duration, err error) {
	err = errors.Join(r.write(ctx, id, d), r.setClaim(ctx, id, d.claim))
	if d.settle {
		err = errors.Join(err, r.Volumes.Settle(ctx, id))
	}
	if d.expire {
		err = errors.Join(err, r.Volumes.ExpireHold(ctx, id))
	}
	if d.retire {
		var retireErr error
		again, retireErr = r.retire(ctx, id, d.begun)
		err = errors.Join(err, retireErr)
	}
	return again, err
}

// released reports whether the volume had an owner who is not entitled any more.
func released(obj *v1alpha1.CachedVolume) bool {
	return obj.Status.Publication == v1alpha1.PublicationReleased
}

// write brings the status of the record up to date, in one write.
func (r *Reconciler) write(ctx context.Context, id volume.ID, d due) error {
	if !d.writes() {
		return nil
	}
	gone, err := r.gone(ctx, d.gone)
	writeErr := records.UpdateStatus(ctx, r.Client, id, func(now *v1alpha1.CachedVolume) error {
		r.detach(now)
		prune(now, gone)
		if d.rename {
			now.Status.PersistentVolumeName = d.name
		}
		return nil
	})
	if errors.Is(writeErr, volume.ErrNotFound) {
		writeErr = nil
	}
	return errors.Join(err, writeErr)
}

// detach takes back what a node left behind.
func (r *Reconciler) detach(now *v1alpha1.CachedVolume) {
	if !leftBehind(now) {
		return
	}
	message := "not attached"
	if now.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty {
		message = fmt.Sprintf("not attached; node %s may hold unflushed writes", now.Status.OwnerNode)
	}
	set := func(kind string, status metav1.ConditionStatus, reason string) {
		meta.SetStatusCondition(&now.Status.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: now.Generation, LastTransitionTime: metav1.NewTime(time.Now()),
		})
	}
	if meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionCached) {
		set(v1alpha1.ConditionCached, metav1.ConditionFalse, v1alpha1.ReasonDetached)
	}
	if saysApplied(now) {
		set(v1alpha1.ConditionApplied, metav1.ConditionUnknown, v1alpha1.ReasonNotAttached)
	}
	if lastSeen(now) {
		return
	}
	now.Status.Cache = v1alpha1.CacheStatus{}
}

// lastSeen reports whether what the node said of its cache is still wanted: whoever gives
// its unflushed writes up is told, and writes down, how many they were and since when.
func lastSeen(obj *v1alpha1.CachedVolume) bool {
	return obj.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty
}

// leftBehind reports whether a volume that no node is entitled to looks attached.
func leftBehind(obj *v1alpha1.CachedVolume) bool {
	return released(obj) && (obj.Status.Cache.Mode != "" && !lastSeen(obj) || saysApplied(obj) ||
		meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionCached))
}

// saysApplied reports whether a node says how far it is with the spec.
func saysApplied(obj *v1alpha1.CachedVolume) bool {
	c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionApplied)
	return c != nil && c.Status != metav1.ConditionUnknown
}

// gone returns those of the nodes that have left the cluster.
func (r *Reconciler) gone(ctx context.Context, nodes []string) ([]string, error) {
	var gone []string
	var errs []error
	for _, name := range nodes {
		// The informer may lag behind a node that has just come.
		exists, err := nodeExists(ctx, r.Client, name)
		if err == nil && !exists {
			gone = append(gone, name)
		}
		errs = append(errs, err)
	}
	if len(gone) > 0 {
		klog.FromContext(ctx).Info("Dropping retained caches of nodes that left the cluster", "nodes", gone)
	}
	return gone, errors.Join(errs...)
}

// prune drops the retained caches of nodes that left the cluster, and the warm source if
// it is one of them, so that the new owner does not wait for its answer. Nothing
// else is dropped here: a retained cache of an older generation is its node's to give
// up, which may be about to export it. The list informs; should the node come back,
// its own journal decides about its caches.
func prune(now *v1alpha1.CachedVolume, gone []string) {
	now.Status.RetainedCaches = slices.DeleteFunc(now.Status.RetainedCaches, func(e v1alpha1.RetainedCache) bool {
		return slices.Contains(gone, e.NodeName)
	})
	if slices.Contains(gone, now.Status.WarmSource.NodeName) {
		now.Status.WarmSource = v1alpha1.WarmSource{}
	}
}

// retainingNodes returns the nodes that a record says keep caches of the volume.
func retainingNodes(obj *v1alpha1.CachedVolume) []string {
	var nodes []string
	for _, e := range obj.Status.RetainedCaches {
		nodes = append(nodes, e.NodeName)
	}
	if source := obj.Status.WarmSource.NodeName; source != "" && !slices.Contains(nodes, source) {
		nodes = append(nodes, source)
	}
	return nodes
}

func nodeExists(ctx context.Context, reader client.Reader, name string) (bool, error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := reader.Get(ctx, types.NamespacedName{Name: name}, node)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read Node %s: %w", name, err)
	}
	return err == nil, nil
}

// retire forgets a record whose PersistentVolume is gone, if nothing else needs
// it. The data of a volume that nearflash made is not touched: only DeleteVolume
// says that nobody wants it. asSeen tells that its deletion had begun as the informer saw it;
// again is when to look once more.
func (r *Reconciler) retire(ctx context.Context, id volume.ID, asSeen bool) (again time.Duration, err error) {
	if asSeen {
		obj, err := records.Load(ctx, r.Client, id)
		if errors.Is(err, volume.ErrNotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		if begun(obj) { // it may be another one by now
			return 0, r.Volumes.Retire(ctx, id)
		}
	}
	// The informer may lag behind; a record must not be forgotten for that.
	used, again, err := r.volumeLookup.uses(ctx, time.Now(), string(id), r.handles)
	if used || again > 0 || err != nil {
		return again, err
	}
	return 0, r.Volumes.Retire(ctx, id)
}

// handle returns the ID of the volume of a PersistentVolume, "" if it is another
// driver's.
func (r *Reconciler) handle(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != r.Driver {
		return ""
	}
	return pv.Spec.CSI.VolumeHandle
}
