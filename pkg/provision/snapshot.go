package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ volume.Snapshotter = (*Service)(nil)

// snapshots returns what cuts the volumes of a place, or an error that wraps kind.
func (s *Service) snapshots(at place, kind error) (backend.Snapshots, error) {
	storage, err := s.storage(at, kind)
	if err != nil {
		return nil, err
	}
	snaps, ok := storage.(backend.Snapshots)
	if !ok {
		return nil, fmt.Errorf("%w: volumes of %s have no snapshots", kind, at)
	}
	return snaps, nil
}

// HasSnapshots reports whether anything that volumes can be on makes snapshots.
func (s *Service) HasSnapshots() bool {
	return slices.ContainsFunc(s.configured(), func(at place) bool {
		_, err := s.snapshots(at, volume.ErrInvalid)
		return err == nil
	})
}

// CreateSnapshot implements volume.Snapshotter.
func (s *Service) CreateSnapshot(ctx context.Context, id volume.SnapshotID, of volume.ID, class volume.SnapshotClass) (volume.Snapshot, error) {
	if id.ForClone() {
		return volume.Snapshot{}, fmt.Errorf("%w: snapshot %s: names that begin with clone- are those of what clones are made from", volume.ErrInvalid, id)
	}
	if id.Group() != "" {
		return volume.Snapshot{}, fmt.Errorf("%w: snapshot %s: such names are those of members of groups", volume.ErrInvalid, id)
	}
	c, at, err := s.cut(ctx, cutOrder{name: id, of: of, class: class})
	if err != nil {
		return volume.Snapshot{}, err
	}
	return snapshotOf(at, c), nil
}

func snapshotOf(at place, c backend.Cut) volume.Snapshot {
	h := volume.SnapshotHandle{Backend: records.BackendISCSI, Target: at.server, ID: c.ID}
	if at.origin {
		h.Backend = records.BackendCSI
	}
	return volume.Snapshot{
		Handle: h,
		Volume: c.Volume, SizeBytes: c.SizeBytes, Created: c.Created, Ready: c.Ready,
	}
}

// placeNamed is where a snapshot lies by its handle.
func placeNamed(h volume.SnapshotHandle) place {
	return place{origin: h.Backend == records.BackendCSI, server: h.Target}
}

// DeleteSnapshot implements volume.Snapshotter.
func (s *Service) DeleteSnapshot(ctx context.Context, h volume.SnapshotHandle) error {
	if h.ID.ForClone() {
		return nil // no snapshot has such a name
	}
	if group := h.ID.Group(); group != "" {
		return s.refuseMember(ctx, h, group)
	}
	return s.deleteCut(ctx, h)
}

// refuseMember refuses to delete a snapshot without its group, if it is there.
func (s *Service) refuseMember(ctx context.Context, h volume.SnapshotHandle, group volume.GroupID) error {
	snaps, err := s.snapshots(placeNamed(h), volume.ErrUnavailable)
	if err != nil {
		return err
	}
	_, err = snaps.Find(ctx, h.ID)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("find snapshot %s: %w", h, err)
	}
	return fmt.Errorf("%w: snapshot_id %q: it is of group %s, and is deleted with it", volume.ErrInvalid, h, group)
}

// deleteCut deletes a cut. The hold for it ends first: killed before the second step, the call
// finds the cut again, and with it the volume.
func (s *Service) deleteCut(ctx context.Context, h volume.SnapshotHandle) error {
	s.refusals.forget(h.ID)
	snaps, err := s.snapshots(placeNamed(h), volume.ErrUnavailable)
	if err != nil {
		return err
	}
	c, err := snaps.Find(ctx, h.ID)
	switch {
	case errors.Is(err, volume.ErrNotFound): // or a deletion was killed, which DeleteCut ends
		err = s.endHolds(ctx, h)
	case err != nil:
		err = fmt.Errorf("find snapshot %s: %w", h, err)
	default:
		err = s.endHold(ctx, c.Volume, h.ID)
	}
	if err != nil {
		return err
	}
	if err := snaps.DeleteCut(ctx, h.ID); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", h, err)
	}
	return nil
}

// endHolds ends the hold for a snapshot of which there is no cut yet.
func (s *Service) endHolds(ctx context.Context, h volume.SnapshotHandle) error {
	all, err := s.List(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		if v.Hold != nil && v.Hold.Name == h.ID && placeFor(v.Spec) == placeNamed(h) {
			err = errors.Join(err, s.endHold(ctx, v.ID, h.ID))
		}
	}
	return err
}

// cutsAt lists the cuts of a place, none where there are no snapshots, with what has them.
func (s *Service) cutsAt(ctx context.Context, at place) (backend.Snapshots, []backend.Cut, error) {
	snaps, err := s.snapshots(at, volume.ErrInvalid)
	if err != nil {
		return nil, nil, nil
	}
	cuts, err := snaps.Cuts(ctx)
	if errors.Is(err, volume.ErrInvalid) {
		return snaps, nil, nil // a storage server without snapshots
	}
	if err != nil {
		return snaps, nil, fmt.Errorf("list snapshots of %s: %w", at, err)
	}
	return snaps, cuts, nil
}

// cutsWithin is cutsAt with a limit. Errors: ErrUnavailable if that is over, and those of cutsAt.
func (s *Service) cutsWithin(ctx context.Context, at place, limit time.Duration) (snaps backend.Snapshots, cuts []backend.Cut, err error) {
	err = s.within(ctx, at, limit, func(ctx context.Context) (err error) {
		snaps, cuts, err = s.cutsAt(ctx, at)
		return err
	})
	return snaps, cuts, err
}

// Snapshot implements volume.Snapshotter.
func (s *Service) Snapshot(ctx context.Context, h volume.SnapshotHandle) (volume.Snapshot, error) {
	snaps, err := s.snapshots(placeNamed(h), volume.ErrUnavailable)
	if err != nil {
		return volume.Snapshot{}, err
	}
	c, err := snaps.Find(ctx, h.ID)
	if errors.Is(err, volume.ErrInvalid) || err == nil && (!c.Accepted || h.ID.ForClone()) {
		err = volume.ErrNotFound // or a storage server without snapshots
	}
	if err != nil {
		return volume.Snapshot{}, fmt.Errorf("find snapshot %s: %w", h, err)
	}
	return snapshotOf(placeNamed(h), c), nil
}

// Snapshots implements volume.Snapshotter.
func (s *Service) Snapshots(ctx context.Context) ([]volume.Snapshot, error) {
	if err := s.allReachable(ctx); err != nil {
		return nil, err
	}
	out := []volume.Snapshot{}
	for _, at := range s.configured() {
		_, cuts, err := s.cutsAt(ctx, at)
		if err != nil {
			return nil, err
		}
		for _, c := range cuts {
			if c.Accepted && !c.Ending && !c.ID.ForClone() {
				out = append(out, snapshotOf(at, c))
			}
		}
	}
	slices.SortFunc(out, func(a, b volume.Snapshot) int { return cmp.Compare(a.Handle.String(), b.Handle.String()) })
	return out, nil
}
