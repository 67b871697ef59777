package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Named is what names nodes: records by their owner, and the storage by whom it admits.
type Named struct {
	// Owned are the volumes whose record has a node as the owner.
	Owned map[string][]v1alpha1.CachedVolume

	// admitted are the hosts that a storage admits, and unknown is why some may be missing.
	admitted map[place]map[string]volume.ID
	unknown  error
}

// NamedNodes reads from the API server which records have one of the nodes as the owner, and
// then asks the storage whom it admits. Errors: ErrUnavailable.
func (s *Service) NamedNodes(ctx context.Context, nodes map[string]bool) (*Named, error) {
	n := &Named{Owned: map[string][]v1alpha1.CachedVolume{}, admitted: map[place]map[string]volume.ID{}}
	page := v1alpha1.CachedVolumeList{}
	err := records.Pages(ctx, s.client, &page, "CachedVolumes", func() bool {
		for i := range page.Items {
			obj := &page.Items[i]
			if owner := obj.Status.OwnerNode; nodes[owner] {
				n.Owned[owner] = append(n.Owned[owner], *obj)
			}
			if n.unknown == nil {
				n.unknown = s.reachable(obj)
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for _, at := range s.configured() {
		storage, err := s.storage(at, volume.ErrUnavailable)
		if err == nil {
			err = s.within(ctx, at, serverPatience, func(ctx context.Context) (err error) {
				n.admitted[at], err = storage.AdmittedHosts(ctx)
				return err
			})
		}
		if err != nil {
			n.unknown = errors.Join(n.unknown, fmt.Errorf("whom %s admits: %w", at, err))
		}
	}
	return n, nil
}

// reachable returns why what a record's volume lies on cannot be asked, nil if it is configured.
func (s *Service) reachable(obj *v1alpha1.CachedVolume) error {
	if obj.Spec.Static != nil {
		return nil
	}
	if _, err := s.storage(placeOf(obj), volume.ErrUnavailable); err != nil {
		return fmt.Errorf("what volume %s lies on cannot be asked: %w", obj.Name, err)
	}
	return nil
}

// allReachable returns an error if a record names what is not configured: something that all others
// do not have may be there. It reads all records. Errors: ErrUnavailable.
func (s *Service) allReachable(ctx context.Context) error {
	page := v1alpha1.CachedVolumeList{}
	var missing error
	err := records.Pages(ctx, s.client, &page, "CachedVolumes", func() bool {
		for i := range page.Items {
			if missing = s.reachable(&page.Items[i]); missing != nil {
				return false
			}
		}
		return true
	})
	return errors.Join(err, missing)
}

// Admitted names a volume that a storage admits the node of a pool to, "" if there is none. No
// answer is an error: it proves nothing.
func (n *Named) Admitted(pool *v1alpha1.CachePool) (volume.ID, error) {
	for at, hosts := range n.admitted {
		host := pool.Status.InitiatorIQN
		if at.origin {
			host = pool.Name
		}
		if id := hosts[strings.ToLower(host)]; id != "" {
			return id, nil
		}
	}
	return "", n.unknown
}
