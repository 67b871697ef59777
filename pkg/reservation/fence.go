package reservation

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Errors of Take.
var (
	// ErrForeign: a host that is not one of nearflash's uses the LUN.
	ErrForeign = errors.New("the LUN is reserved for, or used by, a host outside of nearflash")
	// ErrLater: a later owner of the volume has the LUN.
	ErrLater = errors.New("the LUN is reserved for a later owner of the volume")
)

// Path is a path of this node to the LUN.
type Path struct {
	Name string
	LUN  LUN
}

// Inspect gathers what the LUN shows, and returns the paths that answer. Errors: those of
// LUN, if none does.
func Inspect(ctx context.Context, paths []Path, own Key) (f Facts, answer []Path, err error) {
	f.Own = own
	var problems []error
	for _, p := range paths {
		keys, err := p.LUN.Keys(ctx)
		if err == nil {
			f.Held, f.Found, err = p.LUN.Reservation(ctx)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		f.Keys, answer = keys, append(answer, p)
	}
	f.Paths = len(answer)
	if f.Paths == 0 {
		return Facts{Own: own}, nil, errors.Join(problems...)
	}
	return f, answer, nil
}

// Before is who had a LUN when it was taken.
type Before struct {
	// Others: somebody else, who may go on writing as soon as nothing keeps him from that.
	Others bool
	// Own: the key that took it.
	Own bool
}

// Inherited is the table "What stage finds before it takes the LUN" of states.md, The fence
// of a static volume. own says that the asking node made a reservation of its key, where
// nobody had the LUN.
func (b Before) Inherited(own bool) bool { return b.Others || b.Own && !own }

// Take makes the LUN this node's alone, under key, and tells who had it. The record names
// the node as published owner. On error no path is registered any more with key, as far as
// they answer. Errors: ErrForeign, ErrLater, and those of LUN; ErrUnsupported also if the
// LUN does not take every path for a registrant.
func Take(ctx context.Context, paths []Path, key Key) (Before, error) {
	first := paths[0].LUN
	if err := first.Supported(ctx); err != nil {
		if errors.Is(err, ErrConflict) {
			err = fmt.Errorf("%w: %w", ErrForeign, err)
		}
		return Before{}, err
	}
	f, _, _, err := examine(ctx, first, key)
	if err != nil {
		return Before{}, err
	}
	b := f.Before()
	later, err := take(ctx, paths, key)
	if err != nil {
		actx, cancel := afterwards(ctx)
		defer cancel()
		return b, errors.Join(err, unregister(actx, paths))
	}
	b.Others = b.Others || later.Before().Others // who came between the two looks
	return b, nil
}

// afterwards is for what a failed step has left: no command is sent under a context that
// has ended, which may be why the step failed.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
}

// examine looks by one path and refuses what must not be taken.
func examine(ctx context.Context, u LUN, key Key) (f Facts, step Step, who Key, err error) {
	if f, _, err = Inspect(ctx, []Path{{LUN: u}}, key); err != nil {
		return f, "", 0, err
	}
	step, who = DecideTake(f)
	switch step {
	case StepForeign:
		err = fmt.Errorf("%w: key %s", ErrForeign, who)
	case StepLater:
		err = fmt.Errorf("%w: key %s, generation %d", ErrLater, who, who.Generation())
	}
	return f, step, who, err
}

// take registers the first path, makes it the holder, ends all other registrations, also
// those that earlier sessions of this node have left, and registers the other paths. It returns
// what the first path saw once it was registered.
func take(ctx context.Context, paths []Path, key Key) (Facts, error) {
	first := paths[0].LUN
	if err := first.Register(ctx, key); err != nil {
		return Facts{}, err
	}
	// The path itself may have been registered, or the holder, under another key.
	f, step, who, err := examine(ctx, first, key)
	if err != nil {
		return f, err
	}
	if step == StepPreempt {
		err = first.TakeOver(ctx, key, who)
	} else {
		err = first.Reserve(ctx, key)
	}
	if err != nil {
		return f, err
	}
	for _, k := range f.others() {
		// Its registration may have gone with the reservation.
		if err := first.Preempt(ctx, key, k); err != nil && !errors.Is(err, ErrConflict) {
			return f, err
		}
	}
	for _, p := range paths[1:] {
		if err := p.LUN.Register(ctx, key); err != nil {
			return f, err
		}
		honoured, err := p.LUN.Honoured(ctx, key)
		if err == nil && !honoured {
			err = fmt.Errorf("%w for several paths of a node: it refuses %s", ErrUnsupported, p.Name)
		}
		if err != nil {
			return f, err
		}
	}
	return f, confirm(ctx, first, key)
}

// confirm looks once more: between two steps another node may have come.
func confirm(ctx context.Context, u LUN, key Key) error {
	f, _, err := Inspect(ctx, []Path{{LUN: u}}, key)
	if err != nil {
		return err
	}
	if others := f.others(); !f.holder() || len(others) > 0 {
		return fmt.Errorf("%w: holder %s, other keys %v", ErrConflict, f.Held.Key, others)
	}
	return nil
}

// Restore carries out a step of DecideWatch, StepReserve, StepRegister or StepPurge, on
// paths that answer. If somebody has taken the LUN since the look that the step rests on,
// nothing stays registered. Errors: ErrConflict then, and those of LUN.
func Restore(ctx context.Context, paths []Path, key Key, step Step, who Key) error {
	if step == StepPurge {
		return onAny(paths, func(p Path) error { return p.LUN.Preempt(ctx, key, who) })
	}
	var err error
	for _, p := range paths {
		if err = p.LUN.Register(ctx, key); err != nil {
			break
		}
	}
	if err == nil && step == StepReserve {
		if err = paths[0].LUN.Reserve(ctx, key); err == nil {
			return nil
		}
	}
	// Somebody may have been quicker, and must not have this node as registrant beside it.
	ctx, cancel := afterwards(ctx)
	defer cancel()
	f, _, lookErr := Inspect(ctx, paths, key)
	if lookErr != nil || f.holder() {
		return errors.Join(err, lookErr)
	}
	if err == nil {
		err = fmt.Errorf("%w: holder %s", ErrConflict, f.Held.Key)
	}
	return errors.Join(err, unregister(ctx, paths))
}

// onAny does something on the first path on which it succeeds.
func onAny(paths []Path, do func(Path) error) error {
	var problems []error
	for _, p := range paths {
		err := do(p)
		if err == nil {
			return nil
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// Give ends the node's registrations and with them its reservation. What earlier
// sessions of the node have left under the same key goes too. Errors: those of LUN.
func Give(ctx context.Context, paths []Path, key Key) error {
	f, paths, err := Inspect(ctx, paths, key)
	if err != nil {
		return err
	}
	if f.holder() && f.registered() > f.Paths {
		err := onAny(paths, func(p Path) error { return p.LUN.TakeOver(ctx, key, key) })
		if err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	if f.registered() == 0 {
		return nil
	}
	return unregister(ctx, paths)
}

// unregister ends the registrations of the paths, that of the holder, which is the first,
// last.
func unregister(ctx context.Context, paths []Path) error {
	var problems []error
	for _, p := range slices.Backward(paths) {
		problems = append(problems, p.LUN.Register(ctx, 0))
	}
	return errors.Join(problems...)
}
