package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

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

// backgroundPatience is how long a call that nobody waits for may wait for another driver: it
// comes back, and others wait behind it.
const backgroundPatience = 5 * time.Second

// place is where a volume's origin lies: on the storage server, or with another CSI driver.
// It is the record's to say, and never changes.
type place bool

const (
	onServer   place = false
	withOrigin place = true
)

// placeOf returns the place of a record's volume; that of a static LUN is onServer, and means
// nothing.
func placeOf(obj *v1alpha1.CachedVolume) place { return obj.Spec.Origin != nil }

// storage returns what the volumes of a place are on, or an error that wraps kind if that is
// not configured.
func (s *Service) storage(at place, kind error) (backend.Backend, error) {
	switch {
	case at == withOrigin && s.origins == nil:
		return nil, fmt.Errorf("%w: volumes over those of other CSI drivers (backend: csi) are not enabled for this controller: set the Helm value origins.enabled to true", kind)
	case at == withOrigin:
		return s.origins, nil
	case s.backend == nil:
		return nil, fmt.Errorf("%w: no storage server is configured for this controller, only static volumes can be used", kind)
	}
	return s.backend, nil
}

// configured returns what there is that volumes can be on, for a volume without a record.
func (s *Service) configured() []place {
	var out []place
	if s.backend != nil {
		out = append(out, onServer)
	}
	if s.origins != nil {
		out = append(out, withOrigin)
	}
	return out
}

// find returns the place of a volume, before anything else is asked: the storage is asked for
// admissions before the record is judged (inspect). A volume without a record is looked for on
// the storage server. Errors: ErrUnavailable.
func (s *Service) find(ctx context.Context, id volume.ID, spec *volume.Spec) (place, error) {
	switch {
	case spec != nil && spec.Static == nil && spec.Origin != nil:
		return withOrigin, nil
	case spec != nil && spec.Static != nil, s.origins == nil:
		return onServer, nil
	}
	obj := &v1alpha1.CachedVolume{}
	err := s.client.Get(ctx, types.NamespacedName{Name: string(id)}, obj)
	if apierrors.IsNotFound(err) {
		return onServer, nil
	}
	if err != nil {
		return onServer, records.Error("read CachedVolume "+string(id), err)
	}
	return placeOf(obj), nil
}

// orDisabled returns why a volume cannot be served if that is because its kind is not enabled,
// which find has not asked for; otherwise err.
func (s *Service) orDisabled(ctx context.Context, id volume.ID, err error) error {
	if s.origins != nil {
		return err
	}
	if obj, loadErr := records.Load(ctx, s.client, id); loadErr == nil && placeOf(obj) == withOrigin {
		_, err = s.storage(withOrigin, volume.ErrUnavailable)
	}
	return err
}

// hostName returns the name by which a storage knows a node: of a storage server the iSCSI
// initiator name, "" if no nearflash node plugin has reported one; else the node's own.
// Errors: ErrUnavailable.
func (s *Service) hostName(ctx context.Context, at place, node string) (string, error) {
	if at == withOrigin || node == "" {
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
	case at == withOrigin && pool != nil:
		return host{Name: node}, nil
	case at == withOrigin:
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
