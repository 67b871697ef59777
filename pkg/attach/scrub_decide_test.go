package attach

import (
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDecideScrub: nothing is compared while anything else works on the cache, or is to.
func TestDecideScrub(t *testing.T) {
	fence := volume.Fence{UID: "u", Generation: 2, Node: "node-a"}
	ready := func() scrubFacts {
		return scrubFacts{
			Boot: "boot", Fence: fence, Top: devmapper.Info{HasLive: true},
			changeFacts: changeFacts{
				Entry:     &state.Entry{State: state.Staged, Boot: "boot", Fence: fence, Mode: volume.ModeWritethrough, DataBytes: 1 << 30, ChunkSectors: 512},
				Record:    volume.Volume{Fence: fence, Published: true, Spec: volume.Spec{Mode: volume.ModeWritethrough}},
				LiveCache: true,
				Status:    devmapper.CacheStatus{Policy: devmapper.PolicySMQ, Features: []string{"writethrough"}},
				Want:      geometry{dataBytes: 1 << 30, chunkSectors: 512, metaBytes: 1 << 22},
			},
		}
	}
	writeback := func(f *scrubFacts) {
		f.Entry.Mode, f.Entry.Marked, f.Record.Spec.Mode, f.Record.PossiblyDirty = volume.ModeWriteback, true, volume.ModeWriteback, true
		f.Status.Features, f.Status.Dirty = []string{"writeback"}, 7
	}
	cases := map[string]struct {
		change func(*scrubFacts)
		want   scrub.Verdict
	}{
		"writethrough":               {func(*scrubFacts) {}, scrub.Compare},
		"writeback":                  {writeback, scrub.Compare},
		"no entry":                   {func(f *scrubFacts) { f.Entry = nil }, scrub.Gone},
		"retained":                   {func(f *scrubFacts) { f.Entry.State = state.Retained }, scrub.Gone},
		"being flushed to leave":     {func(f *scrubFacts) { f.Entry.State = state.Flushing }, scrub.Gone},
		"another ownership":          {func(f *scrubFacts) { f.Record.Fence.Generation++ }, scrub.Gone},
		"a later ownership":          {func(f *scrubFacts) { f.Fence.Generation-- }, scrub.Gone},
		"not published":              {func(f *scrubFacts) { f.Record.Published = false }, scrub.Gone},
		"an earlier boot":            {func(f *scrubFacts) { f.Entry.Boot = "before" }, scrub.Gone},
		"another LUN":                {func(f *scrubFacts) { f.Entry.Lost = &state.Lost{} }, scrub.Gone},
		"no cache":                   {func(f *scrubFacts) { f.LiveCache = false }, scrub.NoCache},
		"a cache that is denied":     {func(f *scrubFacts) { f.Entry.Mode = volume.ModeNone }, scrub.NoCache},
		"a failover is under way":    {func(f *scrubFacts) { f.Entry.FailoverCause = "SSD" }, scrub.Wait},
		"the SSD fails":              {func(f *scrubFacts) { f.Broken = "SSD" }, scrub.Wait},
		"metadata are read only":     {func(f *scrubFacts) { f.Status.ReadOnly = true }, scrub.Wait},
		"a hydration":                {func(f *scrubFacts) { f.Entry.Hydration = &state.Hydration{} }, scrub.Wait},
		"a stream":                   {func(f *scrubFacts) { f.Entry.Hydration = &state.Hydration{Stream: &state.Stream{}} }, scrub.Wait},
		"a lease":                    {func(f *scrubFacts) { f.Entry.Exported = &volume.MoveID{} }, scrub.Wait},
		"a snapshot":                 {func(f *scrubFacts) { f.Record.Hold = &volume.Hold{} }, scrub.Wait},
		"suspended":                  {func(f *scrubFacts) { f.Top.Suspended = true }, scrub.Wait},
		"a table that is loaded":     {func(f *scrubFacts) { f.Top.HasInactive = true }, scrub.Wait},
		"a flush is asked for":       {func(f *scrubFacts) { writeback(f); f.Record.FlushRequest = "now" }, scrub.Wait},
		"another mode is asked for":  {func(f *scrubFacts) { f.Record.Spec.Mode = volume.ModeNone }, scrub.Wait},
		"a larger size is asked for": {func(f *scrubFacts) { f.Want.dataBytes *= 2 }, scrub.Wait},
		"the cleaner is live":        {func(f *scrubFacts) { f.Status.Policy = devmapper.PolicyCleaner }, scrub.Wait},
		"the dirty limit drains": {func(f *scrubFacts) {
			writeback(f)
			f.Status.Features[0] = "writethrough"
			f.Record.Spec.DirtyLimit.Age = time.Minute
		}, scrub.Wait},
		"recovered, the cleaner stays":   {func(f *scrubFacts) { f.Entry.Recovered, f.Status.Policy = true, devmapper.PolicyCleaner }, scrub.Wait},
		"the pool cannot have it larger": {func(f *scrubFacts) { f.Degraded = "an SSD is missing" }, scrub.Compare},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := ready()
			tc.change(&f)
			if got, why := decideScrub(f); got != tc.want || got != scrub.Compare && why == "" {
				t.Errorf("got %s (%s), want %s", got, why, tc.want)
			}
		})
	}
}

func TestDecideScrubDue(t *testing.T) {
	now := time.Unix(1e9, 0)
	day := 24 * time.Hour
	cases := map[string]struct {
		rec     volume.Volume
		period  time.Duration
		request string
		due     bool
	}{
		"off":                {volume.Volume{Published: true}, 0, "", false},
		"never scrubbed":     {volume.Volume{Published: true}, day, "", true},
		"long ago":           {volume.Volume{Published: true, ScrubbedAt: now.Add(-day)}, day, "", true},
		"of late":            {volume.Volume{Published: true, ScrubbedAt: now.Add(-day / 2)}, day, "", false},
		"asked for":          {volume.Volume{Published: true, ScrubbedAt: now, ScrubRequest: "b", ScrubDone: "a"}, 0, "b", true},
		"asked for and done": {volume.Volume{Published: true, ScrubbedAt: now, ScrubRequest: "b", ScrubDone: "b"}, day, "", false},
		"attached nowhere":   {volume.Volume{ScrubRequest: "b"}, day, "", false},
		"asked for long ago": {volume.Volume{Published: true, ScrubRequest: "b", ScrubDone: "b", ScrubbedAt: now.Add(-day)}, day, "", true},
	}
	for name, tc := range cases {
		if request, due := decideScrubDue(tc.rec, tc.period, now); request != tc.request || due != tc.due {
			t.Errorf("%s: %q, %t", name, request, due)
		}
	}
}
