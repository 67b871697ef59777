package attach

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cacheOn are the facts of a Staged volume with a healthy live cache.
func cacheOn(mode volume.CacheMode, change ...func(*failoverFacts)) failoverFacts {
	f := failoverFacts{
		Entry: &Entry{ID: "v", State: StateStaged, Mode: mode, Activated: true}, LiveCache: true,
		Status: devmapper.CacheStatus{Policy: devmapper.PolicySMQ},
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func kernelFail(f *failoverFacts)    { f.Status = devmapper.CacheStatus{Fail: true} }
func unparsed(f *failoverFacts)      { f.Status = devmapper.CacheStatus{Fail: true, Unparsed: "?"} }
func readOnlyMeta(f *failoverFacts)  { f.Status.ReadOnly = true }
func needsCheck(f *failoverFacts)    { f.Status.ReadOnly, f.Status.NeedsCheck = true, true }
func deadSSD(f *failoverFacts)       { f.Unreadable = "input/output error" }
func cloneFailed(f *failoverFacts)   { f.Clone = &devmapper.CloneStatus{Fail: true} }
func cloneReadOnly(f *failoverFacts) { f.Clone = &devmapper.CloneStatus{ReadOnly: true} }
func cloneUnknown(f *failoverFacts)  { f.Clone = &devmapper.CloneStatus{Fail: true, Unparsed: "?"} }
func cloneFine(f *failoverFacts)     { f.Clone = &devmapper.CloneStatus{} }
func isAtRisk(f *failoverFacts)      { f.AtRiskTold = true }
func onOrigin(f *failoverFacts)      { f.LiveCache, f.LiveOrigin = false, true }
func unreported(f *failoverFacts)    { f.Entry.FailoverCause = "it failed" }
func dirtyBlocks(f *failoverFacts)   { f.Status.Dirty = 3 }

func inState(s State) func(*failoverFacts) { return func(f *failoverFacts) { f.Entry.State = s } }

func TestDecideFailover(t *testing.T) {
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	cases := map[string]struct {
		f    failoverFacts
		want failoverStep
	}{
		"no entry":                    {failoverFacts{LiveCache: true, Status: devmapper.CacheStatus{Fail: true}}, failoverNothing},
		"being staged":                {cacheOn(wt, kernelFail, inState(StateStaging)), failoverNothing},
		"being unstaged":              {cacheOn(wt, kernelFail, inState(StateFlushing)), failoverNothing},
		"healthy":                     {cacheOn(wt), failoverNothing},
		"healthy, writeback, dirty":   {cacheOn(wb, dirtyBlocks), failoverNothing},
		"healthy, being filled":       {cacheOn(wt, cloneFine), failoverNothing},
		"a status of another version": {cacheOn(wt, unparsed), failoverNothing},
		"a clone of another version":  {cacheOn(wt, cloneUnknown), failoverNothing},

		"Fail":            {cacheOn(wt, kernelFail), failoverSwap},
		"ro":              {cacheOn(wt, readOnlyMeta), failoverSwap},
		"needs_check":     {cacheOn(wt, needsCheck), failoverSwap},
		"SSD error":       {cacheOn(wt, deadSSD), failoverSwap},
		"clone failed":    {cacheOn(wt, cloneFailed), failoverSwap},
		"clone read-only": {cacheOn(wt, cloneReadOnly), failoverSwap},

		"killed after the journal denied the cache":       {cacheOn(none, kernelFail, unreported), failoverSwap},
		"killed there, the SSD answers again":             {cacheOn(none, unreported), failoverSwap},
		"another step was killed":                         {cacheOn(none), failoverNothing},
		"killed after the swap":                           {cacheOn(none, onOrigin, unreported), failoverReport},
		"reported":                                        {cacheOn(none, onOrigin), failoverNothing},
		"no top device":                                   {cacheOn(wt, kernelFail, func(f *failoverFacts) { f.LiveCache = false }), failoverNothing},
		"writeback, Fail":                                 {cacheOn(wb, kernelFail), failoverAtRisk},
		"writeback, dirty":                                {cacheOn(wb, deadSSD, dirtyBlocks), failoverAtRisk},
		"writeback, clean now, but the next write is not": {cacheOn(wb, deadSSD), failoverAtRisk},
		"writeback, needs_check":                          {cacheOn(wb, needsCheck, isAtRisk), failoverAtRisk},
		"writeback, the SSD answers again":                {cacheOn(wb, isAtRisk, dirtyBlocks), failoverHealed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decideFailover(tc.f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// Whatever fails, in whatever state: a cache that may hold the only copy of a
// write is never left.
func TestFailoverNeverForgetsDirt(t *testing.T) {
	for _, fault := range []func(*failoverFacts){kernelFail, readOnlyMeta, needsCheck, deadSSD, cloneFailed, cloneReadOnly} {
		for _, s := range []State{StateStaging, StateStaged, StateFlushing, StateFlushed, StateReleasing, StateResident, StateWiping, StatePrewarm} {
			for _, told := range []bool{false, true} {
				f := cacheOn(volume.ModeWriteback, dirtyBlocks, fault, inState(s))
				f.AtRiskTold = told
				if got := decideFailover(f); got == failoverSwap {
					t.Errorf("%s: %s of %+v", s, got, f.Status)
				}
			}
		}
	}
}
