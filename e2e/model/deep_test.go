//go:build deep

package model

import (
	"testing"
	"time"
)

// deepStates is how many states are looked at, together.
const deepStates = 20_000_000

// deepCuts is how many states are looked at of each world of snapshots.
const deepCuts = 1_000_000

// TestDeep goes on where TestNoViolation ends, with more chances in one world.
func TestDeep(t *testing.T) {
	all := map[string]World{
		"everything, writeback":         start(Writeback, Budget{Writes: 3, Crashes: 2, Kills: 2, Moves: 2, Forces: 1, Restores: 1, Lost: 1, Leaders: 1}).consenting().running(),
		"everything, writethrough":      start(Writethrough, Budget{Writes: 3, Crashes: 2, Kills: 2, Moves: 2, Forces: 1, Restores: 1, Lost: 1, Leaders: 1}).running(),
		"everything, disks of the past": start(Writeback, Budget{Writes: 3, Crashes: 1, Kills: 1, Moves: 1, Images: 2, Counts: 2, Swaps: 1, Journals: 1}).consenting().running(),
		"everything, static":            start(Writeback, Budget{Writes: 3, Crashes: 2, Kills: 2, Moves: 2, Forces: 2, Lost: 1}).static().consenting().running(),
		"everything, spares":            start(Writeback, Budget{Writes: 3, Crashes: 1, Kills: 1, Moves: 1, Spares: 3, Counts: 1, Restores: 1}).consenting().running(),
		"everything, two clusters":      start(Writeback, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 1, Copies: 1, Swings: 2, Restores: 1, Lost: 1, Leaders: 1}).consenting().running(),
	}
	for name, w := range worlds {
		all[name] = w
	}
	sum := 0
	for name, w := range all {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			r := explore(w, events(), deepStates/len(all)+1)
			sum += r.States
			if t.Log(time.Since(began).Round(time.Second), r); r.Violation != "" {
				t.Error("an invariant does not hold")
			}
		})
	}
	for name, w := range cutWorlds {
		t.Run(name, func(t *testing.T) {
			r := explore(w, cutEvents(), deepCuts)
			if t.Log(r); r.Violation != "" {
				t.Error("an invariant does not hold")
			}
		})
	}
	if t.Logf("%d states", sum); sum < deepStates {
		t.Errorf("%d states are fewer than %d", sum, deepStates)
	}
}
