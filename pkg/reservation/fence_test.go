package reservation_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/reservation/reservationtest"
)

func TestFake(t *testing.T) {
	var target reservationtest.Target
	reservationtest.Run(t, target.Nexus("a"), target.Nexus("b"), target.Nexus("b"))
}

func paths(n ...*reservationtest.Nexus) []reservation.Path {
	var out []reservation.Path
	for _, u := range n {
		out = append(out, reservation.Path{Name: "path", LUN: u})
	}
	return out
}

func mustTake(t *testing.T, key reservation.Key, n ...*reservationtest.Nexus) []reservation.Path {
	t.Helper()
	list := paths(n...)
	if _, err := reservation.Take(t.Context(), list, key); err != nil {
		t.Fatal(err)
	}
	return list
}

func wantKeys(t *testing.T, n *reservationtest.Nexus, want ...reservation.Key) {
	t.Helper()
	got, err := n.Keys(t.Context())
	if err != nil || len(got) != len(want) {
		t.Fatalf("keys %v, %v, want %v", got, err, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("keys %v, want %v", got, want)
		}
	}
}

// TestTakeUnsupported: a LUN without reservations says so.
func TestTakeUnsupported(t *testing.T) {
	target := reservationtest.Target{Unsupported: true}
	if _, err := reservation.Take(t.Context(), paths(target.Nexus("a")), reservation.KeyOf("v", 1)); !errors.Is(err, reservation.ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
}

// TestTakeForeign: nothing is taken from a host that is not one of nearflash's.
func TestTakeForeign(t *testing.T) {
	var target reservationtest.Target
	host, node := target.Nexus("host"), target.Nexus("node")
	const theirs = reservation.Key(42)
	if err := errors.Join(host.Register(t.Context(), theirs), host.Reserve(t.Context(), theirs)); err != nil {
		t.Fatal(err)
	}
	if _, err := reservation.Take(t.Context(), paths(node), reservation.KeyOf("v", 1)); !errors.Is(err, reservation.ErrForeign) {
		t.Errorf("%v, want ErrForeign", err)
	}
	wantKeys(t, node, theirs)
}

// TestTakeRead: a reservation is taken over, from an earlier owner and from an earlier session
// of this node, and given back, when nothing reads the path.
func TestTakeRead(t *testing.T) {
	own := reservation.KeyOf("v", 2)
	for name, before := range map[string]reservation.Key{"an earlier owner": reservation.KeyOf("v", 1), "an earlier session": own} {
		t.Run(name, func(t *testing.T) {
			var target reservationtest.Target
			a, b := target.Nexus("a"), target.Nexus("b")
			mustTake(t, before, a)
			target.Reads(b, true)
			if _, err := reservation.Take(t.Context(), paths(b), own); !errors.Is(err, reservation.ErrPath) {
				t.Errorf("a path that is read: %v, want ErrPath", err)
			}
			target.Reads(b, false)
			list := mustTake(t, own, b)
			if err := a.Register(t.Context(), own); err != nil {
				t.Fatal(err)
			}
			target.Reads(b, true)
			if err := reservation.Give(t.Context(), list, own); !errors.Is(err, reservation.ErrPath) {
				t.Errorf("given while it is read: %v, want ErrPath", err)
			}
			target.Reads(b, false)
			if err := reservation.Give(t.Context(), list, own); err != nil {
				t.Error(err)
			}
			wantKeys(t, a)
		})
	}
}

// TestTakeOnePath: a LUN that forgets that a host has several paths fences none of them,
// and nothing is left registered.
func TestTakeOnePath(t *testing.T) {
	target := reservationtest.Target{OnePathPerHost: true}
	one, two := target.Nexus("a"), target.Nexus("a")
	key := reservation.KeyOf("v", 1)
	if _, err := reservation.Take(t.Context(), paths(one, two), key); !errors.Is(err, reservation.ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	wantKeys(t, one)
	mustTake(t, key, one)
}

// TestTakeRace: of two nodes that take a LUN at the same time the later owner has it,
// and the earlier one is no registrant beside it; wherever the other one comes between.
func TestTakeRace(t *testing.T) {
	for _, beforeOwner := range []bool{true, false} {
		var target reservationtest.Target
		a, b := target.Nexus("a"), target.Nexus("b")
		if beforeOwner {
			mustTake(t, reservation.KeyOf("v", 1), target.Nexus("old"))
		}
		target.Before(func() { mustTake(t, reservation.KeyOf("v", 3), b) })
		if _, err := reservation.Take(t.Context(), paths(a), reservation.KeyOf("v", 2)); err == nil {
			t.Error("the earlier owner took it")
		}
		wantKeys(t, b, reservation.KeyOf("v", 3))
		if a.Write(t.Context()) == nil || b.Write(t.Context()) != nil {
			t.Error("the wrong node may write")
		}
	}
}

// TestRestore: what the target has forgotten is registered and reserved again, unless
// somebody else was quicker.
func TestRestore(t *testing.T) {
	var target reservationtest.Target
	one, two, other := target.Nexus("a"), target.Nexus("a"), target.Nexus("b")
	key := reservation.KeyOf("v", 1)
	usable := mustTake(t, key, one, two)
	target.Restart()
	if err := reservation.Restore(t.Context(), usable, key, reservation.StepReserve, 0); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, one, key, key)
	if other.Write(context.Background()) == nil {
		t.Error("a foreign host may write")
	}
	target.Restart()
	mustTake(t, reservation.KeyOf("v", 2), other)
	if err := reservation.Restore(t.Context(), usable, key, reservation.StepReserve, 0); err == nil {
		t.Error("a reservation that another node has was restored")
	}
	wantKeys(t, one, reservation.KeyOf("v", 2))
}

// TestRestoreTaken: between the look and the step another node takes the LUN. Whatever the
// step was, this one is no registrant beside it afterwards.
func TestRestoreTaken(t *testing.T) {
	for _, step := range []reservation.Step{reservation.StepRegister, reservation.StepReserve} {
		var target reservationtest.Target
		one, two, other := target.Nexus("a"), target.Nexus("a"), target.Nexus("b")
		key, next := reservation.KeyOf("v", 1), reservation.KeyOf("v", 2)
		mustTake(t, key, one)
		mustTake(t, next, other)
		if err := reservation.Restore(t.Context(), paths(one, two), key, step, 0); !errors.Is(err, reservation.ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", step, err)
		}
		wantKeys(t, other, next)
		if one.Write(t.Context()) == nil || two.Write(t.Context()) == nil || other.Write(t.Context()) != nil {
			t.Errorf("%s: the node that the LUN was taken from may write, or the new one may not", step)
		}
	}
}

// bounded is a path that sends nothing under a context that has ended, as a real one; the
// caller's ends in the middle of Reserve.
type bounded struct {
	*reservationtest.Nexus
	end context.CancelFunc
}

func (b bounded) Register(ctx context.Context, key reservation.Key) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.Nexus.Register(ctx, key)
}

func (b bounded) Reserve(ctx context.Context, _ reservation.Key) error {
	b.end()
	return ctx.Err()
}

// TestTimeIsUp: a step whose time is up in the middle leaves nothing registered.
func TestTimeIsUp(t *testing.T) {
	key := reservation.KeyOf("v", 1)
	for name, step := range map[string]func(context.Context, []reservation.Path) error{
		"take": func(ctx context.Context, p []reservation.Path) error {
			_, err := reservation.Take(ctx, p, key)
			return err
		},
		"restore": func(ctx context.Context, p []reservation.Path) error {
			return reservation.Restore(ctx, p, key, reservation.StepReserve, 0)
		},
	} {
		var target reservationtest.Target
		ctx, cancel := context.WithCancel(t.Context())
		n := target.Nexus("a")
		if err := step(ctx, []reservation.Path{{Name: "path", LUN: bounded{n, cancel}}}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want that its time is up", name, err)
		}
		wantKeys(t, n)
	}
}

// TestGive: also what an earlier session of the node has left goes.
func TestGive(t *testing.T) {
	var target reservationtest.Target
	before, now, other := target.Nexus("a"), target.Nexus("a"), target.Nexus("b")
	key := reservation.KeyOf("v", 1)
	mustTake(t, key, before)
	if err := now.Register(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if err := reservation.Give(t.Context(), paths(now), key); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, now)
	if err := other.Write(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLook: a path that is lost is not counted, and with all of them nothing is known.
func TestLook(t *testing.T) {
	var target reservationtest.Target
	one, two := target.Nexus("a"), target.Nexus("a")
	key := reservation.KeyOf("v", 1)
	mustTake(t, key, one, two)
	target.Down(one, true)
	if f, answer, err := reservation.Inspect(t.Context(), paths(one, two), key); err != nil || len(answer) != 1 || !f.Found || f.Paths != 1 {
		t.Errorf("%+v, %v, %v", f, answer, err)
	}
	target.Down(two, true)
	if f, _, err := reservation.Inspect(t.Context(), paths(one, two), key); !errors.Is(err, reservation.ErrPath) {
		t.Errorf("%+v, %v", f, err)
	}
}
