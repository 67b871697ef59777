package records

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ownerField is the selectable field by which a node watches its own volumes
// alone: a cluster may have many more.
const ownerField = "status.ownerNode"

// prewarmField is the selectable field by which a node watches the requests to
// prewarm it.
const prewarmField = "spec.prewarmNode"

// Owned are the records of the volumes that one node owns, or is to be warmed for,
// kept by a watch. What it shows may be a moment old.
type Owned struct {
	cache cache.Cache

	mu      sync.Mutex
	changed []chan struct{}
}

// NewOwned returns the records of node's volumes. They appear once Run runs.
func NewOwned(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, node string) (*Owned, error) {
	return newOwned(ctx, config, scheme, ownerField, node)
}

// NewPrewarms returns the records of the volumes that ask for their cache on node
// before they move. They appear once Run runs.
func NewPrewarms(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, node string) (*Owned, error) {
	return newOwned(ctx, config, scheme, prewarmField, node)
}

func newOwned(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, field, node string) (*Owned, error) {
	c, err := cache.New(config, cache.Options{
		Scheme: scheme, Mapper: kube.NewMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.CachedVolume{}: {Field: fields.OneTermEqualSelector(field, node)},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch of CachedVolumes: %w", err)
	}
	o := &Owned{cache: c}
	informer, err := c.GetInformer(ctx, &v1alpha1.CachedVolume{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch of CachedVolumes: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { o.signal() },
		UpdateFunc: o.updated,
		DeleteFunc: func(any) { o.signal() },
	})
	if err != nil {
		return nil, fmt.Errorf("watch of CachedVolumes: %w", err)
	}
	return o, nil
}

// Run keeps the watch until ctx ends.
func (o *Owned) Run(ctx context.Context) error {
	if err := o.cache.Start(ctx); err != nil {
		return fmt.Errorf("watch of CachedVolumes: %w", err)
	}
	return nil
}

// updated signals what was asked for, and not what the node itself has reported.
func (o *Owned) updated(before, after any) {
	a, okA := before.(*v1alpha1.CachedVolume)
	b, okB := after.(*v1alpha1.CachedVolume)
	if okA && okB && a.Generation == b.Generation && a.Status.Publication == b.Status.Publication {
		return
	}
	o.signal()
}

func (o *Owned) signal() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.changed {
		select {
		case c <- struct{}{}:
		default: // somebody will look anyway
		}
	}
}

// Changed returns a new channel that receives when something that was asked for has
// changed.
func (o *Owned) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := make(chan struct{}, 1)
	o.changed = append(o.changed, c)
	return c
}

// List returns the records; none before the watch has begun. A record that
// cannot be read as a volume is left out, and logged.
func (o *Owned) List(ctx context.Context) ([]volume.Volume, error) {
	list, err := o.Objects(ctx)
	if err != nil {
		return nil, err
	}
	var out []volume.Volume
	for i := range list {
		v, err := Volume(&list[i])
		if err != nil {
			klog.FromContext(ctx).Error(err, "Record is left out", "volume", list[i].Name)
			continue
		}
		out = append(out, v)
	}
	return out, nil
}

// Objects is List with the API's objects.
func (o *Owned) Objects(ctx context.Context) ([]v1alpha1.CachedVolume, error) {
	var list v1alpha1.CachedVolumeList
	err := o.cache.List(ctx, &list)
	var early *cache.ErrCacheNotStarted
	if errors.As(err, &early) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list of CachedVolumes: %w", err)
	}
	return list.Items, nil
}
