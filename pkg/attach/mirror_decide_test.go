package attach

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

func asksMirror(f *stageFacts) { f.Record.Spec.Mirror = true }
func inMirror(f *stageFacts)   { f.CanMirror = true }
func twoCopies(f *stageFacts)  { f.Cache.Mirrored = true }

// TestDecideMirror: who asks for two copies has a cache with two, or none; unflushed writes come first.
func TestDecideMirror(t *testing.T) {
	const wt, wb = volume.ModeWritethrough, volume.ModeWriteback
	kept := func() *situation {
		return newSituation(wt).entry(fence5, state.Retained, wt, true, true).cache(fence5, wt, true).with(asksMirror)
	}
	for name, c := range map[string]struct {
		s      *situation
		want   cachePlan
		wipe   bool
		reason string
	}{
		"in a mirror":                      {newSituation(wt).with(asksMirror).with(inMirror), planCreate, false, ""},
		"kept in a mirror":                 {kept().with(inMirror).with(twoCopies), planReuse, false, ""},
		"kept in one copy":                 {kept().with(inMirror), planCreate, true, ""},
		"kept in one copy, and no mirror":  {kept(), planUncached, true, "NotMirrored"},
		"no mirror":                        {newSituation(wb).with(asksMirror), planUncached, false, "NotMirrored"},
		"no pool":                          {newSituation(wb).with(asksMirror).with(noPool), planUncached, false, "PoolMissing"},
		"no mirror, and no cache is asked": {newSituation(volume.ModeNone).with(asksMirror), planUncached, false, "ModeNone"},
		"unflushed writes in one copy": {
			newSituation(wb).entry(fence5, state.Staged, wb, true, false).cache(fence5, wb, false).with(rebooted).with(asksMirror), planRecover, false, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decideStage(c.s.f)
			if got.Refuse != nil || got.Cache != c.want || got.Wipe != c.wipe || got.Reason != c.reason {
				t.Errorf("got %+v, want %s, wipe %t, reason %q", got, c.want, c.wipe, c.reason)
			}
		})
	}
}
