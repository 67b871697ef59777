package model

import "testing"

// worlds are those in which nothing may be found. A way without consent to a volume that
// is of use there must be wherever no disk and no journal was lost.
var worlds = map[string]World{
	"writeback":                       start(Writeback, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 2}),
	"flushes beside pods":             start(Writeback, Budget{Writes: 2, Crashes: 1, Moves: 1, Swaps: 1}).running(),
	"writethrough":                    start(Writethrough, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 2}),
	"static":                          start(Writeback, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 2}).static(),
	"writes abandoned":                start(Writeback, Budget{Writes: 2, Crashes: 1, Moves: 2, Forces: 1}).consenting().running(),
	"forced detach":                   start(Writethrough, Budget{Writes: 2, Crashes: 1, Moves: 2, Forces: 1}).running(),
	"API server is set back":          start(Writeback, Budget{Writes: 2, Crashes: 1, Moves: 2, Restores: 1}).consenting().running(),
	"deleted":                         start(Writeback, Budget{Writes: 1, Crashes: 1, Kills: 1, Moves: 1, Deletes: 1}),
	"deleted, nothing dirty":          start(Writethrough, Budget{Writes: 1, Crashes: 1, Kills: 1, Moves: 1, Deletes: 1}),
	"leaders, answers that are lost":  start(Writeback, Budget{Writes: 1, Kills: 1, Moves: 2, Leaders: 1, Lost: 1}),
	"an image of a node":              start(Writeback, Budget{Writes: 2, Crashes: 1, Images: 1, Counts: 1}).consenting().running(),
	"a spare with the name":           start(Writeback, Budget{Writes: 2, Crashes: 1, Spares: 2}).consenting().running(),
	"a spare, nothing dirty":          start(Writethrough, Budget{Writes: 2, Moves: 1, Spares: 2}).running(),
	"a copy of etcd":                  start(Writeback, Budget{Writes: 1, Moves: 1, Copies: 1, Swings: 2}).running(),
	"static, forced detach":           start(Writethrough, Budget{Writes: 2, Crashes: 1, Moves: 2, Forces: 1}).static().running(),
	"static, abandoned while it runs": start(Writeback, Budget{Writes: 2, Crashes: 1, Moves: 1, Forces: 1}).static().consenting().running(),
	"static, killed anywhere":         start(Writeback, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 1, Forces: 1}).static().consenting().running(),
	"static, uncached":                start(None, Budget{Writes: 2, Crashes: 1, Kills: 1, Moves: 1, Forces: 1}).static().running(),
	"a journal is lost":               start(Writeback, Budget{Writes: 1, Crashes: 1, Moves: 1, Journals: 1}).consenting().running(),
	"set back, a journal is lost":     start(Writeback, Budget{Writes: 1, Crashes: 1, Moves: 1, Restores: 1, Journals: 1}).consenting().running(),
	"a record is removed":             start(Writeback, Budget{Writes: 1, Crashes: 1, Moves: 1, Removals: 1}).consenting().running(),
	"a record has another UID":        start(Writeback, Budget{Writes: 1, Crashes: 1, Moves: 1, Removals: 1, Renewals: 1}).consenting().running(),
}

// eachWorld is how many states of each are looked at, and leastDepth how far from the
// beginning the last of them is at least.
const (
	eachWorld  = 30_000
	leastDepth = 10
)

// TestNoViolation: within these bounds no way leads to a lost or a stale write, and every
// state leads on.
func TestNoViolation(t *testing.T) {
	if eachWorld*len(worlds) < 200_000 {
		t.Fatal("next to nothing is explored")
	}
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := explore(w, events(), eachWorld)
			if t.Log(r); r.Violation != "" || r.States < eachWorld || r.Depth < leastDepth {
				t.Error("an invariant does not hold, or less was explored than there is")
			}
		})
	}
}
