package stream

import (
	"encoding/json"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDecide has every line of the table "The stream" of states.md.
func TestDecide(t *testing.T) {
	streaming := func() facts {
		return facts{
			Entry:  &state.Entry{State: state.Staged, Mode: volume.ModeWritethrough, Activated: true, Hydration: &state.Hydration{Stream: &state.Stream{Hot: 1, Chunks: 9}}},
			Levels: stack.Levels{Split: true},
		}
	}
	copying := func(f *facts) { f.Copying = true }
	hotCopied := func(f *facts) { f.HotCopied = true }
	hotServes := func(f *facts) { f.HotCopied, f.Levels.HotServes = true, true }
	allCopied := func(f *facts) { f.HotCopied, f.Copied = true, true }
	bothServe := func(f *facts) { f.Levels.HotServes, f.Levels.RestServes = true, true }
	failed := func(f *facts) { f.Failed = true }
	merged := func(f *facts) { f.Levels = stack.Levels{Merged: true} }
	in := func(s state.State) func(*facts) { return func(f *facts) { f.Entry.State = s } }
	cases := map[string]struct {
		changes []func(*facts)
		want    step
	}{
		"no entry":                    {[]func(*facts){func(f *facts) { f.Entry = nil }}, stepNothing},
		"no hydration":                {[]func(*facts){func(f *facts) { f.Entry.Hydration = nil }}, stepNothing},
		"a hydration by clone":        {[]func(*facts){func(f *facts) { f.Entry.Hydration.Stream = nil }}, stepNothing},
		"being staged":                {[]func(*facts){in(state.Staging)}, stepNothing},
		"being unstaged":              {[]func(*facts){in(state.Flushing), allCopied}, stepNothing},
		"being unstaged, merged":      {[]func(*facts){in(state.Flushing), merged}, stepNothing},
		"the cache is denied":         {[]func(*facts){func(f *facts) { f.Entry.Mode = volume.ModeNone }}, stepNothing},
		"the cache is denied, merged": {[]func(*facts){merged, func(f *facts) { f.Entry.Mode = volume.ModeNone }}, stepNothing},
		"another table":               {[]func(*facts){func(f *facts) { f.Levels = stack.Levels{} }}, stepNothing},
		"another table, copied":       {[]func(*facts){allCopied, func(f *facts) { f.Levels = stack.Levels{} }}, stepNothing},

		"merged":                           {[]func(*facts){merged}, stepSweep},
		"merged by a process before":       {[]func(*facts){merged, failed}, stepSweep},
		"both serve":                       {[]func(*facts){allCopied, bothServe}, stepMerge},
		"both serve, a new process":        {[]func(*facts){bothServe}, stepMerge},
		"both serve, the copy was stopped": {[]func(*facts){bothServe, failed}, stepMerge},

		"the copy failed":                          {[]func(*facts){failed}, stepEnd},
		"the copy failed, the first level is here": {[]func(*facts){failed, hotCopied}, stepEnd},
		"the copy failed, the first level serves":  {[]func(*facts){failed, hotServes}, stepEnd},

		"the first level is copied":               {[]func(*facts){hotCopied, copying}, stepServeHot},
		"all is copied, the first level comes":    {[]func(*facts){allCopied}, stepServeHot},
		"all is copied, the first level serves":   {[]func(*facts){allCopied, hotServes}, stepServeRest},
		"the copy goes on":                        {[]func(*facts){copying}, stepNothing},
		"the copy goes on behind the first level": {[]func(*facts){copying, hotServes}, stepNothing},
		"nothing copies":                          {nil, stepCopy},
		"nothing copies behind the first level":   {[]func(*facts){func(f *facts) { f.Levels.HotServes = true }}, stepCopy},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := streaming()
			for _, change := range tc.changes {
				change(&f)
			}
			if got := decide(f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// FuzzDecide: whatever stands in the journal, no level serves what was not copied, no two steps
// are taken at once, and nothing is done to a volume without a stream.
func FuzzDecide(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"id":"v","state":"Staged","mode":"writethrough","hydration":{"regionSectors":64}}`,
		`{"id":"v","state":"Staged","mode":"writethrough","activated":true,"hydration":{"stream":{"hot":1,"chunks":9}}}`, `{"id":"v","state":"Wiping","hydration":{"stream":{}}}`,
	} {
		for flags := range uint16(256) {
			f.Add([]byte(text), flags)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, flags uint16) {
		var e state.Entry
		if json.Unmarshal(text, &e) != nil {
			return
		}
		on := func(bit uint) bool { return flags>>bit&1 == 1 }
		in := facts{
			Entry:     &e,
			Levels:    stack.Levels{Split: on(0) && !on(1), Merged: on(1), HotServes: on(2), RestServes: on(3)},
			HotCopied: on(4), Copied: on(5), Failed: on(6), Copying: on(7),
		}
		got := decide(in)
		wrong := map[step]bool{
			stepServeHot:  !in.HotCopied || in.Failed,
			stepServeRest: !in.Copied || in.Failed || in.HotCopied && !in.Levels.HotServes,
			stepMerge:     !in.Levels.RestServes,
			stepSweep:     !in.Levels.Merged,
			stepCopy:      in.Copying || in.Copied || in.Failed,
		}[got]
		if wrong || got != stepNothing && (e.Hydration == nil || e.Hydration.Stream == nil || e.State != state.Staged || e.Mode == volume.ModeNone) {
			t.Errorf("step %s of %+v, flags %b", got, e, flags)
		}
	})
}
