package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
	"k8s.io/utils/ptr"
)

// ReasonRecordRestored is the reason of the Warning event that a record was older
// than what the storage server knows, and now shows the owner that the server admits.
const ReasonRecordRestored = "RecordRestored"

const actionRestore = "Restore"

// sight is whom the storage server admits to a volume, and the last takeover before it was
// asked: a record that was not judged since may be of before a restore of etcd.
type sight struct {
	backend.Access
	takeover string
	// at is the storage that was asked.
	at place
}

// of returns the context of an order that rests on a sight: it is refused if there is a
// later takeover by then.
func (a sight) of(ctx context.Context) context.Context { return backend.WithTakeover(ctx, a.takeover) }

// old tells a record that was not judged since the last takeover.
func (a sight) old(obj *v1alpha1.CachedVolume) bool {
	return a.takeover != "" && obj.Status.Takeover != a.takeover
}

// restoreOwner brings a record that is older than the truth up to the ownership that
// the storage server still admits, if that one may hold unflushed writes: its node
// flushes them then, or has them given up, as after any other loss
// (states.md, A record that is older than the truth). restored tells that obj has
// changed. Errors: ErrFenced if nobody knows which node it is.
func (s *Service) restoreOwner(ctx context.Context, obj *v1alpha1.CachedVolume, v volume.Volume, access sight, old bool) (restored bool, err error) {
	e, unknown := unknownExport(v, access.Access, old)
	if !unknown || e.ReadOnly { // who could not write has nothing to flush
		return false, nil
	}
	pool, err := s.poolOf(ctx, access.at, e.Initiator)
	if err != nil {
		return false, err
	}
	// Nobody has said that the record of an origin that was there before is to be made anew, nor in
	// which mode the one before was: what the PersistentVolume says may have been changed since.
	anew := access.at.origin && v.Fence.Generation == 0
	if v.Spec.Mode != volume.ModeWriteback && !v.Spec.AcceptNodeLoss && !anew && !keeps(pool, v.ID) {
		return false, nil
	}
	again := e.Generation == v.Fence.Generation // the owner that the record shows
	if pool == nil && !again {
		return false, fmt.Errorf("%w: initiator %s may hold unflushed writes of volume %s, generation %d, of which the record does not know (was it restored from a backup?), and no CachePool has that initiator name, or several have: start the nearflash node plugin on that host, or say which node it was (docs/how-to/recover-a-lost-cluster.md)",
			volume.ErrFenced, e.Initiator, v.ID, e.Generation)
	}
	if obj.Spec.Hold != nil {
		// Nobody may mark a volume that is held; what was cut under the hold is not accepted.
		if err := s.patch(ctx, obj, func(obj *v1alpha1.CachedVolume) { obj.Spec.Hold = nil }); err != nil {
			return false, err
		}
		s.holds.forget(v.ID, "")
	}
	before, node := v.Fence, v.Fence.Node
	if !again {
		node = pool.Name
	}
	err = records.WriteStatus(ctx, s.client, obj, func(status *v1alpha1.CachedVolumeStatus) {
		status.OwnerNode, status.Generation = node, ptr.To(e.Generation)
		status.Publication, status.DirtyState = v1alpha1.PublicationReleased, v1alpha1.DirtyStatePossiblyDirty
		status.Takeover = access.takeover
		status.WarmSource = v1alpha1.WarmSource{} // may have been withdrawn since
		if again {
			return
		}
		status.Cache = v1alpha1.CacheStatus{} // another node's
		forgetBlank(status)
	})
	if err != nil {
		return false, err
	}
	note := fmt.Sprintf("The record showed generation %d of node %q, but the storage server has given the volume to node %s under generation %d since (was the record restored from a backup, or made anew?). That node may hold unflushed writes.",
		before.Generation, before.Node, node, e.Generation)
	if again {
		note = fmt.Sprintf("The record is of before the last takeover of the storage server, and shows that node %s has released the volume, but the server admits it under that generation %d: it may have had the volume again since, and may hold unflushed writes.",
			node, e.Generation)
	}
	records.Emit(ctx, s.client, s.events, obj, records.Event{Warning: true, Reason: ReasonRecordRestored, Action: actionRestore, Note: note})
	return true, nil
}

// unknownExport is the admission of the highest generation, if the record does not
// know of it: of a later generation; or, if the record may be of before a restore (old), of
// the owner that it shows as released and clean, who may have come back since.
func unknownExport(v volume.Volume, access backend.Access, old bool) (e backend.Export, unknown bool) {
	again := old && !v.Published && !v.PossiblyDirty
	for _, one := range access.Exports {
		// Of readers, who share a generation, one that is logged in stands for all.
		later := one.Generation > max(v.Fence.Generation, e.Generation) || unknown && one.Generation == e.Generation && one.LoggedIn && !e.LoggedIn
		if later || again && !unknown && one.Generation == v.Fence.Generation {
			e, unknown = one, true
		}
	}
	return e, unknown
}

// keeps reports whether a node says that it has unflushed writes of a volume, whatever the
// record asks for by now.
func keeps(pool *v1alpha1.CachePool, id volume.ID) bool {
	return pool != nil && slices.ContainsFunc(pool.Status.Kept, func(k v1alpha1.KeptCache) bool { return k.VolumeName == string(id) })
}

// poolOf returns the pool of a host: of a storage server's that of the one node whose plugin
// has reported the initiator name, nil if there is none or more than one. Errors:
// ErrUnavailable.
func (s *Service) poolOf(ctx context.Context, at place, initiator string) (*v1alpha1.CachePool, error) {
	if at.origin {
		return s.pool(ctx, initiator)
	}
	var found *v1alpha1.CachePool
	several := false
	page := v1alpha1.CachePoolList{}
	err := records.Pages(ctx, s.client, &page, "CachePools", func() bool {
		for i := range page.Items {
			if strings.EqualFold(page.Items[i].Status.InitiatorIQN, initiator) {
				several = found != nil
				found = page.Items[i].DeepCopy()
			}
			if several {
				return false
			}
		}
		return true
	})
	if err != nil || several {
		return nil, err
	}
	return found, nil
}
