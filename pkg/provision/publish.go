package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Publish implements volume.Provisioner.
func (s *Service) Publish(ctx context.Context, id volume.ID, node string, spec *volume.Spec, cred *volume.Credentials) (volume.Publication, error) {
	return s.publish(ctx, id, node, spec, cred, false)
}

// publish makes node the owner, or one of the readers.
func (s *Service) publish(ctx context.Context, id volume.ID, node string, spec *volume.Spec, cred *volume.Credentials, readOnly bool) (volume.Publication, error) {
	at, err := s.find(ctx, id, spec)
	if err == nil && at != onServer("") { // which a static volume does not need
		_, err = s.storage(at, volume.ErrUnavailable)
	}
	if err != nil {
		return volume.Publication{}, err
	}
	to, err := s.newOwner(ctx, at, node)
	if err != nil {
		return volume.Publication{}, err
	}
	var access sight
	var accessErr error
	if spec == nil || spec.Static == nil {
		access, accessErr = s.inspect(ctx, id, at)
	}
	obj, err := s.publishable(ctx, id, spec, access, accessErr)
	if err != nil {
		return volume.Publication{}, err
	}
	if at != placeOf(obj) {
		return volume.Publication{}, fmt.Errorf("%w: the record of volume %s was made anew meanwhile", volume.ErrBusy, id)
	}
	if readOnly {
		if neverPublished(obj) && accessErr != nil {
			return volume.Publication{}, accessErr
		}
		if err := readable(obj, access.Generation); err != nil {
			return volume.Publication{}, err
		}
	}
	formatBlank := spec != nil && spec.FormatBlank
	if obj.Spec.Static != nil {
		return s.publishStatic(ctx, obj, node, formatBlank)
	}
	if at.origin {
		return s.publishOrigin(ctx, obj, access, accessErr, node, formatBlank)
	}
	account, err := s.accountFor(ctx, id, to, cred)
	if err != nil {
		return volume.Publication{}, err
	}
	if accessErr != nil {
		return volume.Publication{}, accessErr
	}
	return s.publishServed(ctx, obj, access, node, backend.Grant{Initiator: to.Name, ReadOnly: readOnly}, account, !readOnly)
}

// publishServed publishes a volume that a storage admits nodes to. formatBlank allows that it
// is formatted by its first owner.
func (s *Service) publishServed(ctx context.Context, obj *v1alpha1.CachedVolume, access sight, node string, grant backend.Grant, by account, formatBlank bool) (volume.Publication, error) {
	pub, err := s.publishOn(ctx, obj, access, node, grant, by, formatBlank)
	var stale *backend.StaleGenerationError
	if errors.As(err, &stale) {
		// Somebody was admitted after we had asked. The second try knows of it.
		id := volume.ID(obj.Name)
		if access, err = s.inspect(ctx, id, access.at); err != nil {
			return volume.Publication{}, err
		}
		if obj, err = records.Load(ctx, s.client, id); err != nil {
			return volume.Publication{}, err
		}
		return s.publishOn(ctx, obj, access, node, grant, by, formatBlank)
	}
	return pub, err
}

// publishOrigin publishes a volume over another driver's. One that was there before is claimed
// when it is published for the first time.
func (s *Service) publishOrigin(ctx context.Context, obj *v1alpha1.CachedVolume, access sight, accessErr error, node string, formatBlank bool) (volume.Publication, error) {
	id := volume.ID(obj.Name)
	spec, err := records.Spec(obj)
	if err != nil {
		return volume.Publication{}, err
	}
	// Of one that had an owner the node makes writes go through (volume.CSISource.NoFence): what is
	// unflushed of before would be out of reach. A record that was made anew does not know of it.
	if ptr.Deref(obj.Status.Generation, 0) == 0 && access.Generation == 0 {
		if err := s.checkFence(ctx, id, spec); err != nil {
			return volume.Publication{}, err
		}
	}
	if records.IsStatic(obj) {
		storage, err := s.storage(withOrigin(), volume.ErrUnavailable)
		if err != nil {
			return volume.Publication{}, err
		}
		if err := storage.Create(ctx, id, request(obj, spec)); err != nil {
			return volume.Publication{}, fmt.Errorf("claim the origin of volume %s: %w", id, err)
		}
		if access, accessErr = s.inspect(ctx, id, withOrigin()); accessErr == nil {
			obj, accessErr = records.Load(ctx, s.client, id)
		}
	}
	if accessErr != nil {
		return volume.Publication{}, accessErr
	}
	pub, err := s.publishServed(ctx, obj, access, node, backend.Grant{Initiator: node, Node: node}, account{}, formatBlank || !records.IsStatic(obj))
	if errors.Is(err, volume.ErrNoSpace) {
		s.giveBack(ctx, id, node)
	}
	if pub.Source.CSI != nil && spec.Origin.AcceptTwoWriters {
		pub.Source.CSI.NoFence = false
	}
	return pub, err
}

// giveBack ends the publication to a node to which the other driver has refused to attach the
// volume, because it has no room there (states.md, "The record"). What fails here comes again with
// the next attempt.
func (s *Service) giveBack(ctx context.Context, id volume.ID, node string) {
	obj, err := records.Load(ctx, s.client, id)
	if err == nil && obj.Status.OwnerNode == node && obj.Status.Publication == v1alpha1.PublicationPublished && obj.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
		err = s.Unpublish(ctx, id, node)
	}
	if err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "A volume stays with a node that has no room for it", "volume", id, "node", node)
	}
}

// inspect asks the storage server whom it admits to a volume. It comes before the record
// is read: whoever is in the answer was in the record before that, so that the record
// tells who must go. What another controller admits later is another admission, also of
// the same node: it is not in the answer, and is left alone.
//
// Claims and attachments of other drivers are in the same etcd as the records: no takeover
// makes the ones older than the others.
func (s *Service) inspect(ctx context.Context, id volume.ID, at place) (sight, error) {
	storage, err := s.storage(at, volume.ErrUnavailable)
	if err != nil {
		return sight{}, err
	}
	a := sight{at: at}
	if a.Access, err = storage.Access(ctx, id); err != nil {
		return sight{}, fmt.Errorf("access to volume %s: %w", id, err)
	}
	if server := s.servers[at.server]; !at.origin && server.TakenOver != nil {
		a.takeover, err = server.TakenOver(ctx)
	}
	return a, err
}

// publishable returns the record that is to be published, and makes that of a
// static volume when it is published for the first time, or anew once a deletion of it that
// was interrupted has ended (Retire); or of one of the storage server
// that is to be adopted (states.md, A record that is older than the truth).
func (s *Service) publishable(ctx context.Context, id volume.ID, spec *volume.Spec, access sight, accessErr error) (*v1alpha1.CachedVolume, error) {
	obj, err := records.Load(ctx, s.client, id)
	missing := errors.Is(err, volume.ErrNotFound)
	switch {
	case err == nil && obj.DeletionTimestamp != nil && Retirable(obj):
		return nil, fmt.Errorf("%w: the record of volume %s is about to go, and is made anew then", volume.ErrBusy, id)
	case spec == nil, err != nil && !missing:
		return obj, err
	case !spec.IsStatic() && missing:
		return s.adopt(ctx, id, *spec, access, accessErr)
	case !spec.IsStatic():
		return obj, nil
	case missing:
		obj, _, err = s.ensureRecord(ctx, id, *spec, volume.ErrInvalid)
		return obj, err
	}
	return obj, sameSpec(obj, *spec, volume.ErrInvalid)
}

// adopt makes the record of a volume anew that the storage server has. Who may have
// unflushed writes of it the server knows (restoreOwner).
func (s *Service) adopt(ctx context.Context, id volume.ID, spec volume.Spec, access sight, accessErr error) (*v1alpha1.CachedVolume, error) {
	if accessErr != nil {
		return nil, accessErr
	}
	spec.CapacityBytes, spec.Target = access.SizeBytes, access.at.server
	obj, made, err := s.ensureRecord(ctx, id, spec, volume.ErrBusy)
	if made {
		logr.FromContextOrDiscard(ctx).Info("Record made anew", "volume", id, "uid", obj.UID, "storedGeneration", access.Generation)
	}
	return obj, err
}

// publishStatic publishes a LUN whose server nearflash does not
// control: the record alone is the fence.
func (s *Service) publishStatic(ctx context.Context, obj *v1alpha1.CachedVolume, node string, formatBlank bool) (volume.Publication, error) {
	v, err := records.Volume(obj)
	if err != nil {
		return volume.Publication{}, err
	}
	c, err := decideClaim(v, node, 0)
	if err != nil {
		return volume.Publication{}, err
	}
	if err := s.writeOwner(ctx, obj, node, false, sight{}, c, formatBlank && neverPublished(obj)); err != nil {
		return volume.Publication{}, err
	}
	return volume.Publication{Fence: records.Fence(obj), Source: volume.Source{ISCSI: *v.Spec.Static}}, nil
}

// publishOn publishes a volume of the storage server, which admitted access before obj
// was read: others out, record, node in.
func (s *Service) publishOn(ctx context.Context, obj *v1alpha1.CachedVolume, access sight, node string, grant backend.Grant, by account, formatBlank bool) (volume.Publication, error) {
	storage, err := s.storage(access.at, volume.ErrUnavailable)
	if err != nil {
		return volume.Publication{}, err
	}
	v, err := records.Volume(obj)
	if err != nil {
		return volume.Publication{}, err
	}
	owner := node
	if grant.ReadOnly {
		owner = volume.Readers
	}
	// To its owner a volume may come back whatever that one has of it.
	restored, err := s.restoreOwner(ctx, obj, v, access, access.old(obj) && v.Fence.Node != owner)
	if err != nil {
		return volume.Publication{}, err
	}
	if restored {
		// The record knows the admission now, so that this comes once.
		return s.publishOn(ctx, obj, access, node, grant, by, formatBlank)
	}
	c, err := decideClaim(v, owner, access.Generation)
	if err != nil {
		return volume.Publication{}, err
	}
	if err := s.checkInitiators(ctx, access, v, node, grant); err != nil {
		return volume.Publication{}, err
	}
	keep := func(e backend.Export) bool {
		return !c.NewOwner && (strings.EqualFold(e.Initiator, grant.Initiator) || grant.ReadOnly && e.ReadOnly && e.Generation == c.Generation)
	}
	if err := s.revoke(ctx, v, access, access.old(obj), keep); err != nil {
		return volume.Publication{}, err
	}
	if err := s.writeOwner(ctx, obj, node, grant.ReadOnly, access, c, formatBlank && access.Generation == 0 && neverPublished(obj)); err != nil {
		return volume.Publication{}, err
	}
	if grant.ReadOnly && !slices.Contains(obj.Status.Readers, node) {
		return volume.Publication{}, errNoReaders(v.ID)
	}
	fence := records.FenceFor(obj, node)
	grant.Generation = c.Generation
	if grant.Credentials, err = by.of(v.ID, fence); err != nil {
		return volume.Publication{}, err
	}
	source, err := storage.Export(access.of(ctx), v.ID, grant)
	if err != nil {
		return volume.Publication{}, fmt.Errorf("admit node %s to volume %s: %w", node, v.ID, err)
	}
	return volume.Publication{Fence: fence, Source: source, LoginKey: by.public()}, nil
}

// checkInitiators refuses a change of owner between nodes of the same initiator
// name, as machines made from one image have: the server could not tell the old
// owner's session from the new one's (I1).
func (s *Service) checkInitiators(ctx context.Context, access sight, v volume.Volume, node string, grant backend.Grant) error {
	for _, other := range othersOf(access.Access, v, node, grant) {
		old, err := s.hostName(ctx, access.at, other)
		if err != nil {
			return err
		}
		if strings.EqualFold(old, grant.Initiator) {
			return sameInitiator(other, node, grant.Initiator)
		}
	}
	return nil
}

// sameInitiator refuses two nodes that the server could not tell apart.
func sameInitiator(other, node, initiator string) error {
	return fmt.Errorf("%w: nodes %s and %s both have the initiator name %s: give each its own in /etc/iscsi/initiatorname.iscsi (with node.iscsid.run: own in the folder iscsi of node.stateDir) and restart iscsid and the nearflash node plugin",
		volume.ErrInvalid, other, node, initiator)
}

// revoke ends every admission but those of keep. One that is in use under a
// generation that the record does not know is not touched: the record is older
// than the data then, and the writes of that host must reach the origin first. (Of a
// volume that may be writeback, restoreOwner has made the record know it.)
func (s *Service) revoke(ctx context.Context, v volume.Volume, access sight, old bool, keep func(backend.Export) bool) error {
	storage, err := s.storage(access.at, volume.ErrUnavailable)
	if err != nil {
		return err
	}
	e, unknown := unknownExport(v, access.Access, old)
	if unknown && e.LoggedIn && !keep(e) {
		return fmt.Errorf("%w: initiator %s uses volume %s under generation %d, but the record shows %d, released (was it restored from a backup?): stop the volume's pods on that node; the volume can be published when the node has logged out",
			volume.ErrFenced, e.Initiator, v.ID, e.Generation, v.Fence.Generation)
	}
	for _, e := range access.Exports {
		if keep(e) {
			continue
		}
		if err := storage.Unexport(access.of(ctx), v.ID, e); err != nil {
			return fmt.Errorf("end access of %s to volume %s: %w", e.Initiator, v.ID, err)
		}
		logr.FromContextOrDiscard(ctx).Info("Ended access", "volume", v.ID, "initiator", e.Initiator, "generation", e.Generation)
	}
	return nil
}

// writeOwner makes node the published owner, on the version of the record that
// the decision rests on. The warm source goes with the owner in one write: a crash
// before it leaves the old owner and whatever that one had, a crash after it is
// repeated as a publication to the owner, which changes nothing (states.md, "The
// record", step 2, and "When a retained cache may be used"). So does the state of the
// filesystem of a volume that nobody ever had ("The filesystem"), and that nothing cut under a
// hold of before is one of a frozen filesystem ("A freeze").
func (s *Service) writeOwner(ctx context.Context, obj *v1alpha1.CachedVolume, node string, reads bool, access sight, c claim, fresh bool) error {
	old := access.old(obj)
	owner, readers, source := node, []string(nil), v1alpha1.WarmSource{}
	if reads {
		owner, readers = volume.Readers, withReader(obj, node, c)
	} else {
		source = warmSource(obj, node, c, old)
	}
	if len(readers) > volume.MaxReaders {
		return fmt.Errorf("%w: volume %s is read by %d nodes, accepted are at most %d", volume.ErrInvalid, obj.Name, len(readers)-1, volume.MaxReaders)
	}
	jumped := c.Generation > ptr.Deref(obj.Status.Generation, 0)+1
	return records.WriteStatus(ctx, s.client, obj, func(status *v1alpha1.CachedVolumeStatus) {
		status.WarmSource = source
		status.OwnerNode, status.Readers = owner, readers
		if c.NewOwner || !old { // an owner that comes back proves nothing of what it had
			status.Takeover = access.takeover
		}
		if h := obj.Spec.Hold; h != nil && status.Publication != v1alpha1.PublicationPublished {
			status.Freeze = v1alpha1.FreezeStatus{Token: h.Token, State: v1alpha1.FreezeState(volume.FreezeFailed), Message: "the volume was attached meanwhile"}
		}
		status.Publication = v1alpha1.PublicationPublished
		status.Generation = ptr.To(c.Generation)
		switch {
		case fresh:
			status.Filesystem = v1alpha1.FilesystemNeverFormatted
		case jumped:
			forgetBlank(status)
		}
		if c.NewOwner {
			status.DirtyState = v1alpha1.DirtyStateClean
			status.Cache = v1alpha1.CacheStatus{} // the old owner's
		}
	})
}

// forgetBlank is for a record that has missed an owner: that one may have written to a
// volume of which the record says that nobody has (states.md, The filesystem).
func forgetBlank(status *v1alpha1.CachedVolumeStatus) {
	if status.Filesystem != "" {
		status.Filesystem = v1alpha1.FilesystemFormatted
	}
}

// neverPublished reports whether the record is of a volume that it has never shown to
// anybody. That the storage server has not either is for the caller to know.
func neverPublished(obj *v1alpha1.CachedVolume) bool {
	s := &obj.Status
	return ptr.Deref(s.Generation, 0) == 0 && s.OwnerNode == "" && s.Publication == "" && s.Filesystem == ""
}

// warmSource returns what node may start from once the record shows it as the owner
// by c; the zero value is nothing. A retained cache is as new as the origin only if
// nobody has written since: it is of the owner just before, and the generation does
// not jump, as it does when the storage server has admitted somebody whom the record
// does not know. That the owner just before may hold no unflushed write is
// decideClaim's part. A record that may be of before a restore (old) offers nothing: its
// owner may have withdrawn the source since.
//
// The list of retained caches is a hint and lags behind its nodes. The journal of the
// node that it names has the last word (states.md, "What the source node does").
func warmSource(obj *v1alpha1.CachedVolume, node string, c claim, old bool) v1alpha1.WarmSource {
	status := &obj.Status
	before := ptr.Deref(status.Generation, 0)
	switch {
	case old:
		return v1alpha1.WarmSource{}
	case !c.NewOwner:
		// The owner comes back. If it has activated the volume it has withdrawn the
		// source; if not, the source is still as new as the origin.
		return status.WarmSource
	case c.Generation != before+1, status.OwnerNode == node, obj.Spec.CacheMode == v1alpha1.CacheModeNone:
		return v1alpha1.WarmSource{}
	}
	if from := obj.Spec.WarmStart.From; from != "" && from != v1alpha1.WarmStartPeer {
		return v1alpha1.WarmSource{}
	}
	for _, r := range status.RetainedCaches {
		if r.NodeName == status.OwnerNode && r.Generation == before && r.Content != v1alpha1.RetainedCachePartial {
			return v1alpha1.WarmSource{NodeName: r.NodeName, Generation: r.Generation}
		}
	}
	return v1alpha1.WarmSource{}
}
