package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/provision"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// poolPause is the pause between two looks at what informers show, and poolGrace how long
	// a node is gone before its pool is judged, and how long until it is judged again.
	poolPause, poolGrace = 30 * time.Second, 10 * time.Minute

	actionKeepPool = "KeepPool"
)

// poolSweeper deletes the pools of nodes that left the cluster, while it leads (states.md, When
// a pool may go).
type poolSweeper struct {
	Config
	informed client.Reader
	events   events.EventRecorder

	mu sync.Mutex
	// gone are the pools whose node is not there, by name.
	gone map[string]*gonePool
}

// gonePool is what the process remembers of one.
type gonePool struct {
	uid types.UID
	// next is when it may be judged by live answers.
	next time.Time
	// said is the last such judgement; zero before the first.
	said poolVerdict
}

func setupPools(ctx context.Context, mgr manager.Manager, cfg Config) error {
	s := &poolSweeper{Config: cfg, informed: mgr.GetCache(), events: mgr.GetEventRecorder("nearflash-controller"), gone: map[string]*gonePool{}}
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	informer, err := mgr.GetCache().GetInformer(ctx, node)
	if err != nil {
		return fmt.Errorf("informer of Nodes: %w", err)
	}
	// A node that comes and goes between two looks was there.
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: s.seen, DeleteFunc: s.seen})
	if err != nil {
		return fmt.Errorf("events of Nodes: %w", err)
	}
	err = mgr.Add(sweep{cfg.PoolPause, poolPause, s.sweep, "Pools of nodes that left the cluster could not be looked at"})
	if err != nil {
		return fmt.Errorf("sweeper of pools: %w", err)
	}
	return nil
}

func (s *poolSweeper) grace() time.Duration {
	if s.PoolGrace == 0 {
		return poolGrace
	}
	return s.PoolGrace
}

// seen forgets since when a node is gone.
func (s *poolSweeper) seen(o any) {
	if late, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = late.Obj
	}
	if node, ok := o.(client.Object); ok {
		s.forget(node.GetName())
	}
}

func (s *poolSweeper) forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gone, node)
}

// remember returns what is known of a pool whose node is gone. Another pool of the name begins
// anew.
func (s *poolSweeper) remember(pool *v1alpha1.CachePool) gonePool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gone[pool.Name]
	if g == nil || g.uid != pool.UID {
		g = &gonePool{uid: pool.UID, next: time.Now().Add(s.grace())}
		s.gone[pool.Name] = g
	}
	return *g
}

// judged remembers a judgement, and when the next is due.
func (s *poolSweeper) judged(pool *v1alpha1.CachePool, v poolVerdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.gone[pool.Name]; g != nil && g.uid == pool.UID {
		g.said, g.next = v, time.Now().Add(s.grace())
	}
}

// restart has a pool wait anew.
func (s *poolSweeper) restart(pool *v1alpha1.CachePool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.gone[pool.Name]; g != nil {
		g.next = time.Now().Add(s.grace())
	}
}

// sweep looks at all pools as informers show them, and judges those that nothing is seen to
// need. One pool that fails does not hold up the others.
func (s *poolSweeper) sweep(ctx context.Context) error {
	list := &v1alpha1.CachePoolList{}
	if err := s.informed.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list CachePools: %w", err)
	}
	var errs []error
	var gone []*v1alpha1.CachePool
	for i := range list.Items {
		pool := &list.Items[i]
		exists, err := nodeExists(ctx, s.informed, pool.Name)
		switch {
		case err != nil:
			errs = append(errs, err)
		case exists:
			s.forget(pool.Name)
			errs = append(errs, s.takeBack(ctx, pool))
		default:
			gone = append(gone, pool)
		}
	}
	due, err := s.look(ctx, gone)
	return errors.Join(append(errs, err, s.judge(ctx, due))...)
}

// look says why pools are kept for which informers show a reason, and returns those that are to
// be judged.
func (s *poolSweeper) look(ctx context.Context, gone []*v1alpha1.CachePool) (due []*v1alpha1.CachePool, err error) {
	if len(gone) == 0 {
		return nil, nil
	}
	volumes := &v1alpha1.CachedVolumeList{}
	if err := s.informed.List(ctx, volumes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list CachedVolumes: %w", err)
	}
	isGone, owned := nodesOf(gone), map[string][]v1alpha1.CachedVolume{}
	for i := range volumes.Items {
		if owner := volumes.Items[i].Status.OwnerNode; isGone[owner] {
			owned[owner] = append(owned[owner], volumes.Items[i])
		}
	}
	var errs []error
	for _, pool := range gone {
		known := s.remember(pool)
		v := decidePool(poolFacts{Pool: pool, Owned: owned[pool.Name]})
		if v.Reason == v1alpha1.ReasonNodeMayReturn {
			if !time.Now().Before(known.next) {
				due = append(due, pool)
				continue
			}
			if known.said.Reason != "" {
				v = known.said // the storage was asked
			}
		}
		errs = append(errs, s.say(ctx, pool, v))
	}
	return due, errors.Join(errs...)
}

// judge asks for everything anew, and deletes the pools that nothing needs. The pools are read
// first: what is deleted is that version.
func (s *poolSweeper) judge(ctx context.Context, due []*v1alpha1.CachePool) error {
	var read []*v1alpha1.CachePool
	var errs []error
	for _, pool := range due {
		now := &v1alpha1.CachePool{}
		err := s.Client.Get(ctx, types.NamespacedName{Name: pool.Name}, now)
		switch {
		case err == nil && now.UID == pool.UID:
			read = append(read, now)
		case client.IgnoreNotFound(err) != nil:
			errs = append(errs, records.Error("read CachePool "+pool.Name, err))
		}
	}
	if len(read) == 0 {
		return errors.Join(errs...)
	}
	named, err := s.Volumes.NamedNodes(ctx, nodesOf(read))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, pool := range read {
		errs = append(errs, s.judgeOne(ctx, pool, named))
	}
	return errors.Join(errs...)
}

func (s *poolSweeper) judgeOne(ctx context.Context, pool *v1alpha1.CachePool, named *provision.Named) error {
	f := poolFacts{Pool: pool, Owned: named.Owned[pool.Name], Waited: saysGone(pool)}
	f.Admitted, f.Unknown = named.Admitted(pool)
	var err error
	if f.Present, err = nodeExists(ctx, s.Client, pool.Name); err != nil {
		return err
	}
	v := decidePool(f)
	switch {
	case v.Present:
		s.forget(pool.Name)
		return nil
	case v.Delete:
		return s.remove(ctx, pool)
	}
	s.judged(pool, v)
	return s.say(ctx, pool, v)
}

// remove deletes the pool that was judged, and no other version of it.
func (s *poolSweeper) remove(ctx context.Context, pool *v1alpha1.CachePool) error {
	err := s.Client.Delete(ctx, pool, client.Preconditions{UID: &pool.UID, ResourceVersion: &pool.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err == nil {
		s.forget(pool.Name)
		klog.FromContext(ctx).Info("Deleted the pool of a node that left the cluster", "node", pool.Name)
	}
	return records.Error("delete CachePool "+pool.Name, err)
}

// say writes into a pool why it is kept, if it does not say so.
func (s *poolSweeper) say(ctx context.Context, pool *v1alpha1.CachePool, v poolVerdict) error {
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionNodeGone); c != nil && c.Reason == v.Reason && c.Message == v.Message {
		return nil
	}
	// The informer may lag behind a node that has just come.
	exists, err := nodeExists(ctx, s.Client, pool.Name)
	if exists || err != nil {
		s.forget(pool.Name)
		return err
	}
	told, fresh := false, false
	err = s.update(ctx, pool, func(st *v1alpha1.CachePoolStatus) {
		before := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionNodeGone)
		fresh, told = before == nil, v.Reason == v1alpha1.ReasonNodeMayReturn || before != nil && before.Reason == v.Reason
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: v1alpha1.ConditionNodeGone, Status: metav1.ConditionTrue, Reason: v.Reason, Message: v.Message})
	})
	if fresh { // a publication may have read the pool without the word
		s.restart(pool)
	}
	if err == nil && !told {
		s.events.Eventf(pool, nil, corev1.EventTypeWarning, v1alpha1.ConditionNodeGone, actionKeepPool, "%s", v.Message)
	}
	return err
}

// takeBack removes the word that a node is gone.
func (s *poolSweeper) takeBack(ctx context.Context, pool *v1alpha1.CachePool) error {
	if meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionNodeGone) == nil {
		return nil
	}
	return s.update(ctx, pool, func(st *v1alpha1.CachePoolStatus) {
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionNodeGone)
	})
}

// update changes the status of a pool, if it is there.
func (s *poolSweeper) update(ctx context.Context, pool *v1alpha1.CachePool, change func(*v1alpha1.CachePoolStatus)) error {
	err := records.UpdatePool(ctx, s.Client, pool.Name, change)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// nodesOf are the nodes of pools.
func nodesOf(pools []*v1alpha1.CachePool) map[string]bool {
	out := map[string]bool{}
	for _, p := range pools {
		out[p.Name] = true
	}
	return out
}

func saysGone(pool *v1alpha1.CachePool) bool {
	return meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionNodeGone)
}
