package provision

import (
	"context"
	"errors"
	"fmt"
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
		logr.FromContextOrDiscard(ctx).Info("Hold of a volume ended, nobody asked for it any more", "volume", id, "name", ended.Name, "since", ended.Since)
	}
	return err
}

// SweepCuts deletes what was cut, and never accepted, for requests that nobody repeats. lock
// is tried for each volume.
func (s *Service) SweepCuts(ctx context.Context, lock func(key string) (unlock func(), ok bool)) error {
	var errs []error
	for _, at := range s.configured() {
		snaps, cuts, err := s.cutsAt(ctx, at)
		errs = append(errs, err)
		for _, c := range cuts {
			if c.Accepted || s.now().Before(HoldExpires(c.Created)) {
				continue
			}
			if unlock, ok := lock(string(c.Volume)); ok {
				errs = append(errs, s.sweepCut(ctx, snaps, c))
				unlock()
			}
		}
	}
	return errors.Join(errs...)
}

// sweepCut deletes a cut whose hold is over. The record is read after the cut was seen: a hold
// that is over by then does not come back. What was accepted meanwhile is left.
func (s *Service) sweepCut(ctx context.Context, snaps backend.Snapshots, c backend.Cut) error {
	v, err := s.Get(ctx, c.Volume)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	if err == nil && v.Hold != nil && v.Hold.Token == c.Hold {
		return nil
	}
	if err := snaps.DropCut(ctx, c.ID, c.Hold); err != nil {
		return fmt.Errorf("delete snapshot %s, which was not accepted: %w", c.ID, err)
	}
	logr.FromContextOrDiscard(ctx).Info("Dropped what was cut and not accepted", "cut", c.ID, "volume", c.Volume)
	return nil
}
