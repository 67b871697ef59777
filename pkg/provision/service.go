// Package provision is the controller's side of volumes: it keeps the record of
// each volume (a CachedVolume object) and the storage server in step.
//
// The record is written before the server is asked to act on it, and an access
// is ended before the record names another owner. The order of the steps, and
// why a crash between any two of them does no harm, is in
// docs/design/states.md under "The record".
//
// Calls for one volume must not run at the same time in one process; the CSI
// layer and pkg/reconcile share a lock per volume. Several processes are kept
// apart by the version of the record: who loses the race gets ErrBusy.
package provision

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// listPage is the number of objects asked for at once.
const listPage = 500

// Config is what a Service works with.
type Config struct {
	// Client reads from the API server itself, never from an informer.
	Client client.Client
	// Backend is the storage server that volumes are made on; nil if there is
	// none, which leaves static volumes.
	Backend backend.Backend
	Events  events.EventRecorder
	// TakenOver returns the last takeover of the storage server, "" if there was none; nil
	// is the same.
	TakenOver func(context.Context) (string, error)
}

// Service is volume.Provisioner over the API server and a storage server.
type Service struct {
	client  client.Client
	backend backend.Backend
	events  events.EventRecorder

	takenOver func(context.Context) (string, error)
}

var _ volume.Provisioner = (*Service)(nil)

// New returns a Service.
func New(c Config) *Service {
	if c.TakenOver == nil {
		c.TakenOver = func(context.Context) (string, error) { return "", nil }
	}
	return &Service{client: c.Client, backend: c.Backend, events: c.Events, takenOver: c.TakenOver}
}

// storage returns the storage server, or an error that wraps kind if none is
// configured.
func (s *Service) storage(kind error) (backend.Backend, error) {
	if s.backend == nil {
		return nil, fmt.Errorf("%w: no storage server is configured for this controller, only static volumes can be used", kind)
	}
	return s.backend, nil
}

// Get implements volume.Provisioner.
func (s *Service) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	obj, err := records.Load(ctx, s.client, id)
	if err != nil {
		return volume.Volume{}, err
	}
	return records.Volume(obj)
}

// List implements volume.Provisioner.
func (s *Service) List(ctx context.Context) ([]volume.Volume, error) {
	out := []volume.Volume{}
	page := v1alpha1.CachedVolumeList{}
	for {
		err := s.client.List(ctx, &page, client.Limit(listPage), client.Continue(page.Continue))
		if err != nil {
			return nil, records.Error("list CachedVolumes", err)
		}
		for i := range page.Items {
			v, err := records.Volume(&page.Items[i])
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		if page.Continue == "" {
			break
		}
	}
	slices.SortFunc(out, func(a, b volume.Volume) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Capacity implements volume.Provisioner. Without a storage server it is 0.
func (s *Service) Capacity(ctx context.Context) (int64, error) {
	if s.backend == nil {
		return 0, nil
	}
	return s.backend.Capacity(ctx)
}

// Expand implements volume.Provisioner. A static volume is grown on its array;
// nothing is left to do here, the node finds the new size.
func (s *Service) Expand(ctx context.Context, id volume.ID, size int64) (int64, error) {
	obj, err := records.Load(ctx, s.client, id)
	if err != nil {
		return 0, err
	}
	if obj.Spec.Static != nil {
		return size, nil
	}
	storage, err := s.storage(volume.ErrUnavailable)
	if err != nil {
		return 0, err
	}
	now, err := storage.Expand(ctx, id, size)
	if err != nil {
		return 0, fmt.Errorf("expand volume %s: %w", id, err)
	}
	err = records.UpdateObject(ctx, s.client, id, func(obj *v1alpha1.CachedVolume) error {
		if c := obj.Spec.CapacityBytes; c == nil || *c < now {
			obj.Spec.CapacityBytes = &now
		}
		return nil
	})
	return now, err
}

// initiator returns the iSCSI initiator name of a node, or "" if no nearflash node plugin
// has reported one for it. Errors: ErrUnavailable.
func (s *Service) initiator(ctx context.Context, node string) (string, error) {
	if node == "" {
		return "", nil
	}
	pool := &v1alpha1.CachePool{}
	err := s.client.Get(ctx, types.NamespacedName{Name: node}, pool)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", records.Error("read CachePool "+node, err)
	}
	return pool.Status.InitiatorIQN, nil
}
