package model

import (
	"strings"
	"testing"
)

func start(mode Mode, static bool, left Budget) World {
	return World{Record: Record{UID: 1}, Mode: mode, Static: static, Left: left}
}

// TestNoViolation: within these bounds no way leads to a lost or a stale write.
func TestNoViolation(t *testing.T) {
	cases := map[string]World{
		"writeback":    start(Writeback, false, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 2, Abandons: 1}),
		"writethrough": start(Writethrough, false, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 2}),
		"static":       start(Writeback, true, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 2, Abandons: 1}),
	}
	for name, w := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := explore(w, events(), 100_000)
			if t.Log(r); r.Violation != "" || r.Stuck != "" || r.States < 10_000 {
				t.Error("an invariant does not hold, or next to nothing was explored")
			}
		})
	}
}

// TestKnownViolations are the ways to lose data that docs/limitations.md names. Who
// closes one moves its world to TestNoViolation.
func TestKnownViolations(t *testing.T) {
	cases := map[string]struct {
		world World
		want  string
	}{
		"a record that is missing is taken for a newer writer": {
			world: start(Writeback, false, Budget{Writes: 1, Crashes: 1, Moves: 1, Removals: 1}),
			want:  "an unflushed write was destroyed without proof",
		},
		"a node that is restored from its image is taken for what it was": {
			world: start(Writeback, false, Budget{Writes: 3, Crashes: 1, Moves: 3, Images: 1}),
			want:  "a flush wrote an old block over a newer one",
		},
		"a static volume has two writers after a forced detach": {
			world: start(Writethrough, true, Budget{Writes: 2, Moves: 1, Forces: 1}),
			want:  "two nodes write",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if r := explore(tc.world, events(), 200_000); !strings.Contains(r.Violation, tc.want) {
				t.Errorf("got %v\nwant %s", r, tc.want)
			}
		})
	}
}
