package reservationtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/reservation"
)

// Writer is a path that can also be written by.
type Writer interface {
	reservation.LUN
	// Write writes something. Any error says that the LUN refused it.
	Write(ctx context.Context) error
}

// Run holds the paths of a LUN that nobody has reserved to what LUN promises: one of
// host a, and two of host b. Nothing is registered when it returns.
func Run(t *testing.T, a, b, b2 Writer) {
	r := rig{t: t, a: a, b: b, b2: b2}
	old, next := reservation.KeyOf("suite", 1), reservation.KeyOf("suite", 2)
	for _, s := range []struct {
		name string
		run  func(old, next reservation.Key)
	}{
		{"register, reserve, unregister", r.plain},
		{"preempt", r.preempt},
		{"preempt a registrant that holds nothing", r.registrant},
		{"several paths", r.paths},
		{"take and give", r.take},
	} {
		t.Run(s.name, func(t *testing.T) {
			r.t = t
			s.run(old, next)
			r.state(0, nil)
		})
	}
}

type rig struct {
	t        *testing.T
	a, b, b2 Writer
}

func (r *rig) pass(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) takes(what string, paths []reservation.Path, key reservation.Key) {
	r.t.Helper()
	_, err := reservation.Take(r.t.Context(), paths, key)
	r.pass(what, err)
}

func (r *rig) conflict(what string, err error) {
	r.t.Helper()
	if !errors.Is(err, reservation.ErrConflict) {
		r.t.Fatalf("%s: %v, want ErrConflict", what, err)
	}
}

func (r *rig) refused(what string, err error) {
	r.t.Helper()
	if err == nil {
		r.t.Fatalf("%s was accepted", what)
	}
}

// state compares holder, 0 if there is none, and keys, as every path shows them.
func (r *rig) state(holder reservation.Key, keys []reservation.Key) {
	r.t.Helper()
	for _, u := range []Writer{r.a, r.b, r.b2} {
		got, err := u.Keys(r.t.Context())
		r.pass("read keys", err)
		slices.Sort(got)
		slices.Sort(keys)
		if !slices.Equal(got, keys) {
			r.t.Fatalf("keys %v, want %v", got, keys)
		}
		h, found, err := u.Reservation(r.t.Context())
		r.pass("read reservation", err)
		if found != (holder != 0) || found && h != (reservation.Held{Key: holder, Type: reservation.WriteExclusiveRegistrantsOnly}) {
			r.t.Fatalf("reservation %+v, found %t, want key %s", h, found, holder)
		}
	}
}

func (r *rig) plain(old, next reservation.Key) {
	ctx := r.t.Context()
	r.pass("supported", r.a.Supported(ctx))
	r.pass("write to a free LUN", r.a.Write(ctx))
	r.refused("a reservation before the registration", r.a.Reserve(ctx, old))
	for range 2 {
		r.pass("register", r.a.Register(ctx, old))
		r.state(0, []reservation.Key{old})
	}
	r.pass("write to a LUN that is not reserved", r.b.Write(ctx))
	for range 2 {
		r.pass("reserve", r.a.Reserve(ctx, old))
		r.state(old, []reservation.Key{old})
	}
	r.pass("write by the holder", r.a.Write(ctx))
	r.refused("a write by a foreign host", r.b.Write(ctx))
	r.conflict("reserve by a foreign host", r.b.Reserve(ctx, next))
	r.pass("end a registration that is not", r.b.Register(ctx, 0))
	r.pass("unregister", r.a.Register(ctx, 0))
	r.state(0, nil)
	r.pass("write to a LUN that is free again", r.b.Write(ctx))
}

func (r *rig) preempt(old, next reservation.Key) {
	ctx := r.t.Context()
	r.pass("register", r.a.Register(ctx, old))
	r.pass("reserve", r.a.Reserve(ctx, old))
	r.conflict("preempt without a registration", r.b.Preempt(ctx, next, old))
	r.pass("register the next", r.b.Register(ctx, next))
	r.conflict("reserve what is reserved", r.b.Reserve(ctx, next))
	r.pass("preempt", r.b.TakeOver(ctx, next, old))
	r.state(next, []reservation.Key{next})
	r.refused("a write by who was preempted", r.a.Write(ctx))
	r.pass("write by the new holder", r.b.Write(ctx))
	r.conflict("preempt by who was preempted", r.a.Preempt(ctx, old, next))
	r.conflict("preempt nobody", r.b.Preempt(ctx, next, old))
	r.pass("preempt oneself", r.b.TakeOver(ctx, next, next))
	r.state(next, []reservation.Key{next})
	r.pass("unregister", r.b.Register(ctx, 0))
}

func (r *rig) registrant(old, next reservation.Key) {
	ctx := r.t.Context()
	r.pass("register", r.a.Register(ctx, old))
	r.pass("register the next", r.b.Register(ctx, next))
	r.pass("reserve", r.b.Reserve(ctx, next))
	r.pass("write by a registrant", r.a.Write(ctx))
	r.pass("preempt", r.b.Preempt(ctx, next, old))
	r.state(next, []reservation.Key{next})
	r.refused("a write by who was preempted", r.a.Write(ctx))
	r.pass("unregister", r.b.Register(ctx, 0))
}

func (r *rig) paths(_, next reservation.Key) {
	ctx := r.t.Context()
	r.pass("register", r.b.Register(ctx, next))
	r.pass("reserve", r.b.Reserve(ctx, next))
	r.refused("a write by a path that is not registered", r.b2.Write(ctx))
	honoured, err := r.b2.Honoured(ctx, next)
	if err != nil || honoured {
		r.t.Fatalf("a path that is not registered: honoured %t, %v", honoured, err)
	}
	r.pass("register the second path", r.b2.Register(ctx, next))
	if honoured, err = r.b2.Honoured(ctx, next); err != nil || !honoured {
		r.t.Fatalf("the second path: honoured %t, %v", honoured, err)
	}
	r.state(next, []reservation.Key{next, next})
	r.pass("write by the second path", r.b2.Write(ctx))
	r.pass("write by the first path", r.b.Write(ctx))
	r.pass("take over by the second path", r.b2.TakeOver(ctx, next, next))
	r.state(next, []reservation.Key{next})
	r.refused("a write by the first path", r.b.Write(ctx))
	r.pass("unregister", r.b2.Register(ctx, 0))
}

func (r *rig) take(old, next reservation.Key) {
	ctx := r.t.Context()
	first := []reservation.Path{{Name: "a", LUN: r.a}}
	second := []reservation.Path{{Name: "b", LUN: r.b}, {Name: "b2", LUN: r.b2}}
	r.takes("take", first, reservation.KeyOf("another record", 7))
	r.takes("take by the path that has it under another key", first, old)
	r.state(old, []reservation.Key{old})
	for range 2 { // again: a stage that is repeated
		r.takes("take from the owner before", second, next)
		r.state(next, []reservation.Key{next, next})
	}
	r.refused("a write by the owner before", r.a.Write(ctx))
	r.pass("write", r.b.Write(ctx))
	r.pass("write by the second path", r.b2.Write(ctx))
	if _, err := reservation.Take(ctx, first, old); !errors.Is(err, reservation.ErrLater) {
		r.t.Fatalf("the owner before takes it back: %v, want ErrLater", err)
	}
	r.state(next, []reservation.Key{next, next})
	r.pass("give by who has nothing", reservation.Give(ctx, first, old))
	r.state(next, []reservation.Key{next, next})
	r.pass("give", reservation.Give(ctx, second, next))
}
