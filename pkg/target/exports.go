package target

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-logr/logr"

	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Account is what an initiator proves who it is with.
type Account struct {
	Username string
	Password exportstate.Secret
}

// ExportVolume lets one initiator log in to a volume and says where. The same
// call again gives the same answer; a new account replaces the former one, unless the
// initiator is logged in (states.md, The account of an admission). Each call
// is a new admission, which GetVolume names: what was asked before knows nothing of it.
//
// The generation is a fence: it is stored with the volume before anybody is let
// in, and a call with a smaller one than stored is refused.
//
// Errors: *InvalidError, ErrNotFound, *StaleGenerationError, *ExportedError (to
// another initiator), ErrInProgress.
func (s *Service) ExportVolume(ctx context.Context, name, initiator string, account Account, generation int64) (Connection, error) {
	return s.exportTo(ctx, name, exportstate.Export{Initiator: initiator, Username: account.Username, Password: account.Password, Generation: generation})
}

// ExportVolumeReadOnly is ExportVolume for an initiator that the server does not let
// write. Others may read beside it, under the same generation (states.md, Readers).
// Errors: those of ExportVolume; *ExportedError while somebody may write, or reads under
// another generation.
func (s *Service) ExportVolumeReadOnly(ctx context.Context, name, initiator string, account Account, generation int64) (Connection, error) {
	return s.exportTo(ctx, name, exportstate.Export{
		Initiator: initiator, Username: account.Username, Password: account.Password, Generation: generation, ReadOnly: true,
	})
}

// exportTo makes one admission, after a check of what was asked for.
func (s *Service) exportTo(ctx context.Context, name string, want exportstate.Export) (Connection, error) {
	if err := checkVolumeName(name); err != nil {
		return Connection{}, err
	}
	var err error
	if want.Initiator, err = normalInitiator(want.Initiator); err != nil {
		return Connection{}, err
	}
	if err := checkCHAP(want.Username, string(want.Password)); err != nil {
		return Connection{}, err
	}
	if want.Generation <= 0 {
		return Connection{}, &InvalidError{Field: "generation", Value: strconv.FormatInt(want.Generation, 10), Accepted: "a positive number"}
	}
	want.Admission = rand.Text()
	return change(ctx, s, name, func(ctx context.Context) (Connection, error) {
		return s.export(ctx, name, want)
	})
}

func (s *Service) export(ctx context.Context, name string, want exportstate.Export) (Connection, error) {
	v, err := s.usable(ctx, name)
	if err != nil {
		return Connection{}, err
	}
	if want.Generation < v.Generation {
		return Connection{}, &StaleGenerationError{Volume: name, Stored: v.Generation, Requested: want.Generation}
	}
	rec, err := s.load(v)
	if err != nil {
		return Connection{}, err
	}
	beside, err := admitsBeside(rec, want)
	if err != nil {
		return Connection{}, err
	}
	// The generation first: from here on the outdated are refused, whatever
	// becomes of this call.
	if v, err = s.vols.SetGeneration(ctx, v, want.Generation); err != nil {
		return Connection{}, err
	}
	want.Target = targetOf(want.Generation)
	for _, e := range rec.Exports {
		if e.Initiator != want.Initiator || e.Generation != want.Generation {
			continue
		}
		want.Target = e.Target // the node may have a session with it
		in, err := s.tree.LoggedIn(s.cfg.iqn(name, e.Target), e.Initiator)
		if err != nil {
			return Connection{}, fmt.Errorf("session of %s: %w", e.Initiator, err)
		}
		if in {
			want.Username, want.Password = e.Username, e.Password // with which it comes back when it is lost
		}
	}
	rec.Exports = append(beside, want)
	if err := s.store.Save(rec); err != nil {
		return Connection{}, fmt.Errorf("store exports of volume %s: %w", name, err)
	}
	if v, err = s.apply(ctx, v, rec); err != nil {
		return Connection{}, err
	}
	return Connection{
		Portals: slices.Clone(s.cfg.Portals), IQN: s.cfg.iqn(name, rec.Target()), LUN: lio.LUN, WWID: lio.WWID(v.Serial()),
	}, nil
}

// admitsBeside returns the exports that stay when another initiator is admitted: none, or
// those of others that read the same content and do not write (states.md, Readers).
// Errors: *ExportedError, *InvalidError.
func admitsBeside(rec exportstate.Record, want exportstate.Export) (stay []exportstate.Export, err error) {
	var against []string
	for _, e := range rec.Exports {
		switch {
		case e.Initiator == want.Initiator && e.Generation == want.Generation && e.ReadOnly != want.ReadOnly:
			return nil, &InvalidError{
				Field: "generation", Value: strconv.FormatInt(want.Generation, 10),
				Accepted: "a larger one: under this one the initiator is admitted " + access(e.ReadOnly) + ", and is to be admitted " + access(want.ReadOnly),
			}
		case e.Initiator == want.Initiator:
		case e.ReadOnly && want.ReadOnly && e.Generation == want.Generation:
			stay = append(stay, e)
		default:
			against = append(against, e.Initiator)
		}
	}
	if len(against) > 0 {
		return nil, &ExportedError{Volume: rec.Volume, Initiators: against}
	}
	return stay, nil
}

// access says what an admission allows.
func access(readOnly bool) string {
	if readOnly {
		return "to read alone"
	}
	return "to write"
}

// UnexportVolume ends an admission of an initiator, whichever it has if admission is
// empty, or everybody's if initiator is empty, and cuts the sessions. What is not
// exported, was exported anew since, or is not there, is not an error.
// Errors: *InvalidError, ErrInProgress.
func (s *Service) UnexportVolume(ctx context.Context, name, initiator, admission string) error {
	if err := checkVolumeName(name); err != nil {
		return err
	}
	if err := checkAdmission(initiator, admission); err != nil {
		return err
	}
	if initiator != "" {
		var err error
		if initiator, err = normalInitiator(initiator); err != nil {
			return err
		}
	}
	return changeOnly(ctx, s, name, func(ctx context.Context) error {
		if initiator == "" {
			// Also the way out when a record cannot be read.
			return s.forgetExports(ctx, name)
		}
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
		rec.Exports = slices.DeleteFunc(rec.Exports, func(e exportstate.Export) bool {
			return e.Initiator == initiator && (admission == "" || e.Admission == admission)
		})
		if len(rec.Exports) == 0 {
			return s.forgetExports(ctx, name)
		}
		if err := s.store.Save(rec); err != nil {
			return fmt.Errorf("store exports of volume %s: %w", name, err)
		}
		_, err = s.apply(ctx, v, rec)
		return err
	})
}

// forgetExports shuts everybody out, first in the record, then in the kernel.
func (s *Service) forgetExports(ctx context.Context, name string) error {
	if err := s.store.Delete(name); err != nil {
		return fmt.Errorf("remove exports of volume %s: %w", name, err)
	}
	err := s.removeExports(ctx, name)
	s.setProblem(name, err)
	return err
}

// removeExports removes all targets of a volume from the kernel, and its backstore.
func (s *Service) removeExports(ctx context.Context, name string) error {
	if err := s.removeTargets(ctx, name, ""); err != nil {
		return err
	}
	return s.tree.RemoveBackstore(ctx, s.cfg.backstore(name))
}

// removeTargets removes the targets of a volume, of whatever admission, but the one that is
// to stay, if any.
func (s *Service) removeTargets(ctx context.Context, name, stays string) error {
	targets, err := s.tree.Targets(s.cfg.iqnBase() + name)
	if err != nil {
		return fmt.Errorf("read the kernel's targets: %w", err)
	}
	for _, iqn := range targets {
		if s.cfg.volumeOf(iqn) != name || iqn == stays { // volume a and volume a-b
			continue
		}
		if err := s.tree.RemoveTarget(ctx, iqn); err != nil {
			return err
		}
	}
	return nil
}

// apply makes the kernel export the volume as recorded. Targets of other admissions go
// first: at no time is a session of an earlier one let in beside the new one.
func (s *Service) apply(ctx context.Context, v lvol.Volume, rec exportstate.Record) (_ lvol.Volume, err error) {
	defer func() { s.setProblem(v.Name, err) }()
	iqn := s.cfg.iqn(v.Name, rec.Target())
	if err := s.removeTargets(ctx, v.Name, iqn); err != nil {
		return v, err
	}
	active, err := s.vols.Activate(ctx, v)
	if err != nil {
		return v, err
	}
	v = active
	want := lio.Target{
		IQN: iqn, Backstore: s.cfg.backstore(v.Name), Device: v.Path, Serial: v.Serial(),
		Product: volume.LUNProduct(rec.Generation()),
		// Only a thin volume: there it gives room back and reads as zeros after.
		Unmap:    v.Thin && !rec.ReadOnly(),
		ReadOnly: rec.ReadOnly(),
		Portals:  s.cfg.Portals,
	}
	for _, e := range rec.Exports {
		want.ACLs = append(want.ACLs, lio.ACL{Initiator: e.Initiator, Username: e.Username, Password: string(e.Password)})
	}
	if err := s.tree.Ensure(ctx, want); err != nil {
		return v, err
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("Exported", "initiators", rec.Initiators())
	return v, nil
}
