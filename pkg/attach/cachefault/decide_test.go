package cachefault

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cacheOn are the facts of a Staged volume with a healthy live cache.
func cacheOn(mode volume.CacheMode, change ...func(*facts)) facts {
	f := facts{
		Entry: &state.Entry{ID: "v", State: state.Staged, Mode: mode, Activated: true}, LiveCache: true,
		Status: devmapper.CacheStatus{Policy: devmapper.PolicySMQ},
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func kernelFail(f *facts)    { f.Status = devmapper.CacheStatus{Fail: true} }
func unparsed(f *facts)      { f.Status = devmapper.CacheStatus{Fail: true, Unparsed: "?"} }
func readOnlyMeta(f *facts)  { f.Status.ReadOnly = true }
func needsCheck(f *facts)    { f.Status.ReadOnly, f.Status.NeedsCheck = true, true }
func deadSSD(f *facts)       { f.Unreadable = "input/output error" }
func cloneFailed(f *facts)   { f.Clone = &devmapper.CloneStatus{Fail: true} }
func cloneReadOnly(f *facts) { f.Clone = &devmapper.CloneStatus{ReadOnly: true} }
func cloneUnknown(f *facts)  { f.Clone = &devmapper.CloneStatus{Fail: true, Unparsed: "?"} }
func mismatched(f *facts)    { f.Mismatches = 2 }
func cloneFine(f *facts)     { f.Clone = &devmapper.CloneStatus{} }
func isAtRisk(f *facts)      { f.AtRiskTold = true }
func onOrigin(f *facts)      { f.LiveCache, f.LiveOrigin = false, true }
func unreported(f *facts)    { f.Entry.FailoverCause = "it failed" }
func streams(f *facts)       { f.Entry.Hydration = &state.Hydration{Stream: &state.Stream{}} }
func dirtyBlocks(f *facts)   { f.Status.Dirty = 3 }

func inState(s state.State) func(*facts) { return func(f *facts) { f.Entry.State = s } }

func TestDecide(t *testing.T) {
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	cases := map[string]struct {
		f    facts
		want step
	}{
		"no entry":                    {facts{LiveCache: true, Status: devmapper.CacheStatus{Fail: true}}, stepNothing},
		"being staged":                {cacheOn(wt, kernelFail, inState(state.Staging)), stepNothing},
		"being unstaged":              {cacheOn(wt, kernelFail, inState(state.Flushing)), stepNothing},
		"healthy":                     {cacheOn(wt), stepNothing},
		"healthy, writeback, dirty":   {cacheOn(wb, dirtyBlocks), stepNothing},
		"healthy, being filled":       {cacheOn(wt, cloneFine), stepNothing},
		"a status of another version": {cacheOn(wt, unparsed), stepNothing},
		"a clone of another version":  {cacheOn(wt, cloneUnknown), stepNothing},

		"Fail":            {cacheOn(wt, kernelFail), stepDetach},
		"ro":              {cacheOn(wt, readOnlyMeta), stepDetach},
		"needs_check":     {cacheOn(wt, needsCheck), stepDetach},
		"SSD error":       {cacheOn(wt, deadSSD), stepDetach},
		"not as written":  {cacheOn(wt, mismatched), stepDetach},
		"clone failed":    {cacheOn(wt, cloneFailed), stepDetach},
		"clone read-only": {cacheOn(wt, cloneReadOnly), stepDetach},

		"killed after the journal denied the cache":       {cacheOn(none, kernelFail, unreported), stepDetach},
		"killed there, the SSD answers again":             {cacheOn(none, unreported), stepDetach},
		"another step was killed":                         {cacheOn(none), stepNothing},
		"killed after the swap":                           {cacheOn(none, onOrigin, unreported), stepReport},
		"reported":                                        {cacheOn(none, onOrigin), stepNothing},
		"no top device":                                   {cacheOn(wt, kernelFail, func(f *facts) { f.LiveCache = false }), stepNothing},
		"dirty, whatever the journal says":                {cacheOn(wt, deadSSD, dirtyBlocks), stepAtRisk},
		"dirty, and the journal denies it":                {cacheOn(none, deadSSD, dirtyBlocks), stepAtRisk},
		"dirty, a level of a stream":                      {cacheOn(wt, deadSSD, dirtyBlocks, streams), stepDetach},
		"writeback, Fail":                                 {cacheOn(wb, kernelFail), stepAtRisk},
		"writeback, not as written":                       {cacheOn(wb, mismatched), stepAtRisk},
		"writeback, dirty":                                {cacheOn(wb, deadSSD, dirtyBlocks), stepAtRisk},
		"writeback, clean now, but the next write is not": {cacheOn(wb, deadSSD), stepAtRisk},
		"writeback, needs_check":                          {cacheOn(wb, needsCheck, isAtRisk), stepAtRisk},
		"writeback, the SSD answers again":                {cacheOn(wb, isAtRisk, dirtyBlocks), stepHealed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decide(tc.f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// Whatever fails, in whatever state: a cache that may hold the only copy of a
// write is never left.
func TestNeverForgetsDirt(t *testing.T) {
	for _, fault := range []func(*facts){kernelFail, readOnlyMeta, needsCheck, deadSSD, mismatched, cloneFailed, cloneReadOnly} {
		for _, s := range []state.State{state.Staging, state.Staged, state.Flushing, state.Flushed, state.Releasing, state.Retained, state.Wiping, state.Prewarmed} {
			for _, told := range []bool{false, true} {
				for _, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback} {
					f := cacheOn(mode, fault, dirtyBlocks, inState(s))
					f.AtRiskTold = told
					if got := decide(f); got == stepDetach {
						t.Errorf("%s, %s: %s of %+v", s, mode, got, f.Status)
					}
				}
			}
		}
	}
}
