package moves

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// sourceField is the selectable field by which a node watches the moves away from
// it alone.
const sourceField = "spec.sourceNode"

// volumeIndex finds the moves of one volume among those of this node.
const volumeIndex = "nearflash.volume"

// Defaults of SourceConfig, and the bounds of the pause after a failure.
const (
	defaultWorkers = 4
	defaultResync  = 30 * time.Second
	defaultGrace   = 5 * time.Second

	// announceAfter is how long a lease may take before the destination is told that
	// it is being prepared.
	announceAfter = time.Second

	minBackoff = 100 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// SourceConfig is what a Source works with.
type SourceConfig struct {
	// Node is this node's name.
	Node   string
	Lessor volume.Lessor
	// Client reads from the API server itself.
	Client client.Client
	Now    func() time.Time

	// Workers bounds how many volumes are worked on at the same time; 0 is 4.
	Workers int
	// Resync is the pause between two looks at everything; 0 is 30 s.
	Resync time.Duration
	// Grace is how long a lease is kept whose object is gone; 0 is 5 s. A Begin that
	// is repeated replaces the object, and the retained cache must outlive that.
	Grace time.Duration
}

// Source answers the moves that begin at this node: it lets the Lessor export what is
// asked for and release what is not needed any more.
type Source struct {
	SourceConfig

	cache cache.Cache
	queue workqueue.TypedRateLimitingInterface[volume.ID]

	mu sync.Mutex
	// keys of the moves that are not answered yet: an answer that is tried again
	// must not change the password of a session.
	keys map[string]leaseKey
	// missing are the leases without an object.
	missing map[volume.ID]missing
}

// missing is a lease without an object, and since when this process has known.
type missing struct {
	move  volume.MoveID
	since time.Time
}

// NewSource returns the Source of a node. It works once Run runs.
func NewSource(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, cfg SourceConfig) (*Source, error) {
	c, informer, err := migrations(ctx, config, scheme, sourceField, cfg.Node)
	if err != nil {
		return nil, err
	}
	if err := c.IndexField(ctx, &v1alpha1.CacheMigration{}, volumeIndex, volumeOf); err != nil {
		return nil, fmt.Errorf("watch of CacheMigrations: %w", err)
	}
	s := &Source{
		SourceConfig: cfg.withDefaults(), cache: c, keys: map[string]leaseKey{}, missing: map[volume.ID]missing{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[volume.ID](minBackoff, maxBackoff)),
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    s.changed,
		UpdateFunc: func(_, obj any) { s.changed(obj) },
		DeleteFunc: s.changed,
	})
	if err != nil {
		return nil, fmt.Errorf("watch of CacheMigrations: %w", err)
	}
	return s, nil
}

func (c SourceConfig) withDefaults() SourceConfig {
	if c.Workers == 0 {
		c.Workers = defaultWorkers
	}
	if c.Resync == 0 {
		c.Resync = defaultResync
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	return c
}

func (s *Source) changed(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if move, ok := obj.(*v1alpha1.CacheMigration); ok {
		s.queue.Add(volume.ID(move.Spec.VolumeName))
	}
}

// Run serves until ctx ends. It begins when it knows all objects: before that,
// every lease would look forgotten.
func (s *Source) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.queue.ShutDown()
	defer cancel()

	watching := make(chan error, 1)
	wg.Go(func() { watching <- s.cache.Start(ctx) })
	if !s.cache.WaitForCacheSync(ctx) {
		cancel()
		return s.ended(<-watching)
	}
	for range s.Workers {
		wg.Go(func() {
			for more := true; more; {
				more = s.work(ctx)
			}
		})
	}
	tick := time.NewTicker(s.Resync)
	defer tick.Stop()
	for {
		s.enqueueAll(ctx)
		select {
		case err := <-watching:
			return s.ended(err)
		case <-tick.C:
		}
	}
}

func (s *Source) ended(err error) error {
	if err != nil {
		return fmt.Errorf("watch of CacheMigrations: %w", err)
	}
	return nil
}

// enqueueAll looks at every volume with an object or a lease.
func (s *Source) enqueueAll(ctx context.Context) {
	list, err := s.objects(ctx)
	leases, lerr := s.Lessor.Leases(ctx)
	if err := errors.Join(err, lerr); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Leases are looked at later")
	}
	for _, obj := range list {
		s.queue.Add(volume.ID(obj.Spec.VolumeName))
	}
	for id := range leases {
		s.queue.Add(id)
	}
}

// volumeOf is what volumeIndex is made of.
func volumeOf(o client.Object) []string {
	if move, ok := o.(*v1alpha1.CacheMigration); ok {
		return []string{move.Spec.VolumeName}
	}
	return nil
}

// objects are the moves from this node, with options those of a volume.
func (s *Source) objects(ctx context.Context, opts ...client.ListOption) ([]v1alpha1.CacheMigration, error) {
	var list v1alpha1.CacheMigrationList
	if err := s.cache.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("list of CacheMigrations: %w", err)
	}
	return list.Items, nil
}

// work does one volume; it returns false when there will be no more.
func (s *Source) work(ctx context.Context) bool {
	id, shutdown := s.queue.Get()
	if shutdown {
		return false
	}
	defer s.queue.Done(id)
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("volume", id))
	again, err := s.reconcile(ctx, id)
	switch {
	case ctx.Err() != nil:
		return false
	case errors.Is(err, volume.ErrBusy):
		klog.FromContext(ctx).V(1).Info("Volume is busy", "reason", err.Error())
		s.queue.AddRateLimited(id)
		return true
	case err != nil:
		klog.FromContext(ctx).Error(err, "Lease is looked at again", "failures", s.queue.NumRequeues(id))
		s.queue.AddRateLimited(id)
		return true
	}
	s.queue.Forget(id)
	if again > 0 {
		s.queue.AddAfter(id, again)
	}
	return true
}
