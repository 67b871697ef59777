package target

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/target/lvol"
)

// snapshotLock begins the locks of snapshots; no volume's name has a blank.
const snapshotLock = "snapshot "

// What LVM takes in a tag.
const (
	noteAccepted = `up to 255 letters, digits and _ + . - / = ! : & #`
	holdAccepted = `1 to 255 letters, digits and _ + . - / = ! : & #`
)

var (
	notePattern = regexp.MustCompile(`^[A-Za-z0-9_+.\-/=!:&#]{0,255}$`)
	holdPattern = regexp.MustCompile(`^[A-Za-z0-9_+.\-/=!:&#]{1,255}$`)
)

// SnapshotRequest asks for a snapshot of a volume. Hold and Filesystem are kept with it.
type SnapshotRequest struct {
	Name, Volume, Hold, Filesystem string
}

func (s *Service) checkSnapshot(name string) error {
	if err := checkVolumeName(name); err != nil {
		return err
	}
	if err := s.vols.CheckSnapshotName(name); err != nil {
		return &InvalidError{Field: "name", Value: name, Accepted: err.Error()}
	}
	return nil
}

func (s *Service) checkSnapshotRequest(req SnapshotRequest) error {
	if err := s.checkSnapshot(req.Name); err != nil {
		return err
	}
	for _, f := range []struct {
		field, value, accepted string
		pattern                *regexp.Regexp
	}{
		{"volume", req.Volume, volumeNameAccepted, volumeNamePattern},
		{"hold", req.Hold, holdAccepted, holdPattern},
		{"filesystem", req.Filesystem, noteAccepted, notePattern},
	} {
		if !f.pattern.MatchString(f.value) {
			return &InvalidError{Field: f.field, Value: f.value, Accepted: f.accepted}
		}
	}
	return nil
}

// changeBoth is change for what concerns a volume and a snapshot. Locks are taken in this
// order by everybody.
func changeBoth[T any](ctx context.Context, s *Service, volume, snapshot string, op func(ctx context.Context) (T, error)) (T, error) {
	given := epochOf(ctx)
	return do(ctx, s, volume, func(ctx context.Context) (none T, err error) {
		unlock, err := s.locks.Lock(ctx, snapshotLock+snapshot)
		if err != nil {
			return none, err
		}
		defer unlock()
		if err := s.checkEpoch(given); err != nil {
			return none, err
		}
		return op(ctx)
	})
}

// CreateSnapshot makes a snapshot of a thin volume, or finds the one of that name.
// Errors: *InvalidError, ErrNotFound, ErrAlreadyExists, ErrNoSpace, ErrInProgress.
func (s *Service) CreateSnapshot(ctx context.Context, req SnapshotRequest) (lvol.Snapshot, error) {
	if err := s.checkSnapshotRequest(req); err != nil {
		return lvol.Snapshot{}, err
	}
	return changeBoth(ctx, s, req.Volume, req.Name, func(ctx context.Context) (lvol.Snapshot, error) {
		have, err := s.vols.GetSnapshot(ctx, req.Name)
		switch {
		case err == nil && have.Done && have.Volume != req.Volume:
			return lvol.Snapshot{}, fmt.Errorf("%w: snapshot %s is of volume %s", ErrAlreadyExists, req.Name, have.Volume)
		case err == nil && have.Done:
			return have, nil
		case err == nil:
			// Of a call that was cut off, nobody knows of which moment.
			err = s.vols.DeleteSnapshot(ctx, have)
		case errors.Is(err, lvol.ErrNotFound):
			err = nil
		}
		if err != nil {
			return lvol.Snapshot{}, err
		}
		v, err := s.usable(ctx, req.Volume)
		if err != nil {
			return lvol.Snapshot{}, err
		}
		made, err := s.vols.Cut(ctx, v, lvol.SnapshotSpec{Name: req.Name, Hold: req.Hold, Filesystem: req.Filesystem, Created: time.Now()})
		if errors.Is(err, lvol.ErrThick) {
			err = &InvalidError{Field: "volume", Value: req.Volume, Accepted: "a thin volume; a thick one has no snapshots"}
		}
		return made, raced(err)
	})
}

// raced is for a name that was free a moment ago: a command of the server that ran before
// this one still goes on (Commands that go on in states.md).
func raced(err error) error {
	if errors.Is(err, lvol.ErrExists) {
		return fmt.Errorf("%w: %s", ErrInProgress, err.Error())
	}
	return err
}

// GetSnapshot returns a snapshot, done or not.
// Errors: *InvalidError, ErrNotFound.
func (s *Service) GetSnapshot(ctx context.Context, name string) (lvol.Snapshot, error) {
	if err := s.checkSnapshot(name); err != nil {
		return lvol.Snapshot{}, err
	}
	found, err := s.vols.GetSnapshot(ctx, name)
	if errors.Is(err, lvol.ErrForeign) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return found, translate(err)
}

// accepted returns a snapshot of which volumes may be made.
func (s *Service) accepted(ctx context.Context, name string) (lvol.Snapshot, error) {
	found, err := s.vols.GetSnapshot(ctx, name)
	if err == nil && (!found.Done || !found.Accepted) {
		err = fmt.Errorf("%w: snapshot %s was not accepted", ErrNotFound, name)
	}
	return found, err
}

// AcceptSnapshot keeps with a snapshot of a hold that its maker has accepted it.
// Errors: *InvalidError, ErrNotFound.
func (s *Service) AcceptSnapshot(ctx context.Context, name, hold string) error {
	if err := s.checkSnapshot(name); err != nil {
		return err
	}
	if !holdPattern.MatchString(hold) {
		return &InvalidError{Field: "hold", Value: hold, Accepted: holdAccepted}
	}
	return changeOnly(ctx, s, snapshotLock+name, func(ctx context.Context) error {
		found, err := s.vols.GetSnapshot(ctx, name)
		if err == nil && (!found.Done || found.Hold != hold) {
			err = fmt.Errorf("%w: snapshot %s is not done, or of another hold than %s", ErrNotFound, name, hold)
		}
		if err != nil {
			return err
		}
		return s.vols.Accept(ctx, found)
	})
}

// DeleteSnapshot removes a snapshot; one that does not exist is not an error. With a hold, one
// that was accepted, or has another hold, stays, and that is no error either.
// Errors: *InvalidError, ErrBusy, ErrInProgress.
func (s *Service) DeleteSnapshot(ctx context.Context, name, unacceptedHold string) error {
	if err := s.checkSnapshot(name); err != nil {
		return err
	}
	if !notePattern.MatchString(unacceptedHold) {
		return &InvalidError{Field: "unaccepted_hold", Value: unacceptedHold, Accepted: noteAccepted}
	}
	return changeOnly(ctx, s, snapshotLock+name, func(ctx context.Context) error {
		found, err := s.vols.GetSnapshot(ctx, name)
		if errors.Is(err, lvol.ErrNotFound) || errors.Is(err, lvol.ErrForeign) {
			return nil
		}
		if err != nil {
			return err
		}
		if unacceptedHold != "" && (found.Accepted || found.Hold != unacceptedHold) {
			return nil
		}
		return s.vols.DeleteSnapshot(ctx, found)
	})
}

// ListSnapshots returns up to limit snapshots (0: all) sorted by name, those after the name in
// token, and the token for the rest.
func (s *Service) ListSnapshots(ctx context.Context, limit int32, token string) ([]lvol.Snapshot, string, error) {
	if err := checkPage(limit, token); err != nil {
		return nil, "", err
	}
	all, err := s.vols.Snapshots(ctx)
	if err != nil {
		return nil, "", translate(err)
	}
	out, next := page(all, limit, token, func(c lvol.Snapshot) string { return c.Name })
	return out, next, nil
}

// checkPage takes the two parameters of a list.
func checkPage(limit int32, token string) error {
	if limit < 0 {
		return &InvalidError{Field: "max_entries", Value: strconv.Itoa(int(limit)), Accepted: "0 or a positive number"}
	}
	if token != "" && !volumeNamePattern.MatchString(token) {
		return &InvalidError{Field: "starting_token", Value: token, Accepted: "next_token of an earlier answer"}
	}
	return nil
}

// page returns the part of a list that begins behind a name, and the token for the rest.
func page[T any](all []T, limit int32, token string, name func(T) string) (part []T, next string) {
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(name(a), name(b)) })
	all = slices.DeleteFunc(all, func(v T) bool { return name(v) <= token })
	if limit > 0 && len(all) > int(limit) {
		all = all[:limit]
		next = name(all[limit-1])
	}
	return all, next
}

// CreateVolumeFromSnapshot makes a thin volume of at least size bytes that begins as a
// snapshot, or finds the one a former call has made.
// Errors: *InvalidError, ErrNotFound without the snapshot, ErrAlreadyExists, ErrNoSpace,
// ErrInProgress.
func (s *Service) CreateVolumeFromSnapshot(ctx context.Context, name string, size int64, p Provisioning, snapshot string) (Volume, error) {
	if err := s.checkNew(name, size, p); err != nil {
		return Volume{}, err
	}
	if !volumeNamePattern.MatchString(snapshot) {
		return Volume{}, &InvalidError{Field: "snapshot", Value: snapshot, Accepted: volumeNameAccepted}
	}
	if p == Thick {
		return Volume{}, &InvalidError{Field: "provisioning", Value: string(p), Accepted: "thin or unspecified; what begins as a snapshot is thin"}
	}
	return changeBoth(ctx, s, name, snapshot, func(ctx context.Context) (Volume, error) {
		v, err := s.findOrMake(ctx, name, func(v lvol.Volume) error { return s.sameVolume(v, size, Thin, snapshot) },
			func() (lvol.Volume, error) {
				from, err := s.accepted(ctx, snapshot)
				if err != nil {
					return lvol.Volume{}, err
				}
				if size < from.SizeBytes {
					return lvol.Volume{}, &InvalidError{Field: "size_bytes", Value: strconv.FormatInt(size, 10), Accepted: fmt.Sprintf("%d, the size of snapshot %s, and more", from.SizeBytes, snapshot)}
				}
				v, err := s.vols.CreateFrom(ctx, name, size, from)
				return v, raced(err)
			})
		if err != nil {
			return Volume{}, err
		}
		return s.describe(v)
	})
}

// cleanUpSnapshots removes the snapshots of which interrupted work has left something.
func (s *Service) cleanUpSnapshots(ctx context.Context) error {
	names, err := s.vols.UnfinishedSnapshots(ctx)
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, doOnly(ctx, s, snapshotLock+name, func(ctx context.Context) error { return s.vols.CleanUpSnapshot(ctx, name) }))
	}
	return errors.Join(errs...)
}
