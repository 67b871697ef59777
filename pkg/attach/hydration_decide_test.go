package attach

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestDecideWarm(t *testing.T) {
	before := &volume.WarmSource{Node: "b", Generation: 4}
	offered := func(src *volume.WarmSource) func(*stageFacts) {
		return func(f *stageFacts) { f.Record.WarmSource = src }
	}
	intended := func(src *volume.WarmSource) func(*stageFacts) {
		return func(f *stageFacts) { f.Entry.Hydration = &state.Hydration{From: src} }
	}
	from := func(w volume.WarmFrom) func(*stageFacts) {
		return func(f *stageFacts) { f.Record.Spec.WarmStart.From = w }
	}
	stayed := func(f *stageFacts) { f.StayedBefore = true }
	broken := func(f *stageFacts) { f.Method = "" }
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	cases := map[string]struct {
		s    *situation
		want *warmPlan
	}{
		"offered":                     {newSituation(wt).with(from(volume.WarmPeer)).with(offered(before)), &warmPlan{Method: volume.MethodClone, Peer: before}},
		"offered, writeback":          {newSituation(wb).with(from(volume.WarmPeer)).with(offered(before)), &warmPlan{Method: volume.MethodClone, Peer: before}},
		"a record without the choice": {newSituation(wt).with(from("")).with(offered(before)), &warmPlan{Method: volume.MethodClone, Peer: before}},
		"nothing offered":             {newSituation(wt).with(from(volume.WarmPeer)), &warmPlan{Method: volume.MethodClone}},
		"origin wanted":               {newSituation(wt).with(from(volume.WarmOrigin)).with(offered(before)), &warmPlan{Method: volume.MethodClone}},
		"off":                         {newSituation(wt).with(offered(before)), nil},
		"by stream": {
			newSituation(wb).with(from(volume.WarmPeer)).with(offered(before)).with(func(f *stageFacts) { f.Method = volume.MethodStream }), &warmPlan{Method: volume.MethodStream, Peer: before},
		},
		"this node cannot": {newSituation(wt).with(from(volume.WarmPeer)).with(offered(before)).with(broken), nil},
		"an older generation (I3)": {
			newSituation(wt).with(from(volume.WarmPeer)).with(offered(&volume.WarmSource{Node: "b", Generation: 3})), &warmPlan{Method: volume.MethodClone},
		},
		"killed before it was activated": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staging, wt, false, false).with(intended(before)), &warmPlan{Method: volume.MethodClone, Peer: before},
		},
		"killed when it may have been active (I5)": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staging, wt, true, false).with(intended(before)), &warmPlan{Method: volume.MethodClone},
		},
		"active once, although the record still offers (I5)": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staged, wt, true, false).with(intended(before)).with(offered(before)).with(rebooted), &warmPlan{Method: volume.MethodClone},
		},
		"intended by another ownership": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence4, state.Staging, wt, false, false).with(intended(before)), &warmPlan{Method: volume.MethodClone},
		},
		"attached under this ownership before, and the record is out of a backup": {
			newSituation(wt).with(from(volume.WarmPeer)).with(offered(before)).with(stayed), &warmPlan{Method: volume.MethodClone},
		},
		"attached before, and the stage was repeated": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staging, wt, false, false).with(intended(before)).with(stayed), &warmPlan{Method: volume.MethodClone},
		},
		"the cache was denied below a pod": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staged, none, false, false).with(intended(before)).with(rebooted), &warmPlan{Method: volume.MethodClone},
		},
		"the cache was denied, although the record still offers": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staged, none, false, false).with(offered(before)).with(rebooted), &warmPlan{Method: volume.MethodClone},
		},
		"the volume was leaving without a cache": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Releasing, none, false, false).with(intended(before)).with(rebooted), &warmPlan{Method: volume.MethodClone},
		},
		"the stage was to have no cache": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staging, none, false, false).with(intended(before)), &warmPlan{Method: volume.MethodClone},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.s.f.Method == "" && name != "this node cannot" {
				tc.s.f.Method = volume.MethodClone
			}
			plan := decideStage(tc.s.f)
			if plan.Cache != planCreate {
				t.Fatalf("plan %+v, want a new cache", plan)
			}
			if diff := cmp.Diff(tc.want, plan.Warm); diff != "" {
				t.Errorf("warm plan (-want +got):\n%s", diff)
			}
		})
	}
}

// A retained cache that was never whole goes on from the origin, and only with its
// clone's metadata.
func TestDecideUnfinished(t *testing.T) {
	retained := func() *situation {
		s := newSituation(volume.ModeWritethrough).entry(fence5, state.Retained, volume.ModeWritethrough, true, true).cache(fence5, volume.ModeWritethrough, true)
		s.f.Entry.Hydration = &state.Hydration{RegionSectors: 256}
		return s
	}
	if plan := decideStage(retained().f); plan.Cache != planCreate || !plan.Wipe {
		t.Errorf("without the clone's metadata: %+v, want a wipe and a new cache", plan)
	}
	if plan := decideStage(retained().with(func(f *stageFacts) { f.Cache.Hydration = true }).f); plan.Cache != planReuse {
		t.Errorf("with the clone's metadata: %+v, want reuse", plan)
	}
	again := (&state.Hydration{From: &volume.WarmSource{Node: "b"}, Peer: &volume.ISCSI{}, RegionSectors: 256, Bandwidth: 7}).Again()
	if diff := cmp.Diff(&state.Hydration{RegionSectors: 256, Bandwidth: 7}, again); diff != "" {
		t.Errorf("a hydration that is activated again must not know a retained cache (-want +got):\n%s", diff)
	}
}

// What has no cache begins from nowhere, and what it began from is counted all the same.
func TestForgottenRetainedCache(t *testing.T) {
	src := &volume.WarmSource{Node: "b", Generation: 4}
	plan := uncached(stagePlan{Cache: planCreate, Keep: true, Warm: &warmPlan{Peer: src}}, "R", "m")
	if plan.Warm != nil || plan.Keep {
		t.Errorf("uncached: %+v", plan)
	}
	exported := &state.Hydration{From: src, Peer: &volume.ISCSI{IQN: "iqn.x"}, PeerSectors: 8}
	exported.ForgetRetainedCache()
	(*state.Hydration)(nil).ForgetRetainedCache()
	if exported.From != nil {
		t.Errorf("it may begin from %+v", exported.From)
	}
	for name, tc := range map[string]struct {
		hydration state.Hydration
		want      volume.ServedFrom
	}{
		"from a peer":            {state.Hydration{From: src}, volume.FromPeer},
		"from a peer, forgotten": {*exported, volume.FromPeer},
		"from the hot set":       {state.Hydration{RegionSectors: 8}, volume.FromOrigin},
	} {
		if got := tc.hydration.Began(); got != tc.want {
			t.Errorf("%s: began from %s, want %s", name, got, tc.want)
		}
	}
	s := &staging{plan: plan, entry: &state.Entry{Mode: volume.ModeNone, Hydration: exported}}
	if got := s.began(); got == "" {
		t.Error("the stage says nothing of how it began")
	}
}

// TestWords: what users read of steps is words, of every one.
func TestWords(t *testing.T) {
	for _, p := range []cachePlan{planUncached, planAdopt, planReuse, planRecover, planCreate} {
		if w := p.words(); !strings.Contains(w, " ") || strings.Contains(w, string(p)) {
			t.Errorf("plan %s: %q", p, w)
		}
	}
	seen := map[string]changeStep{}
	for _, c := range []changeStep{changeSweep, changeCache, changeUncache, changeMark, changeUnmark, changeRestore, changeWriteback, changeGrow} {
		w := appliedReport(changeFacts{}, c).Message
		if other, twice := seen[w]; twice || !strings.Contains(w, " ") || strings.HasPrefix(w, "step") || strings.HasPrefix(w, "nothing") {
			t.Errorf("step %s: %q, as %q", c, w, other)
		}
		seen[w] = c
	}
	s := &staging{plan: stagePlan{Cache: planCreate, NotWarm: "it was lost"}, entry: &state.Entry{}, rec: volume.Volume{WarmSource: &volume.WarmSource{Node: "b"}}}
	if got, want := s.began()+" on node a", "a new, empty cache, without the cache of node b (it was lost), on node a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.rec.WarmSource = nil
	if got, want := s.began()+" on node a", "a new, empty cache on node a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.plan.NotPreloaded = "no dm-clone"
	if got, want := s.began()+" on node a", "a new, empty cache, not preloaded (no dm-clone), on node a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.entry.Hydration = &state.Hydration{RegionSectors: 8}
	if got, want := s.began()+" on node a", "a new, empty cache, filled with what was read most, on node a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.entry.Hydration.Preload = true
	if got, want := s.began()+" on node a", "a new, empty cache, filled with the whole volume as far as it has room, on node a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
