// Package provision is the controller's side of volumes: it keeps the record of
// each volume (a CachedVolume object) and the storage servers in step.
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
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Config is what a Service works with.
type Config struct {
	// Client reads from the API server itself, never from an informer.
	Client client.Client
	// Servers are the storage servers that volumes are made on, by name, "" being the default
	// one. Without any there are static volumes, and those of Origins.
	Servers map[string]Server
	// Origins makes volumes of other CSI drivers the origins of ours; nil if that is not
	// enabled.
	Origins Origins
	Events  events.EventRecorder
	// Driver is the name of this driver, by which kubelets name its volumes.
	Driver string
	// LoginKey returns the key of which the accounts of the storage servers are derived; nil
	// derives none.
	LoginKey func(context.Context) (*keyagreement.Key, error)
	// Now tells the time; nil is the machine's.
	Now func() time.Time
	// FreezePoll is the pause between two looks at a freeze; 0 is 100 ms.
	FreezePoll time.Duration
}

// Server is a storage server.
type Server struct {
	Backend backend.Backend
	// TakenOver returns the last takeover of it, "" if there was none; nil is the same.
	TakenOver func(context.Context) (string, error)
}

// Service is volume.Provisioner over the API server, storage servers, and volumes of other CSI
// drivers.
type Service struct {
	client  client.Client
	servers map[string]Server
	origins Origins
	events  events.EventRecorder
	driver  string

	loginKey func(context.Context) (*keyagreement.Key, error)
	now      func() time.Time
	hotSets  *records.HotSets
	holds    holds
	refusals refusals
	silences silences

	freezePoll time.Duration
}

var _ volume.Provisioner = (*Service)(nil)

// New returns a Service.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Service{
		client: c.Client, servers: c.Servers, origins: c.Origins, events: c.Events, driver: c.Driver,
		loginKey: c.LoginKey, now: c.Now, hotSets: records.NewHotSets(c.Client), freezePoll: cmp.Or(c.FreezePoll, freezePoll),
	}
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
	var unread error
	err := records.Pages(ctx, s.client, &page, "CachedVolumes", func() bool {
		for i := range page.Items {
			v, err := records.Volume(&page.Items[i])
			if err != nil {
				unread = err
				return false
			}
			out = append(out, v)
		}
		return true
	})
	if err = errors.Join(err, unread); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b volume.Volume) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
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
	if obj.Status.OwnerNode == volume.Readers && obj.Status.Publication == v1alpha1.PublicationPublished {
		return 0, fmt.Errorf("%w: volume %s is read by %s, and what many read does not change: expand it while nobody has it", volume.ErrInUse, id, volume.NamesOfReaders(obj.Status.Readers))
	}
	storage, err := s.storage(placeOf(obj), volume.ErrUnavailable)
	if err != nil {
		return 0, err
	}
	now, err := storage.Expand(ctx, id, size)
	if err != nil {
		return 0, fmt.Errorf("expand volume %s: %w", id, err)
	}
	return now, s.recordSize(ctx, id, now)
}

// recordSize writes down how large a volume is, if that is more than its record says.
func (s *Service) recordSize(ctx context.Context, id volume.ID, size int64) error {
	return records.UpdateObject(ctx, s.client, id, func(obj *v1alpha1.CachedVolume) error {
		if c := obj.Spec.CapacityBytes; c == nil || *c < size {
			obj.Spec.CapacityBytes = &size
		}
		return nil
	})
}
