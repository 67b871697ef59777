package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Bounds of what is asked of a LUN. A path that is lost does not answer until its
// session is back or given up.
const (
	reserveTimeout      = 20 * time.Second
	reservationLookTime = 5 * time.Second
)

// Reserver speaks to the paths of a LUN.
type Reserver interface {
	LUN(path string) reservation.LUN
}

func keyOf(f volume.Fence) reservation.Key { return reservation.KeyOf(f.UID, f.Generation) }

// paths are those of a connected LUN. Without a Reserver no LUN can be reserved.
func (a *Attacher) paths(o transport.Origin) []reservation.Path {
	var out []reservation.Path
	for _, p := range o.Paths {
		out = append(out, reservation.Path{Name: p, LUN: a.Reserver.LUN(p)})
	}
	return out
}

// reserve fences a static volume before its paths are used (states.md, The fence of a
// static volume). The record names this node as published owner. A hydration that is about to
// begin journals the same entry meanwhile, and does not wait for the LUN.
func (a *Attacher) reserve(ctx context.Context, s *staging, o transport.Origin) error {
	e := s.entry
	if !e.Static {
		return nil
	}
	var own, unfenced bool
	if err := s.update(func(e *state.Entry) error {
		own, unfenced = e.Reserved && !e.Inherited, e.Unfenced
		e.Reserved, e.Inherited, e.Lost = true, true, nil
		return a.save(ctx, e, e.State)
	}); err != nil {
		return err
	}
	tctx, cancel := context.WithTimeout(ctx, reserveTimeout)
	defer cancel()
	before, err := reservation.Take(tctx, a.paths(o), keyOf(e.Fence))
	switch {
	case err == nil:
		return s.update(func(e *state.Entry) error {
			if e.Inherited, e.Unfenced = before.Inherited(own), false; e.Inherited && !unfenced {
				return nil
			}
			return a.save(ctx, e, e.State)
		})
	case errors.Is(err, reservation.ErrUnsupported) && s.req.AcceptTwoWriters:
		klog.FromContext(ctx).Info("The LUN is not fenced, which the volume accepts", "volume", e.ID, "reason", err.Error())
		return s.update(func(e *state.Entry) error {
			e.Reserved, e.Inherited, e.Unfenced = false, false, true
			return a.save(ctx, e, e.State)
		})
	case errors.Is(err, reservation.ErrUnsupported):
		return fmt.Errorf("%w: volumeAttribute withoutReservations is not set, and %s cannot be fenced (%w): after a force detach a pod that goes on would write beside the next one; accepted is %q, which consents to that",
			volume.ErrInvalid, e.Source, err, volume.AcceptTwoWriters)
	case errors.Is(err, reservation.ErrForeign):
		return fmt.Errorf("%w: %s: %w: end its use there, then remove the key, for example with sg_persist --clear", volume.ErrInUse, e.Source, err)
	case errors.Is(err, reservation.ErrLater):
		return fmt.Errorf("%w: %s: %w (was the record restored from a backup?)", volume.ErrFenced, e.Source, err)
	}
	return fmt.Errorf("%w: reserve %s: %w", volume.ErrUnavailable, e.Source, err)
}

// reserveAgain fences a static volume that repair is about to flush, and no pod has.
func (a *Attacher) reserveAgain(ctx context.Context, e *state.Entry, o transport.Origin) error {
	if !e.Static || e.Unfenced && !e.Reserved {
		return nil
	}
	had := e.Reserved && !e.Unfenced // not one that a version attached which did not reserve
	tctx, cancel := context.WithTimeout(ctx, reserveTimeout)
	defer cancel()
	f, paths, err := reservation.Inspect(tctx, a.paths(o), keyOf(e.Fence))
	if errors.Is(err, reservation.ErrUnsupported) && !had {
		return a.unreserve(ctx, e)
	}
	if err != nil {
		return fmt.Errorf("%w: reservation of %s: %w", volume.ErrUnavailable, e.Source, err)
	}
	entitled := reservation.EntitledUnknown
	if !f.Found {
		entitled = a.entitled(ctx, e)
	}
	step, who := reservation.DecideReturn(f, entitled, had)
	switch step {
	case reservation.StepLost:
		e.Lost = &state.Lost{To: who}
		return errors.Join(fmt.Errorf("%w: %s is reserved for %s", volume.ErrFenced, e.Source, who), a.save(ctx, e, e.State))
	case reservation.StepLater:
		return fmt.Errorf("%w: %s is reserved for %s", volume.ErrFenced, e.Source, who)
	case reservation.StepNothing:
		return fmt.Errorf("%w: nothing shows whether %s has had another owner since node %s; unflushed writes of volume %s are kept", volume.ErrUnavailable, e.Source, a.Node, e.ID)
	}
	// A journal that does not know who made the reservation does not end it.
	e.Inherited = e.Inherited || f.Before().Inherited(e.Reserved)
	e.Reserved = true
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	_, err = reservation.Take(tctx, paths, keyOf(e.Fence))
	if errors.Is(err, reservation.ErrUnsupported) && !had {
		return a.unreserve(ctx, e)
	}
	if err != nil {
		return fmt.Errorf("%w: reserve %s: %w", volume.ErrUnavailable, e.Source, err)
	}
	return nil
}

// unreserve journals that the LUN is not reserved: a stage that could not ask it, or repair,
// said from before that it was.
func (a *Attacher) unreserve(ctx context.Context, e *state.Entry) error {
	e.Reserved, e.Inherited = false, false
	return a.write(ctx, e)
}

// entitled asks the record whether nobody else may have the volume, another machine under
// this node's name neither (states.md, Whose disks these are).
func (a *Attacher) entitled(ctx context.Context, e *state.Entry) reservation.Entitled {
	rec, err := a.Records.Get(ctx, e.ID)
	switch {
	case err != nil:
		return reservation.EntitledUnknown
	case rec.Fence == e.Fence && rec.LastStage(e.Activation()):
		return reservation.EntitledYes
	case rec.Fence.UID == e.Fence.UID && rec.Fence.Generation > e.Fence.Generation:
		return reservation.EntitledNo
	}
	return reservation.EntitledUnknown // another record or stage, or one out of a backup
}

// giveReservation ends the node's registrations; its devices are gone. A key that stays
// is preempted by the next owner.
func (a *Attacher) giveReservation(ctx context.Context, e *state.Entry) {
	if !e.Static || !e.Reserved || e.Inherited {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reservationLookTime)
	defer cancel()
	o, found, err := a.Transport.Lookup(ctx, transport.Target{Source: e.Source})
	if err != nil || !found {
		return
	}
	if err := reservation.Give(ctx, a.paths(o), keyOf(e.Fence)); err != nil {
		klog.FromContext(ctx).Error(err, "Reservation was not ended, the next owner will", "volume", e.ID)
		return
	}
	e.Reserved = false // what is found under the key from now on somebody else made
}

// knownReservation is what the journal of before knows of the reservation under fence f. That
// this machine made it, where nobody had the LUN, it is believed of this boot and of the
// record's last stage: an image of it, and a machine of the same name, say the same.
func (a *Attacher) knownReservation(e *state.Entry, rec volume.Volume, f volume.Fence) (reserved, inherited bool) {
	if e == nil || e.Fence != f || !e.Reserved {
		return false, false
	}
	return true, e.Inherited || e.Boot != a.Boot || !rec.LastStage(e.Activation())
}

// RunReservations watches the reservations of static volumes until ctx ends.
func (a *Attacher) RunReservations(ctx context.Context, every time.Duration) {
	passes.Repeat(ctx, every, a.WatchReservations, func(err error) {
		klog.FromContext(ctx).Error(err, "Reservations could not be examined or restored; it is tried again")
	})
}

// WatchReservations looks once at the reservations of all static volumes that are
// attached, beside each other: a LUN whose paths are lost answers late.
func (a *Attacher) WatchReservations(ctx context.Context) error {
	entries, err := a.Journal.List()
	problems := []error{err}
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range entries {
		e := &entries[i]
		if !underReservation(e) {
			continue
		}
		all.Go(func() {
			if err := a.watchReservation(ctx, e); err != nil {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, fmt.Errorf("reservation of volume %s: %w", e.ID, err))
			}
		})
	}
	all.Wait()
	return errors.Join(problems...)
}

// underReservation tells an entry whose paths write, or fail for the pod, under a reservation.
func underReservation(e *state.Entry) bool {
	return e.Static && (e.Reserved || e.Lost != nil) && (e.State == state.Staged || e.State == state.Flushing)
}

func (a *Attacher) watchReservation(ctx context.Context, e *state.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, 2*reservationLookTime)
	defer cancel()
	if e.Lost == nil {
		step, _, _, err := a.inspectReservation(ctx, e)
		if err != nil || step == reservation.StepNothing {
			return err
		}
	} else if e.Lost.Told {
		return nil
	}
	e, unlock, err := a.lockSettled(ctx, e.ID)
	defer unlock()
	if err != nil || e == nil || !underReservation(e) {
		return err
	}
	if e.Lost != nil {
		return a.lose(ctx, e)
	}
	step, who, paths, err := a.inspectReservation(ctx, e)
	switch {
	case err != nil:
		return err
	case step == reservation.StepNothing:
		return nil
	case step == reservation.StepLost:
		e.Lost = &state.Lost{To: who}
		return a.lose(ctx, e)
	}
	klog.FromContext(ctx).Info("Reservation is restored", "volume", e.ID, "step", step, "key", who)
	return reservation.Restore(ctx, paths, keyOf(e.Fence), step, who)
}

// inspectReservation gathers and decides. Paths that do not answer prove nothing.
func (a *Attacher) inspectReservation(ctx context.Context, e *state.Entry) (reservation.Step, reservation.Key, []reservation.Path, error) {
	o, found, err := a.Transport.Lookup(ctx, transport.Target{Source: e.Source})
	if err != nil || !found {
		return reservation.StepNothing, 0, nil, err
	}
	lctx, cancel := context.WithTimeout(ctx, reservationLookTime)
	defer cancel()
	f, paths, err := reservation.Inspect(lctx, a.paths(o), keyOf(e.Fence))
	if err != nil {
		klog.FromContext(ctx).V(2).Info("No path tells of its reservation", "volume", e.ID, "reason", err.Error())
		return reservation.StepNothing, 0, nil, nil
	}
	entitled := reservation.EntitledUnknown
	if !f.Found || f.Unregistered() {
		entitled = a.entitled(ctx, e)
	}
	step, who := reservation.DecideWatch(f, entitled)
	return step, who, paths, nil
}

// lose keeps a pod from what is not its volume any more, in the order of states.md.
func (a *Attacher) lose(ctx context.Context, e *state.Entry) error {
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultLostJournaled.Hit()
	_, found, err := a.stack.Top(ctx, e.ID)
	if err != nil {
		return err
	}
	if found {
		table, err := a.DM.Table(ctx, layout.Device(e.ID, layout.Top))
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Error(nil, "The LUN is reserved for somebody else: the volume fails from now on", "volume", e.ID, "key", e.Lost.To)
		a.stack.FinalCount(ctx, e.ID)
		failing := devmapper.Table{{Start: 0, Length: table.Sectors(), Target: devmapper.ErrorTarget{}}}
		// A filesystem writes when it is frozen. The LUN refuses that, or takes it if it has
		// forgotten the reservation.
		if err := a.stack.ReloadBy(ctx, layout.Device(e.ID, layout.Top), failing, a.DM.ResumeUnfrozen); err != nil {
			return err
		}
	}
	faultLostSwapped.Hit()
	if err := a.reportLost(ctx, e); err != nil {
		return err
	}
	e.Lost.Told = true
	return a.save(ctx, e, e.State)
}

func (a *Attacher) reportLost(ctx context.Context, e *state.Entry) error {
	rec, err := a.Records.Get(ctx, e.ID)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	by := fmt.Sprintf("key %s", e.Lost.To)
	switch {
	case e.Lost.To == 0:
		by = "nobody, and the record names another owner"
	case !e.Lost.To.Ours():
		by += ", a host outside of nearflash"
	case e.Lost.To.Later(keyOf(e.Fence)):
		by = fmt.Sprintf("generation %d of the volume", e.Lost.To.Generation())
	}
	err = a.Records.Report(ctx, e.ID, volume.CacheReport{
		Reason: v1alpha1.ReasonReservationLost, Warning: true, EventOnly: rec.Fence != e.Fence,
		Message: fmt.Sprintf("the LUN is reserved for %s: reads and writes of a pod that still has it on node %s, generation %d, fail", by, a.Node, e.Fence.Generation),
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// lostForeign refuses to abandon unflushed writes for a host that is none of nearflash's.
func (a *Attacher) lostForeign(e *state.Entry) error {
	return fmt.Errorf("%w: %s is reserved for %s, a host outside of nearflash: unflushed writes of volume %s are kept on node %s until they are abandoned",
		volume.ErrUnavailable, e.Source, e.Lost.To, e.ID, a.Node)
}
