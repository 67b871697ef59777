package attach

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDecideMethod has every line of "By which method".
func TestDecideMethod(t *testing.T) {
	const clone, stream = volume.MethodClone, volume.MethodStream
	const noClone, noStream = "no dm-clone here", "this kernel forgets writes"
	cases := map[string]struct {
		asked        volume.MoveMethod
		clone        string
		stream       string
		want         volume.MoveMethod
		wantInReason []string
	}{
		"clone is asked for":                          {asked: clone, want: clone, wantInReason: []string{"asked for"}},
		"clone is asked for, no streams here":         {asked: clone, stream: noStream, want: clone, wantInReason: []string{"asked for"}},
		"clone is asked for, and cannot be had":       {asked: clone, clone: noClone, wantInReason: []string{"clone", noClone}},
		"clone is asked for, nothing can be had":      {asked: clone, clone: noClone, stream: noStream, wantInReason: []string{"clone", noClone}},
		"a stream is asked for":                       {asked: stream, want: stream, wantInReason: []string{"asked for"}},
		"a stream is asked for, and nothing else":     {asked: stream, clone: noClone, want: stream, wantInReason: []string{"asked for"}},
		"a stream is asked for, and cannot be had":    {asked: stream, stream: noStream, wantInReason: []string{"stream", noStream}},
		"a stream is asked for, nothing can be had":   {asked: stream, clone: noClone, stream: noStream, wantInReason: []string{"stream", noStream}},
		"nothing is asked for":                        {want: clone, wantInReason: []string{"dm-clone"}},
		"nothing is asked for, no streams here":       {stream: noStream, want: clone, wantInReason: []string{"dm-clone"}},
		"nothing is asked for, no clone here":         {clone: noClone, want: stream, wantInReason: []string{noClone}},
		"nothing is asked for, and nothing to be had": {clone: noClone, stream: noStream, wantInReason: []string{noClone, noStream}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, reason := decideMethod(methodFacts{Asked: tc.asked, CloneProblem: tc.clone, StreamProblem: tc.stream})
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			for _, want := range tc.wantInReason {
				if !strings.Contains(reason, want) {
					t.Errorf("reason %q does not say %q", reason, want)
				}
			}
		})
	}
}

// TestDecideStageByStream: a cache that a stream fills is written through until there is one map,
// also over what was prewarmed.
func TestDecideStageByStream(t *testing.T) {
	const wt, wb = volume.ModeWritethrough, volume.ModeWriteback
	before := &volume.WarmSource{Node: "b", Generation: 4}
	warm := func(m volume.MoveMethod, src *volume.WarmSource) func(*stageFacts) {
		return func(f *stageFacts) {
			f.Record.Spec.WarmStart.From, f.Record.WarmSource, f.Method = volume.WarmPeer, src, m
		}
	}
	prewarmed := func(f *stageFacts) {
		f.Entry = &state.Entry{Fence: fence4, State: state.Prewarmed, Mode: wt, Prewarm: &state.Prewarm{}}
	}
	cases := map[string]struct {
		s        *situation
		wantMode volume.CacheMode
		wantPeer bool
		wantKeep bool
	}{
		"writethrough":                           {newSituation(wt).with(warm(volume.MethodStream, before)), wt, true, false},
		"writeback":                              {newSituation(wb).with(warm(volume.MethodStream, before)), wt, true, false},
		"writeback, by clone":                    {newSituation(wb).with(warm(volume.MethodClone, before)), wb, true, false},
		"writeback, nothing to begin from":       {newSituation(wb).with(warm(volume.MethodStream, nil)), wb, false, false},
		"writeback, an older generation (I3)":    {newSituation(wb).with(warm(volume.MethodStream, &volume.WarmSource{Node: "b", Generation: 3})), wb, false, false},
		"writeback, over data that were brought": {newSituation(wb).with(prewarmed).with(warm(volume.MethodStream, before)), wt, true, true},
		"writeback, attached before (I5)": {
			newSituation(wb).with(warm(volume.MethodStream, before)).with(func(f *stageFacts) { f.StayedBefore = true }), wb, false, false,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			plan := decideStage(tc.s.f)
			if plan.Cache != planCreate || plan.Mode != tc.wantMode || plan.Warm == nil || (plan.Warm.Peer != nil) != tc.wantPeer {
				t.Errorf("got %+v, %+v, want a new cache in mode %s, from a peer %t", plan, plan.Warm, tc.wantMode, tc.wantPeer)
			}
			if plan.Keep != tc.wantKeep || plan.Wipe && tc.wantKeep {
				t.Errorf("what was prewarmed is kept: %t, want %t", plan.Keep, tc.wantKeep)
			}
		})
	}
}

// TestDecideReaders: a new reader asks those that were there before it, and nobody else's cache is believed.
func TestDecideReaders(t *testing.T) {
	const wt = volume.ModeWritethrough
	reads := func(others ...string) func(*stageFacts) {
		return func(f *stageFacts) {
			f.Record.ReadOnly, f.Record.Readers, f.Record.Spec.WarmStart.From = true, append(others, f.Node), volume.WarmPeer
			f.Method, f.Streams = volume.MethodClone, true
		}
	}
	from := func(nodes ...string) (out []volume.WarmSource) {
		for _, n := range nodes {
			out = append(out, volume.WarmSource{Node: n, Generation: 5})
		}
		return out
	}
	cases := map[string]struct {
		s    *situation
		want *warmPlan
	}{
		"another one":                        {newSituation(wt).with(reads("b")), &warmPlan{Method: volume.MethodClone, Readers: from("b")}},
		"many: the first three":              {newSituation(wt).with(reads("e", "d", "c", "b")), &warmPlan{Method: volume.MethodClone, Readers: from("e", "d", "c")}},
		"none":                               {newSituation(wt).with(reads()), &warmPlan{Method: volume.MethodClone}},
		"no streams here":                    {newSituation(wt).with(reads("b")).with(func(f *stageFacts) { f.Streams = false }), &warmPlan{Method: volume.MethodClone}},
		"from the origin alone":              {newSituation(wt).with(reads("b")).with(func(f *stageFacts) { f.Record.Spec.WarmStart.From = volume.WarmOrigin }), &warmPlan{Method: volume.MethodClone}},
		"no warm start":                      {newSituation(wt).with(reads("b")).with(func(f *stageFacts) { f.Record.Spec.WarmStart.From = volume.WarmOff }), nil},
		"here before, and what is here went": {newSituation(wt).with(reads("b")).with(func(f *stageFacts) { f.StayedBefore = true }), &warmPlan{Method: volume.MethodClone, Readers: from("b")}},
		"prewarmed before it was read": {newSituation(wt).with(reads("b")).with(func(f *stageFacts) {
			f.Entry = &state.Entry{Fence: fence4, State: state.Prewarmed, Mode: wt, Prewarm: &state.Prewarm{}}
		}), &warmPlan{Method: volume.MethodClone, Readers: from("b")}},
		"of a writer": {newSituation(wt).with(reads("b")).with(func(f *stageFacts) { f.Record.ReadOnly = false }), &warmPlan{Method: volume.MethodClone}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			plan := decideStage(tc.s.f)
			if diff := cmp.Diff(tc.want, plan.Warm); plan.Cache != planCreate || plan.Keep || diff != "" {
				t.Errorf("plan %+v, (-want +got):\n%s", plan, diff)
			}
		})
	}
}

// TestDecideUnfinishedStream: what a stream was filling is never used again (I5), whatever else
// speaks for it. Its maps are not where those of a cache are, and not all that they name was copied.
func TestDecideUnfinishedStream(t *testing.T) {
	const wt = volume.ModeWritethrough
	for _, st := range []state.State{state.Retained, state.Flushed, state.Staging} {
		for name, change := range map[string]func(*stageFacts){
			"":                              func(*stageFacts) {},
			", the volume for maps exists":  func(f *stageFacts) { f.Cache.Hydration = true },
			", called whole":                func(f *stageFacts) { f.Entry.Hydration.Whole, f.Cache.Hydration = true, true },
			", the node has lost its power": rebooted,
		} {
			t.Run(string(st)+name, func(t *testing.T) {
				s := newSituation(wt).entry(fence5, st, wt, true, true).cache(fence5, wt, true)
				s.f.Entry.Hydration = &state.Hydration{}
				s.with(change)
				whole := *s.f.Entry
				whole.Hydration = nil
				f := s.f
				f.Entry = &whole
				if plan := decideStage(f); plan.Cache != planReuse {
					t.Fatalf("without a hydration: %+v, want reuse", plan)
				}
				s.f.Entry.Hydration.Stream = &state.Stream{Hot: 1, Chunks: 9}
				if plan := decideStage(s.f); plan.Cache != planCreate || !plan.Wipe {
					t.Errorf("got %+v, want a wipe and a new cache", plan)
				}
			})
		}
	}
}

// TestStreamPause: only where there is one processor does a stream wait for the start of the pod.
func TestStreamPause(t *testing.T) {
	for processors, want := range map[int]time.Duration{1: time.Minute, 2: 0, 64: 0} {
		if got := streamPause(processors, time.Minute); got != want {
			t.Errorf("%d processors: %s, want %s", processors, got, want)
		}
	}
}
