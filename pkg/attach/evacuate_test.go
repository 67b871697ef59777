package attach

import (
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestLeftOf is the table "A device leaves the pool" of states.md: what is left of a device's caches,
// and what it waits for.
func TestLeftOf(t *testing.T) {
	const wt, wb = volume.ModeWritethrough, volume.ModeWriteback
	of := func(s state.State, mode volume.CacheMode, change ...func(*leftFacts)) leftFacts {
		f := leftFacts{Entry: &state.Entry{State: s, Mode: mode, Activated: true, Clean: s == state.Retained}, SameBoot: true}
		for _, c := range change {
			c(&f)
		}
		return f
	}
	exported := func(f *leftFacts) { f.Entry.Exported = &volume.MoveID{} }
	restarted := func(f *leftFacts) { f.SameBoot = false }
	for name, tc := range map[string]struct {
		f     leftFacts
		why   string
		waits bool
	}{
		"writethrough":                  {of(state.Staged, wt), "made anew", false},
		"writeback":                     {of(state.Staged, wb), "unflushed writes are written", false},
		"exported, in use":              {of(state.Staged, wt, exported), "made anew", false},
		"unclean stop, writethrough":    {of(state.Staged, wt, restarted), "wiped", false},
		"unclean stop, writeback":       {of(state.Staged, wb, restarted), "before the node's restart", true},
		"its LUN is somebody else's":    {of(state.Staged, wb, func(f *leftFacts) { f.Entry.Lost = &state.Lost{} }), "somebody else's", true},
		"a reader's":                    {of(state.Staged, wt, func(f *leftFacts) { f.Entry.ReadOnly = true }), "reader's", true},
		"broken":                        {of(state.Staged, wb, func(f *leftFacts) { f.Broken = "input/output error" }), "input/output error", true},
		"retained":                      {of(state.Retained, wb), "evicted", false},
		"exported":                      {of(state.Retained, wb, exported), "another node reads", true},
		"prewarmed":                     {of(state.Prewarmed, wt), "evicted", false},
		"being attached":                {of(state.Staging, wt), "being attached", true},
		"being detached":                {of(state.Flushed, wt), "being detached", true},
		"being detached, dirty":         {of(state.Flushing, wb), "unflushed writes", true},
		"being wiped":                   {of(state.Wiping, wt), "wiped", false},
		"an orphan":                     {leftFacts{}, "nobody knows", false},
		"an orphan that is kept":        {leftFacts{Kept: true}, "administrator", true},
		"an entry that cannot be read":  {leftFacts{Unreadable: true}, "cannot be read", true},
		"kept, and its entry is there":  {of(state.Staged, wb, func(f *leftFacts) { f.Kept = true }), "administrator", true},
		"uncached, something left over": {of(state.Staged, volume.ModeNone), "made anew", false},
	} {
		t.Run(name, func(t *testing.T) {
			why, waits := leftOf(tc.f)
			if !strings.Contains(why, tc.why) || waits != tc.waits {
				t.Errorf("%q, waits %t; want %q, %t", why, waits, tc.why, tc.waits)
			}
		})
	}
}
