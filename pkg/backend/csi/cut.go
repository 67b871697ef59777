package csi

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ backend.Snapshots = (*Backend)(nil)

// Cut implements backend.Snapshots. It waits until the other driver has cut, and answers with
// what is not done yet when its patience is over.
func (b *Backend) Cut(ctx context.Context, id volume.SnapshotID, of volume.ID, req backend.CutRequest) (backend.Cut, error) {
	if _, err := volume.ParseID(string(id)); err != nil {
		return backend.Cut{}, err
	}
	if err := checkHold(id, req.Hold); err != nil {
		return backend.Cut{}, err
	}
	ctx, cancel := b.wait(ctx)
	defer cancel()
	var pace pacer
	for {
		have, err := b.readSnapshot(ctx, id)
		if err != nil {
			return backend.Cut{}, err
		}
		step, why := decideCut(have, of)
		if why != nil {
			return backend.Cut{}, why
		}
		switch step {
		case cutMake:
			var snapshot *snapshotv1.VolumeSnapshot
			if snapshot, err = b.plan(ctx, id, of, req); err != nil {
				return backend.Cut{}, err
			}
			err = snapshotError("create VolumeSnapshot "+string(id), b.api.Create(ctx, snapshot))
		case cutDone:
			return cutOf(have)
		case cutEnd:
			err = b.finishDeleteCut(ctx, id, have.UID, whichever)
		case cutWait:
			if pace.next(ctx, "the volume is cut") != nil {
				return cutOf(have)
			}
		}
		// Whoever wrote meanwhile has changed the facts.
		if err != nil && (ctx.Err() != nil || !conflict(err)) {
			return backend.Cut{}, err
		}
	}
}

// plan looks whether a volume can be cut, and how.
func (b *Backend) plan(ctx context.Context, id volume.SnapshotID, of volume.ID, req backend.CutRequest) (*snapshotv1.VolumeSnapshot, error) {
	f, err := b.lookBound(ctx, of)
	if err != nil {
		return nil, err
	}
	if _, deleted := f.claim.Annotations[annotationDeleted]; deleted || f.claim.DeletionTimestamp != nil {
		return nil, fmt.Errorf("%w: claim %s/%s of volume %s is being deleted", volume.ErrNotFound, b.namespace, f.claim.Name, of)
	}
	src, err := source(f.pv)
	if err != nil {
		return nil, err
	}
	if err := b.checkSnapshotClass(ctx, req.Class, src.Driver); err != nil {
		return nil, err
	}
	return b.newSnapshot(id, of, f.pv, src.Driver, req), nil
}

// CanCut implements backend.Snapshots.
func (b *Backend) CanCut(ctx context.Context, of volume.ID, class string) error {
	s, err := b.plan(ctx, "-", of, backend.CutRequest{Class: class})
	if err != nil || class != "" {
		return err
	}
	return b.checkDefaultClass(ctx, s.Annotations[annotationDriver])
}

// CanBegin implements backend.Snapshots.
func (b *Backend) CanBegin(ctx context.Context, _, of volume.ID, req backend.Request) error {
	f, err := b.lookBound(ctx, of)
	if err != nil {
		return err
	}
	src, err := source(f.pv)
	if err != nil {
		return err
	}
	if err := b.checkClassOf(ctx, req.Origin.StorageClass, src.Driver, "volume "+string(of)); err != nil {
		return err
	}
	return b.checkClass(ctx, req)
}

// Find implements backend.Snapshots.
func (b *Backend) Find(ctx context.Context, id volume.SnapshotID) (backend.Cut, error) {
	s, err := b.existing(ctx, id)
	if err != nil {
		return backend.Cut{}, err
	}
	return cutOf(s)
}

// Accept implements backend.Snapshots.
func (b *Backend) Accept(ctx context.Context, id volume.SnapshotID, hold string) error {
	if err := checkHold(id, hold); err != nil {
		return err
	}
	ctx, cancel := b.wait(ctx)
	defer cancel()
	for {
		s, err := b.existing(ctx, id)
		if err != nil {
			return err
		}
		c, err := cutOf(s)
		switch {
		case err != nil:
			return err
		case c.Hold != hold:
			return fmt.Errorf("%w: snapshot %s was cut under hold %q, %q was asked for", volume.ErrNotFound, id, c.Hold, hold)
		case c.Accepted:
			return nil
		case !c.Done:
			return fmt.Errorf("%w: snapshot %s is not cut yet", volume.ErrBusy, id)
		}
		err = b.writeSnapshot(ctx, s, func(s *snapshotv1.VolumeSnapshot) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, annotationAccepted, "true")
		})
		// The sidecar writes to it as well, when it is ready.
		if err == nil || ctx.Err() != nil || !conflict(err) {
			return err
		}
	}
}

// writeSnapshot changes a VolumeSnapshot as it was read. Errors: ErrBusy if it was changed since.
func (b *Backend) writeSnapshot(ctx context.Context, s *snapshotv1.VolumeSnapshot, change func(*snapshotv1.VolumeSnapshot)) error {
	base := s.DeepCopy()
	change(s)
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	return snapshotError("write VolumeSnapshot "+s.Name, b.api.Patch(ctx, s, patch))
}

// DeleteCut implements backend.Snapshots. It succeeds once the VolumeSnapshot is gone; whether
// the other driver's snapshot goes with it, its class says (deletionPolicy), and what that
// driver cannot delete stays as a VolumeSnapshotContent. ErrBusy: the snapshot controller is at
// it, or a volume is being made of the snapshot.
func (b *Backend) DeleteCut(ctx context.Context, id volume.SnapshotID) error {
	ctx, cancel := b.wait(ctx)
	defer cancel()
	return b.finishDeleteCut(ctx, id, "", whichever)
}

// DropCut implements backend.Snapshots.
func (b *Backend) DropCut(ctx context.Context, id volume.SnapshotID, hold string) error {
	if err := checkHold(id, hold); err != nil {
		return err
	}
	ctx, cancel := b.wait(ctx)
	defer cancel()
	return b.finishDeleteCut(ctx, id, "", func(s *snapshotv1.VolumeSnapshot) bool {
		return s.Annotations[annotationHold] == hold && s.Annotations[annotationAccepted] != "true"
	})
}

// checkHold takes the token of a hold.
func checkHold(id volume.SnapshotID, hold string) error {
	if hold == "" {
		return fmt.Errorf("%w: hold of snapshot %s is missing", volume.ErrInvalid, id)
	}
	return nil
}

// whichever is meant of all cuts.
func whichever(*snapshotv1.VolumeSnapshot) bool { return true }

// finishDeleteCut deletes a VolumeSnapshot of ours that is meant, whichever it is or that of a
// UID alone. It is judged on the version that is deleted.
func (b *Backend) finishDeleteCut(ctx context.Context, id volume.SnapshotID, uid types.UID, meant func(*snapshotv1.VolumeSnapshot) bool) error {
	var pace pacer
	for {
		have, err := b.readSnapshot(ctx, id)
		if err != nil {
			return err
		}
		if have != nil && (uid != "" && have.UID != uid || !meant(have)) {
			return nil
		}
		switch decideDeleteCut(have) {
		case deleteCutDone:
			return nil
		case deleteCutObject:
			uid = have.UID // and no later one of the name
			err = snapshotError("delete VolumeSnapshot "+string(id),
				b.api.Delete(ctx, have, client.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion}))
		case deleteCutFinalizer:
			err = b.writeSnapshot(ctx, have, func(s *snapshotv1.VolumeSnapshot) { s.Finalizers = nil })
		case deleteCutWait:
			err = pace.next(ctx, fmt.Sprintf("VolumeSnapshot %s/%s is gone; finalizers %v are others' to take away", b.namespace, id, have.Finalizers))
		}
		if err != nil && (ctx.Err() != nil || !conflict(err)) {
			return err
		}
	}
}

// Cuts implements backend.Snapshots.
func (b *Backend) Cuts(ctx context.Context) ([]backend.Cut, error) {
	var out []backend.Cut
	list := &snapshotv1.VolumeSnapshotList{}
	for {
		err := b.api.List(ctx, list, client.InNamespace(b.namespace), client.HasLabels{LabelVolume}, client.Limit(listPage), client.Continue(list.Continue))
		if err != nil {
			return nil, snapshotError("list VolumeSnapshots in namespace "+b.namespace, err)
		}
		for i := range list.Items {
			s := &list.Items[i]
			if s.DeletionTimestamp != nil {
				if decideDeleteCut(s) == deleteCutFinalizer {
					out = append(out, backend.Cut{ID: volume.SnapshotID(s.Name), Volume: volume.ID(s.Labels[LabelVolume]), Ending: true})
				}
				continue
			}
			c, err := cutOf(s)
			if err != nil {
				return nil, err
			}
			out = append(out, c)
		}
		if list.Continue == "" {
			slices.SortFunc(out, func(x, y backend.Cut) int { return cmp.Compare(x.ID, y.ID) })
			return out, nil
		}
	}
}
