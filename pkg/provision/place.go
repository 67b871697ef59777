package provision

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Origins is the backend of volumes whose origin is another CSI driver's; pkg/backend/csi has
// it.
type Origins interface {
	backend.Backend
	// Fenced reports whether the end of an admission keeps a node out of a volume, as Export says of
	// one that is admitted. Errors: ErrInvalid, ErrUnavailable.
	Fenced(ctx context.Context, id volume.ID, o volume.Origin) (bool, error)
	// Growing returns the volumes of whose expansion the node's part is not said to be done, with
	// the size in bytes that they grow to. Errors: ErrUnavailable.
	Growing(ctx context.Context) (map[volume.ID]int64, error)
	// FinishExpand says of a volume that the node's part of its expansion is done.
	// Errors: ErrNotFound, ErrBusy, ErrUnavailable.
	FinishExpand(ctx context.Context, id volume.ID) error
}

// place is where a volume's origin lies: on a storage server, or with another CSI driver. It is
// the record's to say, and never changes (states.md, Several storage servers).
type place struct {
	// origin is true with another CSI driver.
	origin bool
	// server is the name of the storage server, "" that of the default one.
	server string
}

// withOrigin returns the place of volumes over those of other CSI drivers.
func withOrigin() place { return place{origin: true} }

// onServer returns the place of volumes of a storage server.
func onServer(name string) place { return place{server: name} }

// placeOf returns the place of a record's volume; that of a static LUN is the default storage
// server, and means nothing.
func placeOf(obj *v1alpha1.CachedVolume) place {
	return place{origin: obj.Spec.Origin != nil, server: obj.Spec.Target}
}

// placeFor is placeOf for what a record is made of.
func placeFor(spec volume.Spec) place { return place{origin: spec.Origin != nil, server: spec.Target} }

// String is for errors.
func (at place) String() string {
	switch {
	case at.origin:
		return "another CSI driver"
	case at.server != "":
		return "storage server " + at.server
	}
	return "the default storage server"
}

// class says how a StorageClass chooses the place.
func (at place) class() string {
	switch {
	case at.origin:
		return "backend " + records.BackendCSI
	case at.server != "":
		return "backend " + records.BackendISCSI + " and target " + at.server
	}
	return "backend " + records.BackendISCSI + " and no target"
}

// storage returns what the volumes of a place are on, or an error that wraps kind if that is
// not configured.
func (s *Service) storage(at place, kind error) (backend.Backend, error) {
	if at.origin && s.origins == nil {
		return nil, fmt.Errorf("%w: volumes over those of other CSI drivers (backend: csi) are not enabled for this controller: set the Helm value origins.enabled to true", kind)
	}
	if at.origin {
		return s.origins, nil
	}
	if server, ok := s.servers[at.server]; ok {
		return server.Backend, nil
	}
	var accepted []string
	for _, one := range s.onServers() {
		if one.server == "" {
			accepted = append(accepted, "no target (the default server)")
		} else {
			accepted = append(accepted, one.server)
		}
	}
	switch {
	case len(accepted) == 0 && at.server == "":
		return nil, fmt.Errorf("%w: no storage server is configured for this controller, only static volumes can be used", kind)
	case len(accepted) == 0:
		return nil, fmt.Errorf("%w: target %q: no storage server is configured for this controller", kind, at.server)
	case at.server == "":
		return nil, fmt.Errorf("%w: target is missing, and no default storage server is configured for this controller; accepted are %s", kind, strings.Join(accepted, ", "))
	}
	return nil, fmt.Errorf("%w: target %q: no storage server of that name is configured for this controller; accepted are %s", kind, at.server, strings.Join(accepted, ", "))
}

// onServers returns the places of all storage servers, in the order of their names.
func (s *Service) onServers() (out []place) {
	for _, name := range slices.Sorted(maps.Keys(s.servers)) {
		out = append(out, onServer(name))
	}
	return out
}

// configured returns what there is that volumes can be on, for a volume without a record.
func (s *Service) configured() []place {
	out := s.onServers()
	if s.origins != nil {
		out = append(out, withOrigin())
	}
	return out
}

// unserved reports whether nothing but static volumes can be of a place: there is no default
// storage server, and nobody who could be asked.
func (s *Service) unserved(at place) bool {
	_, ok := s.servers[""]
	return at == onServer("") && !ok
}

// find returns the place of a volume that is to be published, before anything else is asked: the
// storage is asked for admissions before the record is judged (inspect). A volume without a record
// is looked for. Errors: ErrNotFound, ErrFenced, ErrUnavailable.
func (s *Service) find(ctx context.Context, id volume.ID, spec *volume.Spec) (place, error) {
	switch {
	case spec != nil && spec.Static != nil:
		return onServer(""), nil
	case spec != nil && spec.Origin != nil:
		return withOrigin(), nil
	}
	obj, err := records.Load(ctx, s.client, id)
	switch {
	case err == nil:
		return placeOf(obj), nil
	case !errors.Is(err, volume.ErrNotFound):
		return place{}, err
	case spec != nil && spec.Target != "":
		return onServer(spec.Target), nil
	}
	found, unknown := s.locate(ctx, id, s.onServers())
	switch {
	case spec == nil && len(found) > 0:
		return place{}, fmt.Errorf("%w: if %s has it and its record was lost: docs/how-to/recover-a-lost-cluster.md", err, found[0])
	case spec == nil:
		return place{}, err
	case unknown != nil:
		return place{}, fmt.Errorf("%w; the volumeAttribute target can name the server that has it", unknown)
	case len(found) == 0:
		return place{}, fmt.Errorf("%w: volume %s has no record, and no storage server has it", volume.ErrNotFound, id)
	}
	return found[0], several(id, found)
}

// locate asks for a volume that has no record, and returns where it is. With an error it may be
// elsewhere too: what does not answer proves nothing. Errors: ErrUnavailable.
func (s *Service) locate(ctx context.Context, id volume.ID, places []place) (found []place, err error) {
	err = s.allReachable(ctx)
	for _, at := range places {
		storage, unknown := s.storage(at, volume.ErrUnavailable)
		if unknown == nil {
			_, unknown = storage.Access(ctx, id)
		}
		switch {
		case unknown == nil:
			found = append(found, at)
		case !errors.Is(unknown, volume.ErrNotFound):
			err = errors.Join(err, fmt.Errorf("whether %s has volume %s, which has no record: %w", at, id, unknown))
		}
	}
	return found, err
}

// several refuses a volume without a record that is in several places: nobody knows which of them
// it is.
func several(id volume.ID, found []place) error {
	if len(found) < 2 {
		return nil
	}
	var names []string
	for _, at := range found {
		names = append(names, at.String())
	}
	return fmt.Errorf("%w: volume %s has no record, and is on %s: nobody knows which of them is meant; take it, or the server, away where it is not", volume.ErrFenced, id, strings.Join(names, " and on "))
}

// hostName returns the name by which a storage knows a node: of a storage server the iSCSI
// initiator name, "" if no nearflash node plugin has reported one; else the node's own.
// Errors: ErrUnavailable.
func (s *Service) hostName(ctx context.Context, at place, node string) (string, error) {
	if at.origin || node == "" {
		return node, nil
	}
	pool, err := s.pool(ctx, node)
	if pool == nil || err != nil {
		return "", err
	}
	return pool.Status.InitiatorIQN, nil
}

// host is a node as a storage knows it.
type host struct {
	// Name is what hostName returns.
	Name string
	// LoginKey is the public half of the node's key, "" if it has none.
	LoginKey string
}

// newOwner is hostName for a node that is to have a volume: its plugin must be there. A pool that
// says that its node is gone may be about to be deleted; the word is taken back before anything
// else is written (states.md, When a pool may go). Errors: ErrNodeNotFound, ErrUnavailable,
// ErrBusy.
func (s *Service) newOwner(ctx context.Context, at place, node string) (host, error) {
	pool, err := s.pool(ctx, node)
	if pool != nil && meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionNodeGone) {
		err = records.UpdatePool(ctx, s.client, node, func(st *v1alpha1.CachePoolStatus) {
			meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionNodeGone)
		})
		if errors.Is(err, volume.ErrNotFound) {
			pool, err = nil, nil
		}
	}
	switch {
	case err != nil:
		return host{}, err
	case at.origin && pool != nil:
		return host{Name: node}, nil
	case at.origin:
		return host{}, fmt.Errorf("%w: no CachePool %s: is the nearflash node plugin running on that node?", volume.ErrNodeNotFound, node)
	case pool == nil:
		return host{}, fmt.Errorf("%w: no CachePool %s with an initiator name: is the nearflash node plugin running on that node?", volume.ErrNodeNotFound, node)
	case pool.Status.InitiatorIQN == "":
		return host{}, fmt.Errorf("%w: no CachePool %s with an initiator name: its condition Preflight says what the node lacks", volume.ErrNodeNotFound, node)
	}
	return host{Name: pool.Status.InitiatorIQN, LoginKey: pool.Status.LoginPublicKey}, nil
}

// pool returns the pool of a node, nil if its plugin has not reported one.
func (s *Service) pool(ctx context.Context, node string) (*v1alpha1.CachePool, error) {
	if node == "" {
		return nil, nil
	}
	pool := &v1alpha1.CachePool{}
	err := s.client.Get(ctx, types.NamespacedName{Name: node}, pool)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, records.Error("read CachePool "+node, err)
	}
	return pool, nil
}

// checkFence refuses a cache that holds unflushed writes over an origin that nothing fences: a
// node that was given up could come back and flush over what others wrote since (I1).
func (s *Service) checkFence(ctx context.Context, id volume.ID, spec volume.Spec) error {
	if spec.Origin == nil || spec.Mode != volume.ModeWriteback || spec.Origin.AcceptTwoWriters || s.origins == nil {
		return nil
	}
	fenced, err := s.origins.Fenced(ctx, id, *spec.Origin)
	if err == nil && !fenced {
		err = fmt.Errorf("%w: cacheMode %s over a driver whose detach keeps no lost node from writing to volume %s (CSIDriver spec.attachRequired false, or ceph-csi's RBD); accepted are %s and %s, or the consent %s: the parameter withoutFence of the class, or spec.origin.withoutFence of a CachedVolume that exists",
			volume.ErrInvalid, volume.ModeWriteback, id, volume.ModeWritethrough, volume.ModeNone, volume.AcceptTwoWriters)
	}
	return err
}
