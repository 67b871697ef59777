package target

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nearflash/nearflash/pkg/target/lvol"
)

// CreateVolume makes a volume of at least size bytes that reads as zeros, or finds
// the one a former call has made.
// Errors: *InvalidError, ErrAlreadyExists, ErrNoSpace, ErrInProgress.
func (s *Service) CreateVolume(ctx context.Context, name string, size int64, p Provisioning) (Volume, error) {
	if err := s.checkNew(name, size, p); err != nil {
		return Volume{}, err
	}
	return change(ctx, s, name, func(ctx context.Context) (Volume, error) {
		v, err := s.findOrMake(ctx, name, func(v lvol.Volume) error { return s.sameVolume(v, size, p, "") },
			func() (lvol.Volume, error) { return s.vols.Create(ctx, name, size, s.provisioning(p) == Thin) })
		if err != nil {
			return Volume{}, err
		}
		return s.describe(v)
	})
}

// findOrMake returns the volume of a name if it is the same that is asked for, and makes it if
// there is none.
func (s *Service) findOrMake(ctx context.Context, name string, same func(lvol.Volume) error, fresh func() (lvol.Volume, error)) (lvol.Volume, error) {
	v, err := s.vols.Get(ctx, name)
	if err == nil && v.State != lvol.Ready {
		// Rests of a call that was cut off: the caller never got an answer.
		if err = s.remove(ctx, v); err == nil {
			err = lvol.ErrNotFound
		}
	}
	switch {
	case err == nil:
		return v, same(v)
	case !errors.Is(err, lvol.ErrNotFound):
		return lvol.Volume{}, err
	}
	// A former volume of that name may have vanished behind our back and left
	// exports: they must not be found again by the new one.
	if err := s.forgetExports(ctx, name); err != nil {
		return lvol.Volume{}, err
	}
	return fresh()
}

func (s *Service) checkNew(name string, size int64, p Provisioning) error {
	if err := checkVolumeName(name); err != nil {
		return err
	}
	if err := s.vols.CheckName(name); err != nil {
		return &InvalidError{Field: "name", Value: name, Accepted: err.Error()}
	}
	if err := s.checkSize(size); err != nil {
		return err
	}
	return s.checkProvisioning(p)
}

func (s *Service) checkSize(size int64) error {
	if _, err := s.vols.RoundUp(size); err != nil {
		return &InvalidError{Field: "size_bytes", Value: strconv.FormatInt(size, 10), Accepted: "a positive number of bytes below 2^63"}
	}
	return nil
}

func (s *Service) checkProvisioning(p Provisioning) error {
	switch {
	case p == "" || p == Thick || (p == Thin && s.cfg.ThinPool != ""):
		return nil
	case p == Thin:
		return &InvalidError{Field: "provisioning", Value: string(p), Accepted: "thick (this server has no thin pool)"}
	default:
		return &InvalidError{Field: "provisioning", Value: string(p), Accepted: "thin, thick, or unspecified for the server's default"}
	}
}

func (s *Service) provisioning(p Provisioning) Provisioning {
	if p == "" {
		return s.cfg.DefaultProvisioning
	}
	return p
}

// sameVolume compares what exists with what is asked for. Without a provisioning
// in the request any will do: the server's default may have changed since.
func (s *Service) sameVolume(v lvol.Volume, size int64, p Provisioning, from string) error {
	rounded, err := s.vols.RoundUp(size)
	if err != nil {
		return err
	}
	if v.SizeBytes != rounded {
		return fmt.Errorf("%w: %s has %d bytes, %d were asked for", ErrAlreadyExists, v.Name, v.SizeBytes, size)
	}
	if p != "" && (p == Thin) != v.Thin {
		return fmt.Errorf("%w: %s is not provisioned %s", ErrAlreadyExists, v.Name, p)
	}
	if v.From != from {
		return fmt.Errorf("%w: %s was made of snapshot %q, %q was asked for", ErrAlreadyExists, v.Name, v.From, from)
	}
	return nil
}

// DeleteVolume removes a volume that is not exported; one that does not exist is
// not an error.
// Errors: *InvalidError, *ExportedError, ErrBusy, ErrInProgress.
func (s *Service) DeleteVolume(ctx context.Context, name string) error {
	if err := checkVolumeName(name); err != nil {
		return err
	}
	return changeOnly(ctx, s, name, func(ctx context.Context) error {
		v, err := s.vols.Get(ctx, name)
		if errors.Is(err, lvol.ErrNotFound) || errors.Is(err, lvol.ErrForeign) {
			return s.forgetExports(ctx, name)
		}
		if err != nil {
			return err
		}
		rec, err := s.load(v)
		if err != nil {
			return err
		}
		if len(rec.Exports) > 0 {
			return &ExportedError{Volume: name, Initiators: rec.Initiators()}
		}
		return s.remove(ctx, v)
	})
}

// remove deletes a volume that nobody may use any more.
func (s *Service) remove(ctx context.Context, v lvol.Volume) error {
	if err := s.forgetExports(ctx, v.Name); err != nil {
		return err
	}
	return s.vols.Delete(ctx, v)
}

// ExpandVolume grows a volume to at least size bytes and returns its size. It
// never shrinks one.
// Errors: *InvalidError, ErrNotFound, ErrNoSpace, ErrInProgress.
func (s *Service) ExpandVolume(ctx context.Context, name string, size int64) (int64, error) {
	if err := checkVolumeName(name); err != nil {
		return 0, err
	}
	if err := s.checkSize(size); err != nil {
		return 0, err
	}
	return change(ctx, s, name, func(ctx context.Context) (int64, error) {
		v, err := s.usable(ctx, name)
		if err != nil {
			return 0, err
		}
		v, err = s.vols.Expand(ctx, v, size)
		return v.SizeBytes, err
	})
}

// GetVolume returns a volume in whatever state it is.
// Errors: *InvalidError, ErrNotFound.
func (s *Service) GetVolume(ctx context.Context, name string) (Volume, error) {
	if err := checkVolumeName(name); err != nil {
		return Volume{}, err
	}
	v, err := s.vols.Get(ctx, name)
	if errors.Is(err, lvol.ErrForeign) {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return Volume{}, translate(err)
	}
	return s.describe(v)
}

// ListVolumes returns up to limit volumes (0: all) sorted by name, those after the
// name in token, and the token for the rest.
func (s *Service) ListVolumes(ctx context.Context, limit int32, token string) ([]Volume, string, error) {
	if err := checkPage(limit, token); err != nil {
		return nil, "", err
	}
	all, err := s.vols.List(ctx)
	if err != nil {
		return nil, "", translate(err)
	}
	all, next := page(all, limit, token, func(v lvol.Volume) string { return v.Name })
	out := make([]Volume, 0, len(all))
	for _, v := range all {
		d, err := s.describe(v)
		if err != nil {
			return nil, "", err
		}
		out = append(out, d)
	}
	return out, next, nil
}

// Capacity reports the room for volumes of a provisioning.
// Errors: *InvalidError.
func (s *Service) Capacity(ctx context.Context, p Provisioning) (lvol.Capacity, error) {
	if err := s.checkProvisioning(p); err != nil {
		return lvol.Capacity{}, err
	}
	return s.vols.Capacity(ctx, s.provisioning(p) == Thin)
}
