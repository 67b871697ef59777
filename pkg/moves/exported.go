package moves

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/volume"
)

// destinationField is the selectable field by which a node watches the moves to it
// alone.
const destinationField = "spec.destinationNode"

// exportedTimeout bounds the look at one object: the hydrations of all volumes wait for it.
const exportedTimeout = time.Second

// leaseStates are what the sources of a node's moves say, as a watch shows it.
type leaseStates struct {
	synced func() bool

	mu sync.Mutex
	m  map[types.UID]v1alpha1.ExportState
}

// Watch makes Exported know the moves to node without asking. The returned function runs
// the watch until its context ends; Exported works before and without it.
func (d *Destination) Watch(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, node string) (run func(context.Context) error, err error) {
	c, informer, err := migrations(ctx, config, scheme, destinationField, node)
	if err != nil {
		return nil, err
	}
	known := &leaseStates{m: map[types.UID]v1alpha1.ExportState{}}
	handlers, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    known.is,
		UpdateFunc: func(_, obj any) { known.is(obj) },
		DeleteFunc: known.gone,
	})
	if err != nil {
		return nil, fmt.Errorf("watch of CacheMigrations: %w", err)
	}
	known.synced = handlers.HasSynced
	d.known = known
	return func(ctx context.Context) error {
		if err := c.Start(ctx); err != nil {
			return fmt.Errorf("watch of CacheMigrations: %w", err)
		}
		return nil
	}, nil
}

// migrations is a cache of the CacheMigrations whose field is the node.
func migrations(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, field, node string) (cache.Cache, cache.Informer, error) {
	watching := rest.CopyConfig(config)
	watching.Timeout = 0 // it would end the watch again and again
	c, err := cache.New(watching, cache.Options{
		Scheme: scheme, Mapper: kube.NewMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.CacheMigration{}: {Field: fields.OneTermEqualSelector(field, node)},
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watch of CacheMigrations: %w", err)
	}
	informer, err := c.GetInformer(ctx, &v1alpha1.CacheMigration{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, nil, fmt.Errorf("watch of CacheMigrations: %w", err)
	}
	return c, informer, nil
}

func (l *leaseStates) is(obj any) {
	if move, ok := obj.(*v1alpha1.CacheMigration); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.m[move.UID] = move.Status.Source.State
	}
}

func (l *leaseStates) gone(obj any) {
	if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if move, ok := obj.(*v1alpha1.CacheMigration); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.m, move.UID)
	}
}

// state is what the source of a move says; known is false if the watch has not shown
// the move, or not any more.
func (l *leaseStates) state(m volume.MoveID) (state v1alpha1.ExportState, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state, known = l.m[types.UID(m.UID)]
	return state, known
}

// Exported implements volume.Moves. The word of the source comes from the watch, if there
// is one; that an object is gone is looked up, because a watch may not know a new one
// yet.
func (d *Destination) Exported(ctx context.Context, m volume.MoveID) (bool, error) {
	if d.known != nil {
		state, known := d.known.state(m)
		if known {
			return serves(state), nil
		}
		if !d.known.synced() {
			return true, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, exportedTimeout)
	defer cancel()
	obj, err := load(ctx, d.client, m)
	if err != nil || obj == nil {
		return err != nil, err
	}
	return serves(obj.Status.Source.State), nil
}

// serves reports whether a source that says so may still be read from. One that has not
// answered yet has given nothing up; its answer may only not have arrived here.
func serves(s v1alpha1.ExportState) bool {
	return s != v1alpha1.ExportStateRefused && s != v1alpha1.ExportStateReleased
}
