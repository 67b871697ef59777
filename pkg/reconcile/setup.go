package reconcile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/provision"
)

const (
	// handleIndex finds PersistentVolumes by the volume's ID.
	handleIndex = "nearflash.volumeHandle"
	// retainedCacheIndex finds CachedVolumes by the nodes that keep caches of them.
	retainedCacheIndex = "nearflash.retainedCacheNode"
	// ownerIndex finds CachedVolumes by the nodes that they are published to.
	ownerIndex = "nearflash.ownerNode"
	// migrationIndex finds CacheMigrations by their volume.
	migrationIndex = "nearflash.migrationVolume"
)

// Setup adds the reconciler to mgr, which runs it while it leads. What changed
// while nobody led is found when the informers start.
func Setup(ctx context.Context, mgr manager.Manager, cfg Config) error {
	r := &Reconciler{Config: cfg, informed: mgr.GetCache()}
	if err := r.index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("cachedvolume").
		For(&v1alpha1.CachedVolume{}).
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(r.volumeOf), builder.WithPredicates(namings())).
		WatchesMetadata(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.retained), builder.WithPredicates(deletions())).
		// A process may set up several managers, one after the other.
		WithOptions(controller.Options{SkipNameValidation: ptr.To(true)}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("reconciler of CachedVolumes: %w", err)
	}
	for _, s := range []sweep{
		{cfg.SweepPause, sweepPause, func(ctx context.Context) error { return cfg.Volumes.SweepCuts(ctx, cfg.Locks.TryLock) },
			"What was cut and never accepted could not be looked for"},
		{cfg.ExpansionPause, expansionPause, func(ctx context.Context) error { return cfg.Volumes.FinishExpansions(ctx, cfg.Locks.TryLock) },
			"Claims below volumes that have grown could not be brought up to date"},
	} {
		if err := mgr.Add(s); err != nil {
			return fmt.Errorf("sweeps of volumes: %w", err)
		}
	}
	if err := setupPools(ctx, mgr, cfg); err != nil {
		return err
	}
	if err := setupAccounts(mgr, cfg); err != nil {
		return err
	}
	return setupMigrations(mgr, cfg)
}

// setupMigrations adds the reconciler of CacheMigrations. Progress of a migration
// does not wake it.
func setupMigrations(mgr manager.Manager, cfg Config) error {
	api, err := client.NewWithWatch(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme()})
	if err != nil {
		return fmt.Errorf("client for CacheMigrations: %w", err)
	}
	m := &migrations{
		Config: cfg, informed: mgr.GetCache(),
		moves: moves.NewDestination(api, mgr.GetEventRecorder("nearflash-controller"), time.Now, 0, 0),
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("cachemigration").
		For(&v1alpha1.CacheMigration{}, builder.WithPredicates(endings())).
		Watches(&v1alpha1.CachedVolume{}, handler.EnqueueRequestsFromMapFunc(m.of), builder.WithPredicates(handovers())).
		WithOptions(controller.Options{SkipNameValidation: ptr.To(true)}).
		Complete(m)
	if err != nil {
		return fmt.Errorf("reconciler of CacheMigrations: %w", err)
	}
	return nil
}

// index prepares what the informers are asked for.
func (r *Reconciler) index(ctx context.Context, in client.FieldIndexer) error {
	err := in.IndexField(ctx, &corev1.PersistentVolume{}, handleIndex, func(o client.Object) []string {
		pv, ok := o.(*corev1.PersistentVolume)
		if !ok || r.handle(pv) == "" {
			return nil
		}
		return []string{r.handle(pv)}
	})
	if err != nil {
		return fmt.Errorf("index PersistentVolumes: %w", err)
	}
	err = in.IndexField(ctx, &v1alpha1.CachedVolume{}, retainedCacheIndex, func(o client.Object) []string {
		obj, ok := o.(*v1alpha1.CachedVolume)
		if !ok {
			return nil
		}
		return retainingNodes(obj)
	})
	if err != nil {
		return fmt.Errorf("index CachedVolumes: %w", err)
	}
	err = in.IndexField(ctx, &v1alpha1.CachedVolume{}, ownerIndex, func(o client.Object) []string {
		obj, ok := o.(*v1alpha1.CachedVolume)
		if !ok {
			return nil
		}
		return provision.AccountsOf(obj)
	})
	if err != nil {
		return fmt.Errorf("index CachedVolumes: %w", err)
	}
	err = in.IndexField(ctx, &v1alpha1.CacheMigration{}, migrationIndex, func(o client.Object) []string {
		obj, ok := o.(*v1alpha1.CacheMigration)
		if !ok {
			return nil
		}
		return []string{obj.Spec.VolumeName}
	})
	if err != nil {
		return fmt.Errorf("index CacheMigrations: %w", err)
	}
	return nil
}

// volumeOf maps a PersistentVolume to its CachedVolume.
func (r *Reconciler) volumeOf(_ context.Context, o client.Object) []reconcile.Request {
	pv, ok := o.(*corev1.PersistentVolume)
	if !ok || r.handle(pv) == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: r.handle(pv)}}}
}

// retained maps a Node to the CachedVolumes that it keeps caches of.
func (r *Reconciler) retained(ctx context.Context, o client.Object) []reconcile.Request {
	list := &v1alpha1.CachedVolumeList{}
	if err := r.informed.List(ctx, list, client.MatchingFields{retainedCacheIndex: o.GetName()}); err != nil {
		klog.FromContext(ctx).Error(err, "Volumes of a deleted node not found", "node", o.GetName())
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
	}
	return out
}

// deletions lets only the disappearance of an object pass.
func deletions() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
