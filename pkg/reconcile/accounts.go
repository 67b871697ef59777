package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// accountPause is when the accounts of a node are looked at again one of which is of a session at
// work.
const accountPause = time.Minute

// accounts admits nodes anew that have another key than they were admitted with (states.md, The
// account of an admission).
type accounts struct {
	Config
	informed client.Reader
	// known are the keys of the last pass, by node. One pass runs at a time.
	known map[string]string
}

func setupAccounts(mgr manager.Manager, cfg Config) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("accounts").
		For(&v1alpha1.CachePool{}, builder.WithPredicates(otherKey())).
		WithOptions(controller.Options{SkipNameValidation: ptr.To(true)}).
		Complete(&accounts{Config: cfg, informed: mgr.GetCache(), known: map[string]string{}})
	if err != nil {
		return fmt.Errorf("reconciler of accounts: %w", err)
	}
	return nil
}

// otherKey lets pools pass that are new to the informer, and those whose key has changed.
func otherKey() predicate.Predicate {
	key := func(o client.Object) string {
		pool, ok := o.(*v1alpha1.CachePool)
		if !ok {
			return ""
		}
		return pool.Status.LoginPublicKey
	}
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return key(e.Object) != "" },
		UpdateFunc:  func(e event.UpdateEvent) bool { return key(e.ObjectNew) != "" && key(e.ObjectNew) != key(e.ObjectOld) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// Reconcile implements reconcile.Reconciler for the CachePool of req: it looks at the volumes that
// informers show as published to its node. One that is published later has the account of the key
// that its node has by then.
func (a *accounts) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &v1alpha1.CachePool{}
	err := a.informed.Get(ctx, req.NamespacedName, pool)
	if apierrors.IsNotFound(err) || err == nil && pool.Status.LoginPublicKey == "" {
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read CachePool %s: %w", req.Name, err)
	}
	list := &v1alpha1.CachedVolumeList{}
	if err := a.informed.List(ctx, list, client.MatchingFields{ownerIndex: req.Name}); err != nil {
		return ctrl.Result{}, fmt.Errorf("look for the volumes of node %s: %w", req.Name, err)
	}
	var again time.Duration
	if before, known := a.known[req.Name]; known && before != pool.Status.LoginPublicKey {
		again = cmp.Or(a.AccountPause, accountPause) // a publication under way may have read the key of before
	}
	a.known[req.Name] = pool.Status.LoginPublicKey
	for i := range list.Items {
		after, err := a.renew(ctx, &list.Items[i], req.Name)
		switch {
		case errors.Is(err, volume.ErrBusy):
			after = lockedRetry
		case err != nil: // not returned: the node's other volumes would wait as long as this one fails
			klog.FromContext(ctx).Error(err, "A node was not admitted anew", "volume", list.Items[i].Name, "node", req.Name)
			after = cmp.Or(a.AccountPause, accountPause)
		}
		if after > 0 && (again == 0 || after < again) {
			again = after
		}
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// renew looks at one volume; again is when to look once more.
func (a *accounts) renew(ctx context.Context, obj *v1alpha1.CachedVolume, node string) (again time.Duration, err error) {
	id := volume.ID(obj.Name)
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return lockedRetry, nil
	}
	defer unlock()
	wait, err := a.Volumes.RenewAccount(ctx, id, node)
	if wait {
		again = cmp.Or(a.AccountPause, accountPause)
	}
	return again, err
}
