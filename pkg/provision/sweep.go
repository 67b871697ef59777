package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// HoldExpires returns when a hold ends for which nobody asks any more.
func HoldExpires(since time.Time) time.Time { return since.Add(holdExpiry) }

// ExpireHold ends the hold of a volume if nobody has asked for it for long. The time is the
// controller's alone, and no proof rests on it.
func (s *Service) ExpireHold(ctx context.Context, id volume.ID) error {
	var ended *volume.Hold
	err := records.EndHold(ctx, s.client, id, func(h volume.Hold) bool {
		ended = nil
		if s.now().Before(HoldExpires(h.Since)) {
			return false
		}
		ended = &h
		return true
	})
	if err == nil && ended != nil {
		s.holds.forget(id, ended.Name)
		s.refusals.expired(ended.Name, s.now())
		logr.FromContextOrDiscard(ctx).Info("Hold of a volume ended, nobody asked for it any more", "volume", id, "name", ended.Name, "since", ended.Since)
	}
	return err
}

// SweepCuts deletes what was cut, and never accepted, for requests that nobody repeats; what
// was accepted for a clone that has no record any more; and what deletions have left that were
// killed. lock is tried for each volume.
func (s *Service) SweepCuts(ctx context.Context, lock func(key string) (unlock func(), ok bool)) error {
	var errs []error
	for _, at := range s.configured() {
		errs = append(errs, s.sweepPlace(ctx, at, lock))
	}
	return errors.Join(errs...)
}

// sweepPlace is SweepCuts of one place. Nothing is waited for without a limit: volumes are locked
// meanwhile, and other places come behind it.
func (s *Service) sweepPlace(ctx context.Context, at place, lock func(key string) (unlock func(), ok bool)) error {
	snaps, cuts, err := s.cutsWithin(ctx, at, serverPatience)
	if err != nil {
		return err
	}
	cuts = slices.DeleteFunc(cuts, func(c backend.Cut) bool {
		return !c.Ending && (c.Accepted && !c.ID.ForClone() || s.now().Before(HoldExpires(c.Created)))
	})
	var wanted map[volume.SnapshotID]string
	if slices.ContainsFunc(cuts, func(c backend.Cut) bool { return c.Accepted }) {
		if wanted, err = s.clones(ctx); err != nil {
			return err
		}
	}
	var errs []error
	for _, c := range cuts {
		if mark, named := wanted[c.ID]; c.Accepted && named && (mark == markIn(c.Hold) || markIn(c.Hold) == "") {
			continue
		}
		// Of a group all places are asked. One that does not answer must not have the volume locked.
		if over, err := s.over(ctx, c); !over || err != nil {
			errs = append(errs, err)
			continue
		}
		if unlock, ok := lock(string(c.Volume)); ok {
			errs = append(errs, s.sweepOne(ctx, at, snaps, c))
			unlock()
		}
	}
	return errors.Join(errs...)
}

// sweepOne sweeps one cut, whose volume is locked.
func (s *Service) sweepOne(ctx context.Context, at place, snaps backend.Snapshots, c backend.Cut) error {
	if over, err := s.over(ctx, c); !over || err != nil {
		return err
	}
	sweep := s.sweepCut
	if c.Ending {
		sweep = s.sweepEnding
	} else if c.Accepted {
		sweep = s.sweepClone
	}
	return s.background(ctx, at, func(ctx context.Context) error { return sweep(ctx, snaps, c) })
}

// over reports whether the hold of a cut that was not accepted is over, and nothing of its group is
// in the way of dropping it. The record is read after the cut was seen, and before others of the
// group: a hold that is over by then does not come back.
func (s *Service) over(ctx context.Context, c backend.Cut) (bool, error) {
	if c.Ending || c.Accepted {
		return true, nil
	}
	v, err := s.Get(ctx, c.Volume)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return false, err
	}
	if err == nil && v.Hold != nil && v.Hold.Token == c.Hold {
		return false, nil
	}
	behind, err := s.behind(ctx, c)
	return !behind, err
}

// sweepCut deletes a cut whose hold is over. What was accepted meanwhile is left.
func (s *Service) sweepCut(ctx context.Context, snaps backend.Snapshots, c backend.Cut) error {
	if err := snaps.DropCut(ctx, c.ID, c.Hold); err != nil {
		return fmt.Errorf("delete snapshot %s, which was not accepted: %w", c.ID, err)
	}
	logr.FromContextOrDiscard(ctx).Info("Dropped what was cut and not accepted", "cut", c.ID, "volume", c.Volume)
	return nil
}

// clones are the marks of all clones, by the names of what they are made from.
func (s *Service) clones(ctx context.Context) (map[volume.SnapshotID]string, error) {
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	out := map[volume.SnapshotID]string{}
	for _, v := range all {
		if p := v.Spec.Parent; p != nil && p.Volume != "" {
			out[volume.CloneCut(v.ID)] = markOf(v.Fence.UID)
		}
	}
	return out, nil
}

// sweepClone deletes what was accepted for a clone that had no record when all were read, after
// the cut was seen: the record comes first, and its UID never comes back. Who is cutting for a
// later clone of the name finds it gone, or another one, and cuts anew.
func (s *Service) sweepClone(ctx context.Context, snaps backend.Snapshots, c backend.Cut) error {
	now, err := snaps.Find(ctx, c.ID)
	if errors.Is(err, volume.ErrNotFound) || err == nil && now.Hold != c.Hold {
		return nil
	}
	if err == nil {
		err = snaps.DeleteCut(ctx, c.ID)
	}
	if errors.Is(err, volume.ErrInUse) {
		return nil // a volume without a record needs it
	}
	if err != nil {
		return fmt.Errorf("delete snapshot %s, whose clone is gone: %w", c.ID, err)
	}
	logr.FromContextOrDiscard(ctx).Info("Dropped what was cut for a clone that is gone", "cut", c.ID, "volume", c.Volume)
	return nil
}

// sweepEnding ends a deletion that was killed. What has the name by now is left.
func (s *Service) sweepEnding(ctx context.Context, snaps backend.Snapshots, c backend.Cut) error {
	if _, err := snaps.Find(ctx, c.ID); !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	if err := snaps.DeleteCut(ctx, c.ID); err != nil {
		return fmt.Errorf("end the deletion of snapshot %s: %w", c.ID, err)
	}
	logr.FromContextOrDiscard(ctx).Info("Deletion of a snapshot ended that was killed", "cut", c.ID, "volume", c.Volume)
	return nil
}
