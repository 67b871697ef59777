package attach

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cacheOn are the facts of a Staged volume with a healthy live cache.
func cacheOn(mode volume.CacheMode, change ...func(*bypassFacts)) bypassFacts {
	f := bypassFacts{
		Entry: &Entry{ID: "v", State: StateStaged, Mode: mode, Activated: true}, LiveCache: true,
		Status: devmapper.CacheStatus{Policy: devmapper.PolicySMQ},
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func kernelFail(f *bypassFacts)    { f.Status = devmapper.CacheStatus{Fail: true} }
func unparsed(f *bypassFacts)      { f.Status = devmapper.CacheStatus{Fail: true, Unparsed: "?"} }
func readOnlyMeta(f *bypassFacts)  { f.Status.ReadOnly = true }
func needsCheck(f *bypassFacts)    { f.Status.ReadOnly, f.Status.NeedsCheck = true, true }
func deadSSD(f *bypassFacts)       { f.Unreadable = "input/output error" }
func cloneFailed(f *bypassFacts)   { f.Clone = &devmapper.CloneStatus{Fail: true} }
func cloneReadOnly(f *bypassFacts) { f.Clone = &devmapper.CloneStatus{ReadOnly: true} }
func cloneUnknown(f *bypassFacts)  { f.Clone = &devmapper.CloneStatus{Fail: true, Unparsed: "?"} }
func cloneFine(f *bypassFacts)     { f.Clone = &devmapper.CloneStatus{} }
func isStaked(f *bypassFacts)      { f.Staked = true }
func onOrigin(f *bypassFacts)      { f.LiveCache, f.LiveOrigin = false, true }
func unreported(f *bypassFacts)    { f.Entry.Bypass = "it failed" }
func dirtyBlocks(f *bypassFacts)   { f.Status.Dirty = 3 }

func inState(s State) func(*bypassFacts) { return func(f *bypassFacts) { f.Entry.State = s } }

func TestDecideBypass(t *testing.T) {
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	cases := map[string]struct {
		f    bypassFacts
		want bypassStep
	}{
		"no entry":                    {bypassFacts{LiveCache: true, Status: devmapper.CacheStatus{Fail: true}}, bypassNothing},
		"being staged":                {cacheOn(wt, kernelFail, inState(StateStaging)), bypassNothing},
		"being unstaged":              {cacheOn(wt, kernelFail, inState(StateFlushing)), bypassNothing},
		"healthy":                     {cacheOn(wt), bypassNothing},
		"healthy, writeback, dirty":   {cacheOn(wb, dirtyBlocks), bypassNothing},
		"healthy, being filled":       {cacheOn(wt, cloneFine), bypassNothing},
		"a status of another version": {cacheOn(wt, unparsed), bypassNothing},
		"a clone of another version":  {cacheOn(wt, cloneUnknown), bypassNothing},

		"Fail":            {cacheOn(wt, kernelFail), bypassSwap},
		"ro":              {cacheOn(wt, readOnlyMeta), bypassSwap},
		"needs_check":     {cacheOn(wt, needsCheck), bypassSwap},
		"SSD error":       {cacheOn(wt, deadSSD), bypassSwap},
		"clone failed":    {cacheOn(wt, cloneFailed), bypassSwap},
		"clone read-only": {cacheOn(wt, cloneReadOnly), bypassSwap},

		"killed after the journal denied the cache":       {cacheOn(none, kernelFail, unreported), bypassSwap},
		"killed there, the SSD answers again":             {cacheOn(none, unreported), bypassSwap},
		"another step was killed":                         {cacheOn(none), bypassNothing},
		"killed after the swap":                           {cacheOn(none, onOrigin, unreported), bypassReport},
		"reported":                                        {cacheOn(none, onOrigin), bypassNothing},
		"no top device":                                   {cacheOn(wt, kernelFail, func(f *bypassFacts) { f.LiveCache = false }), bypassNothing},
		"writeback, Fail":                                 {cacheOn(wb, kernelFail), bypassStake},
		"writeback, dirty":                                {cacheOn(wb, deadSSD, dirtyBlocks), bypassStake},
		"writeback, clean now, but the next write is not": {cacheOn(wb, deadSSD), bypassStake},
		"writeback, needs_check":                          {cacheOn(wb, needsCheck, isStaked), bypassStake},
		"writeback, the SSD answers again":                {cacheOn(wb, isStaked, dirtyBlocks), bypassHealed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decideBypass(tc.f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// Whatever fails, in whatever state: a cache that may hold the only copy of a
// write is never left.
func TestBypassNeverForgetsDirt(t *testing.T) {
	for _, fault := range []func(*bypassFacts){kernelFail, readOnlyMeta, needsCheck, deadSSD, cloneFailed, cloneReadOnly} {
		for _, s := range []State{StateStaging, StateStaged, StateFlushing, StateFlushed, StateReleasing, StateResident, StateWiping, StatePrewarm} {
			for _, staked := range []bool{false, true} {
				f := cacheOn(volume.ModeWriteback, dirtyBlocks, fault, inState(s))
				f.Staked = staked
				if got := decideBypass(f); got == bypassSwap {
					t.Errorf("%s: %s of %+v", s, got, f.Status)
				}
			}
		}
	}
}
