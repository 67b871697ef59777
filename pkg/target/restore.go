package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/nearflash/nearflash/pkg/target/lvol"
)

// Restore makes the server as recorded: it exports every volume to whom it was
// exported, and removes everything of ours from the kernel that is not recorded. What
// interrupted work has left is for CleanUp. One volume that cannot be restored does
// not keep the others from it: it is named by Problems and tried again by Repair.
func (s *Service) Restore(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	if _, err := s.store.Epoch(); err != nil {
		return fmt.Errorf("read the epoch: %w", err) // who may change something is not known
	}
	recorded, err := s.store.List()
	if err != nil {
		return fmt.Errorf("read recorded exports: %w", err)
	}
	if err := s.removeUnrecorded(ctx, recorded); err != nil {
		return err
	}
	for _, name := range recorded {
		if err := s.restoreVolume(ctx, name); err != nil {
			s.setProblem(name, err)
			log.Error(err, "Volume is not exported as recorded", "volume", name)
		}
	}
	log.Info("Exports restored", "volumes", len(recorded), "problems", len(s.troubled()))
	return nil
}

// removeUnrecorded removes targets and backstores that no record asks for. Those
// of other programs are not ours by name and stay.
func (s *Service) removeUnrecorded(ctx context.Context, recorded []string) error {
	targets, err := s.tree.Targets(s.cfg.iqnBase())
	if err != nil {
		return fmt.Errorf("read the kernel's targets: %w", err)
	}
	var errs []error
	for _, iqn := range targets {
		if !slices.Contains(recorded, s.cfg.volumeOf(iqn)) {
			errs = append(errs, s.tree.RemoveTarget(ctx, iqn))
		}
	}
	stores, err := s.tree.Backstores(s.cfg.backstore(""))
	if err != nil {
		return fmt.Errorf("read the kernel's backstores: %w", err)
	}
	for _, name := range stores {
		if !slices.Contains(recorded, strings.TrimPrefix(name, s.cfg.backstore(""))) {
			errs = append(errs, s.tree.RemoveBackstore(ctx, name))
		}
	}
	return errors.Join(errs...)
}

func (s *Service) restoreVolume(ctx context.Context, name string) error {
	return doOnly(ctx, s, name, func(ctx context.Context) error {
		v, err := s.vols.Get(ctx, name)
		if errors.Is(err, lvol.ErrNotFound) {
			recorded, listErr := s.store.List()
			if listErr != nil {
				return listErr
			}
			if !slices.Contains(recorded, name) { // deleted since it had a problem, perhaps not in the kernel
				return s.forgetExports(ctx, name)
			}
			// Kept, not forgotten: the volume may be on a disk that is missing now.
			return errors.Join(fmt.Errorf("recorded as exported, but the logical volume is missing: %w", err),
				s.removeExports(ctx, name))
		}
		if err != nil {
			return err
		}
		rec, err := s.load(v)
		if err != nil {
			return err
		}
		if len(rec.Exports) == 0 || v.State != lvol.Ready { // an unfinished one may show old data
			return s.forgetExports(ctx, name)
		}
		_, err = s.apply(ctx, v, rec)
		return err
	})
}

// CleanUp finishes or undoes what interrupted work has left, one volume after the other, and
// returns when it is done or ctx ends. It comes after Restore and beside the service: a device
// that takes long to discard keeps nobody from the other volumes, and calls for its own
// wait for it (states.md, The record).
func (s *Service) CleanUp(ctx context.Context) {
	names, err := s.vols.Unfinished(ctx)
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, s.cleanUpVolume(ctx, name))
	}
	errs = append(errs, s.cleanUpSnapshots(ctx))
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		// CreateVolume or DeleteVolume of the same name try again.
		s.problemsMu.Lock()
		s.cleanUp = "clean up at start: " + err.Error()
		s.problemsMu.Unlock()
		logr.FromContextOrDiscard(ctx).Error(err, "Unfinished volumes are left")
	}
}

func (s *Service) cleanUpVolume(ctx context.Context, name string) error {
	return doOnly(ctx, s, name, func(ctx context.Context) error {
		v, err := s.vols.Get(ctx, name) // as it is now: a call may have been there before
		if err != nil && !errors.Is(err, lvol.ErrNotFound) && !errors.Is(err, lvol.ErrForeign) {
			return err
		}
		if err == nil && v.State != lvol.Ready {
			if err := s.forgetExports(ctx, name); err != nil {
				return err
			}
		}
		return s.vols.CleanUp(ctx, name)
	})
}

// Repair tries again, every interval, to export what has a problem. It returns
// when ctx ends.
func (s *Service) Repair(ctx context.Context, interval time.Duration) {
	log := logr.FromContextOrDiscard(ctx)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for name := range s.troubled() {
			if err := s.restoreVolume(ctx, name); err != nil {
				s.setProblem(name, err)
				log.V(1).Info("Volume is still not exported as recorded", "volume", name, "err", err.Error())
				continue
			}
			s.setProblem(name, nil)
			log.Info("Volume is exported as recorded again", "volume", name)
		}
	}
}
