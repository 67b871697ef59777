package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// defaultRetention is how long an ended CacheMigration is kept.
const defaultRetention = time.Hour

// migrations ends and deletes CacheMigrations. A node that exports a retained cache holds
// on to it until the migration has ended or is gone, and the node that would say so
// may have died (states.md, "What the source node does").
type migrations struct {
	Config
	informed client.Reader
	moves    finisher
}

// finisher says how a migration ended, where its destination has not; the
// destination's own code does.
type finisher interface {
	Finish(ctx context.Context, m volume.MoveID, o volume.MoveOutcome, text string) error
}

// Reconcile implements reconcile.Reconciler for the CacheMigration of req. Of an
// unfinished one it reads the volume from the API server: a volume that looks gone
// to an informer may be a new one.
func (m *migrations) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj := &v1alpha1.CacheMigration{}
	err := m.informed.Get(ctx, req.NamespacedName, obj)
	if apierrors.IsNotFound(err) || err == nil && obj.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read CacheMigration %s: %w", req.Name, err)
	}
	if obj.Status.Outcome != "" {
		return m.expire(ctx, obj)
	}
	return ctrl.Result{}, m.supersede(ctx, obj)
}

// expire deletes an ended migration when its time has come.
func (m *migrations) expire(ctx context.Context, obj *v1alpha1.CacheMigration) (ctrl.Result, error) {
	ended := obj.Status.CompletionTime
	if ended.IsZero() {
		ended = obj.CreationTimestamp
	}
	if left := time.Until(ended.Add(m.retention())); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	// Without its object, the request would look like one that nobody has seen.
	if err := m.fulfil(ctx, obj); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, m.remove(ctx, obj, "ended")
}

// fulfil takes back the request that a Prewarm has carried out, if its volume still
// makes it.
func (m *migrations) fulfil(ctx context.Context, obj *v1alpha1.CacheMigration) error {
	if obj.Spec.Purpose != v1alpha1.MigrationPrewarm {
		return nil
	}
	v, err := records.Load(ctx, m.Client, volume.ID(obj.Spec.VolumeName))
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil
	case err != nil:
		return err
	case string(v.UID) != obj.Spec.VolumeUID || v.Spec.PrewarmRequest != obj.Spec.PrewarmRequest:
		return nil
	}
	base := v.DeepCopy()
	v.Spec.PrewarmNode, v.Spec.PrewarmRequest = "", ""
	err = m.Client.Patch(ctx, v, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return records.Error("write CachedVolume "+v.Name, err)
}

func (m *migrations) retention() time.Duration {
	if m.Retention == 0 {
		return defaultRetention
	}
	return m.Retention
}

// supersede ends a migration whose destination has lost the volume, and deletes one
// whose volume is gone.
func (m *migrations) supersede(ctx context.Context, obj *v1alpha1.CacheMigration) error {
	now, err := records.Load(ctx, m.Client, volume.ID(obj.Spec.VolumeName))
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return m.remove(ctx, obj, "its volume is gone")
	case err != nil:
		return err
	case string(now.UID) != obj.Spec.VolumeUID:
		return m.remove(ctx, obj, "its volume is gone, and another one has the name")
	}
	generation := ptr.Deref(now.Status.Generation, 0)
	if why := usurped(obj, now); why != "" {
		return m.remove(ctx, obj, why)
	}
	if generation <= obj.Spec.Generation {
		if obj.Spec.Purpose == v1alpha1.MigrationRead && generation == obj.Spec.Generation && !slices.Contains(now.Status.Readers, obj.Spec.DestinationNode) {
			return m.moves.Finish(ctx, volume.MoveID{Name: obj.Name, UID: string(obj.UID)}, volume.MoveEnded, "the node reads the volume no more")
		}
		if obj.Spec.PrewarmRequest == now.Spec.PrewarmRequest || obj.Spec.Purpose != v1alpha1.MigrationPrewarm {
			return nil
		}
		// Its destination may not run, and another one is to have the name.
		return m.moves.Finish(ctx, volume.MoveID{Name: obj.Name, UID: string(obj.UID)}, volume.MoveEnded, "the request was taken back")
	}
	klog.FromContext(ctx).Info("Ending the migration of a volume that moved on", "owner", now.Status.OwnerNode, "generation", generation)
	return m.moves.Finish(ctx, volume.MoveID{Name: obj.Name, UID: string(obj.UID)}, volume.MoveEnded,
		fmt.Sprintf("the volume went on to node %s, generation %d", now.Status.OwnerNode, generation))
}

// usurped says why a migration has the name of one that is another node's to make, or "". A plugin
// makes it for the ownership of its own node, or for the node that is to be prewarmed; the admission
// policy knows only whose plugin it is. A record out of a backup may be older than a move that goes on.
func usurped(obj *v1alpha1.CacheMigration, now *v1alpha1.CachedVolume) string {
	made, want := obj.Spec.DestinationNode, now.Status.OwnerNode
	switch obj.Spec.Purpose {
	case v1alpha1.MigrationPrewarm:
		if obj.Spec.PrewarmRequest != now.Spec.PrewarmRequest {
			return ""
		}
		want = now.Spec.PrewarmNode
	case v1alpha1.MigrationRead:
		// Each reader has a name of its own. One that reads no more may have come back, or be about to.
		if obj.Name != moves.ReadName(volume.ID(now.Name), obj.Spec.Generation, made) {
			return "it has the name of another node's"
		}
		made = volume.Readers
	case v1alpha1.MigrationMove:
	}
	if ptr.Deref(now.Status.Generation, 0) != obj.Spec.Generation || want == "" || made == want {
		return ""
	}
	return fmt.Sprintf("it is of node %s, and the volume's is %s", made, want)
}

// remove deletes the migration that was judged, and none that has taken its name.
func (m *migrations) remove(ctx context.Context, obj *v1alpha1.CacheMigration, why string) error {
	klog.FromContext(ctx).V(2).Info("Deleting a migration", "reason", why)
	err := m.Client.Delete(ctx, obj, client.Preconditions{UID: &obj.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return records.Error("delete CacheMigration "+obj.Name, err)
}

// of maps a CachedVolume to its migrations.
func (m *migrations) of(ctx context.Context, o client.Object) []reconcile.Request {
	list := &v1alpha1.CacheMigrationList{}
	if err := m.informed.List(ctx, list, client.MatchingFields{migrationIndex: o.GetName()}); err != nil {
		klog.FromContext(ctx).Error(err, "Migrations of a volume not found", "volume", o.GetName())
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
	}
	return out
}

// endings lets migrations pass that are new or have ended; their progress is
// nothing to act on.
func endings() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.CacheMigration)
			after, also := e.ObjectNew.(*v1alpha1.CacheMigration)
			return ok && also && before.Status.Outcome != after.Status.Outcome
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// handovers lets volumes pass that got another generation, request or readers, or went.
func handovers() predicate.Predicate {
	return predicate.Funcs{
		// Every migration has an event of its own when the informers start.
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.CachedVolume)
			after, also := e.ObjectNew.(*v1alpha1.CachedVolume)
			return ok && also && (before.UID != after.UID || before.Spec.PrewarmRequest != after.Spec.PrewarmRequest ||
				!slices.Equal(before.Status.Readers, after.Status.Readers) || ptr.Deref(before.Status.Generation, 0) != ptr.Deref(after.Status.Generation, 0))
		},
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
