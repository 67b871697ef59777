package preload

import (
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

var fence = volume.Fence{UID: "u", Generation: 3, Node: "a"}

// asked are the facts of a volume in use of which a preload is asked for, which nobody has begun.
func asked(change ...func(*facts)) facts {
	f := facts{
		Record:  volume.Volume{ID: "v", Fence: fence, Published: true, Spec: volume.Spec{Mode: volume.ModeWriteback}, Preload: &volume.Preload{Request: "r", Path: "models"}},
		Entry:   &state.Entry{ID: "v", Fence: fence, State: state.Staged, Mode: volume.ModeWriteback},
		Live:    devmapper.CacheStatus{Policy: devmapper.PolicySMQ},
		Cached:  true,
		Mounted: true,
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

// TestDecide is the table "Preload on demand" of states.md.
func TestDecide(t *testing.T) {
	running := func(f *facts) { f.Running = "r" }
	said := func(request string, s volume.PreloadState) func(*facts) {
		return func(f *facts) { f.Record.Preloaded = volume.PreloadReport{Request: request, State: s} }
	}
	none := func(f *facts) { f.Record.Preload = nil }
	raw := func(f *facts) { f.Entry.Raw, f.Mounted = true, false }
	for name, c := range map[string]struct {
		f    facts
		want step
		why  string
	}{
		"asked":                                   {asked(), stepBegin, ""},
		"asked anew":                              {asked(said("before", volume.PreloadCompleted)), stepBegin, ""},
		"begun by a process before":               {asked(said("r", volume.PreloadRunning)), stepBegin, ""},
		"another volume is read":                  {asked(func(f *facts) { f.Other = "w" }), stepWait, "volume w first"},
		"another one, and this one":               {asked(running, func(f *facts) { f.Other = "w" }), stepRunning, ""},
		"it waited":                               {asked(said("r", volume.PreloadPending)), stepBegin, ""},
		"completed":                               {asked(said("r", volume.PreloadCompleted)), stepNothing, ""},
		"completed, and still known":              {asked(said("r", volume.PreloadCompleted), running), stepNothing, ""},
		"ended":                                   {asked(said("r", volume.PreloadEnded)), stepNothing, ""},
		"failed":                                  {asked(said("r", volume.PreloadFailed)), stepNothing, ""},
		"running":                                 {asked(running, said("r", volume.PreloadRunning)), stepRunning, ""},
		"taken back":                              {asked(running, none, said("r", volume.PreloadRunning)), stepStop, ""},
		"taken back, stopped":                     {asked(none, said("r", volume.PreloadRunning)), stepCancel, "taken back"},
		"taken back, it waited":                   {asked(none, said("r", volume.PreloadPending)), stepCancel, "taken back"},
		"taken back when it was over":             {asked(none, said("r", volume.PreloadCompleted)), stepNothing, ""},
		"never asked":                             {asked(none), stepNothing, ""},
		"another request":                         {asked(running, func(f *facts) { f.Record.Preload.Request = "s" }), stepStop, ""},
		"the volume leaves":                       {asked(running, func(f *facts) { f.Entry.State = state.Flushing }), stepStop, ""},
		"the volume has left":                     {asked(running, func(f *facts) { f.Entry = nil }), stepStop, ""},
		"another ownership":                       {asked(running, func(f *facts) { f.Record.Fence.Generation = 4 }), stepStop, ""},
		"the cache is given up meanwhile":         {asked(running, func(f *facts) { f.Entry.Mode = volume.ModeNone }), stepStop, ""},
		"somebody else's LUN":                     {asked(func(f *facts) { f.Entry.Lost = &state.Lost{} }), stepNothing, ""},
		"being attached":                          {asked(func(f *facts) { f.Entry.State = state.Staging }), stepNothing, ""},
		"attached nowhere":                        {asked(func(f *facts) { f.Entry = nil }), stepNothing, ""},
		"published no more":                       {asked(func(f *facts) { f.Record.Published = false }), stepNothing, ""},
		"a path in a raw block volume":            {asked(raw), stepFail, "path models"},
		"a raw block volume":                      {asked(raw, func(f *facts) { f.Record.Preload.Path = "" }), stepBegin, ""},
		"no cache is asked for":                   {asked(func(f *facts) { f.Record.Spec.Mode = volume.ModeNone }), stepFail, "cacheMode"},
		"no cache can be had":                     {asked(func(f *facts) { f.Entry.Mode = volume.ModeNone }), stepWait, "no cache"},
		"the journal is ahead of the live table":  {asked(func(f *facts) { f.Cached = false }), stepWait, "no cache"},
		"the SSD fails":                           {asked(func(f *facts) { f.Broken = "x" }), stepWait, "fails"},
		"the kernel says Fail":                    {asked(func(f *facts) { f.Live.Fail = true }), stepWait, "fails"},
		"a hydration":                             {asked(func(f *facts) { f.Entry.Hydration = &state.Hydration{} }), stepWait, "filled"},
		"a flush":                                 {asked(func(f *facts) { f.Live.Policy = devmapper.PolicyCleaner }), stepWait, "flushed"},
		"the filesystem is not there yet":         {asked(func(f *facts) { f.Mounted = false }), stepWait, "mounted"},
		"no cache is asked for, in another stage": {asked(func(f *facts) { f.Record.Spec.Mode = volume.ModeNone; f.Entry = nil }), stepNothing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := decide(c.f)
			if got != c.want || !strings.Contains(why, c.why) || (c.why == "") != (why == "") {
				t.Errorf("%s, %q, want %s, %q", got, why, c.want, c.why)
			}
		})
	}
}
