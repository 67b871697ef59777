package attach

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
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
	broken := func(f *stageFacts) { f.WarmProblem = "no clone target" }
	const wt, wb, none = volume.ModeWritethrough, volume.ModeWriteback, volume.ModeNone
	cases := map[string]struct {
		s    *situation
		want *warmPlan
	}{
		"offered":                     {newSituation(wt).with(from(volume.WarmPeer)).with(offered(before)), &warmPlan{Peer: before}},
		"offered, writeback":          {newSituation(wb).with(from(volume.WarmPeer)).with(offered(before)), &warmPlan{Peer: before}},
		"a record without the choice": {newSituation(wt).with(from("")).with(offered(before)), &warmPlan{Peer: before}},
		"nothing offered":             {newSituation(wt).with(from(volume.WarmPeer)), &warmPlan{}},
		"origin wanted":               {newSituation(wt).with(from(volume.WarmOrigin)).with(offered(before)), &warmPlan{}},
		"off":                         {newSituation(wt).with(offered(before)), nil},
		"this node cannot":            {newSituation(wt).with(from(volume.WarmPeer)).with(offered(before)).with(broken), nil},
		"an older generation (I3)": {
			newSituation(wt).with(from(volume.WarmPeer)).with(offered(&volume.WarmSource{Node: "b", Generation: 3})), &warmPlan{},
		},
		"killed before it was activated": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staging, wt, false, false).with(intended(before)), &warmPlan{Peer: before},
		},
		"killed when it may have been active (I5)": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staging, wt, true, false).with(intended(before)), &warmPlan{},
		},
		"active once, although the record still offers (I5)": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staged, wt, true, false).with(intended(before)).with(offered(before)).with(rebooted), &warmPlan{},
		},
		"intended by another ownership": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence4, state.Staging, wt, false, false).with(intended(before)), &warmPlan{},
		},
		"attached under this ownership before, and the record is out of a backup": {
			newSituation(wt).with(from(volume.WarmPeer)).with(offered(before)).with(stayed), &warmPlan{},
		},
		"attached before, and the stage was repeated": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staging, wt, false, false).with(intended(before)).with(stayed), &warmPlan{},
		},
		"the cache was denied below a pod": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staged, none, false, false).with(intended(before)).with(rebooted), &warmPlan{},
		},
		"the cache was denied, although the record still offers": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staged, none, false, false).with(offered(before)).with(rebooted), &warmPlan{},
		},
		"the volume was leaving without a cache": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Releasing, none, false, false).with(intended(before)).with(rebooted), &warmPlan{},
		},
		"the stage was to have no cache": {
			newSituation(wt).with(from(volume.WarmPeer)).entry(fence5, state.Staging, none, false, false).with(intended(before)), &warmPlan{},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
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

func TestDecideHydration(t *testing.T) {
	peer := &volume.ISCSI{IQN: "iqn.x"}
	hydrating := func(change func(*hydrationFacts)) hydrationFacts {
		f := hydrationFacts{
			Entry: &state.Entry{State: state.Staged, Mode: volume.ModeWritethrough, Hydration: &state.Hydration{Peer: peer}},
			Clone: true, Status: devmapper.CloneStatus{Hydrated: 3, Regions: 10},
		}
		change(&f)
		return f
	}
	cases := map[string]struct {
		change func(*hydrationFacts)
		want   hydrationStep
	}{
		"under way":                     {func(*hydrationFacts) {}, hydrationNothing},
		"begins":                        {func(f *hydrationFacts) { f.Status.Features = []string{"no_hydration"} }, hydrationEnable},
		"ahead":                         {func(f *hydrationFacts) { f.OverBudget = true }, hydrationRest},
		"ahead and resting":             {func(f *hydrationFacts) { f.OverBudget, f.Status.Features = true, []string{"no_hydration"} }, hydrationNothing},
		"the pod is being started":      {func(f *hydrationFacts) { f.Settling, f.Status.Features = true, []string{"no_hydration"} }, hydrationNothing},
		"complete before it could":      {func(f *hydrationFacts) { f.Settling, f.Status.Hydrated = true, f.Status.Regions }, hydrationSwap},
		"path lost":                     {func(f *hydrationFacts) { f.PathFailed = true }, hydrationRemap},
		"path lost during a stage":      {func(f *hydrationFacts) { f.PathFailed, f.Entry.State = true, state.Staging }, hydrationRemap},
		"path lost during an unstage":   {func(f *hydrationFacts) { f.PathFailed, f.Entry.State = true, state.Flushing }, hydrationRemap},
		"path lost, nothing to copy":    {func(f *hydrationFacts) { f.PathFailed, f.Status.Hydrated = true, 10 }, hydrationRemap},
		"deadline":                      {func(f *hydrationFacts) { f.Expired = true }, hydrationRemap},
		"source stopped":                {func(f *hydrationFacts) { f.SourceStopped = true }, hydrationRemap},
		"source stopped during a stage": {func(f *hydrationFacts) { f.SourceStopped, f.Entry.State = true, state.Staging }, hydrationRemap},
		"source stopped, remapped":      {func(f *hydrationFacts) { f.SourceStopped, f.OnOrigin = true, true }, hydrationLeave},
		"source stopped, left":          {func(f *hydrationFacts) { f.SourceStopped, f.OnOrigin, f.Entry.Hydration.Peer = true, true, nil }, hydrationNothing},
		"source stopped, swapped":       {func(f *hydrationFacts) { f.SourceStopped, f.Clone, f.Linear = true, false, true }, hydrationSweep},
		"remapped":                      {func(f *hydrationFacts) { f.OnOrigin, f.Expired = true, true }, hydrationLeave},
		"remapped, an origin's error":   {func(f *hydrationFacts) { f.OnOrigin, f.PathFailed = true, true }, hydrationRevive},
		"remapped, session ended":       {func(f *hydrationFacts) { f.OnOrigin, f.Entry.Hydration.Peer = true, nil }, hydrationNothing},
		"everything copied":             {func(f *hydrationFacts) { f.Status.Hydrated = 10 }, hydrationSwap},
		"everything copied, flushing":   {func(f *hydrationFacts) { f.Status.Hydrated, f.Entry.State = 10, state.Flushing }, hydrationNothing},
		"swapped":                       {func(f *hydrationFacts) { f.Clone, f.Linear = false, true }, hydrationSweep},
		"swapped, being unstaged":       {func(f *hydrationFacts) { f.Clone, f.Linear, f.Entry.State = false, true, state.Flushed }, hydrationNothing},
		"the clone has failed":          {func(f *hydrationFacts) { f.Status = devmapper.CloneStatus{Fail: true} }, hydrationNothing},
		"no answer":                     {func(f *hydrationFacts) { f.Status = devmapper.CloneStatus{Silent: true} }, hydrationNothing},
		"no answer, path lost":          {func(f *hydrationFacts) { f.Status, f.PathFailed = devmapper.CloneStatus{Silent: true}, true }, hydrationRemap},
		"no device":                     {func(f *hydrationFacts) { f.Clone = false }, hydrationNothing},
		"no hydration":                  {func(f *hydrationFacts) { f.Entry.Hydration = nil }, hydrationNothing},
		"no entry":                      {func(f *hydrationFacts) { f.Entry = nil }, hydrationNothing},
		"cache given up":                {func(f *hydrationFacts) { f.Entry.Mode = volume.ModeNone }, hydrationNothing},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := hydrating(func(f *hydrationFacts) {
				hydration := *f.Entry.Hydration
				f.Entry.Hydration = &hydration
				tc.change(f)
			})
			if got := decideHydration(f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestExportable(t *testing.T) {
	move := volume.MoveID{Name: "v-5", UID: "m1"}
	request := volume.LeaseRequest{Move: move, Volume: "v", UID: "u1", Generation: 4, To: "b"}
	good := func() (*state.Entry, volume.Volume) {
		return &state.Entry{Fence: fence4, State: state.Retained, Mode: volume.ModeWritethrough, Activated: true, Clean: true, Boot: "boot"},
			volume.Volume{Fence: volume.Fence{UID: "u1", Generation: 5, Node: "b"}, Published: true}
	}
	cases := map[string]struct {
		change func(*state.Entry, *volume.Volume)
		want   error
	}{
		"a clean retained cache": {func(*state.Entry, *volume.Volume) {}, nil},
		"asked again":            {func(e *state.Entry, _ *volume.Volume) { e.Exported = &move }, nil},
		"asked anew":             {func(e *state.Entry, _ *volume.Volume) { e.Exported, e.Boot = &volume.MoveID{UID: "m0"}, "earlier" }, nil},
		"lost by a restart":      {func(e *state.Entry, _ *volume.Volume) { e.Exported, e.Boot = &move, "earlier" }, volume.ErrUnavailable},
		"attached":               {func(e *state.Entry, _ *volume.Volume) { e.State = state.Staged }, volume.ErrNotFound},
		"not whole (I5)":         {func(e *state.Entry, _ *volume.Volume) { e.Hydration = &state.Hydration{} }, volume.ErrNotFound},
		"not clean (I4)":         {func(e *state.Entry, _ *volume.Volume) { e.Clean = false }, volume.ErrNotFound},
		"older generation":       {func(e *state.Entry, _ *volume.Volume) { e.Fence.Generation = 3 }, volume.ErrNotFound},
		"another volume":         {func(e *state.Entry, _ *volume.Volume) { e.Fence.UID = "u2" }, volume.ErrNotFound},
		"owner moved on":         {func(_ *state.Entry, v *volume.Volume) { v.Fence.Generation = 6 }, volume.ErrFenced},
		"another node owns it":   {func(_ *state.Entry, v *volume.Volume) { v.Fence.Node = "c" }, volume.ErrFenced},
		"nobody is entitled now": {func(_ *state.Entry, v *volume.Volume) { v.Published = false }, volume.ErrFenced},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e, rec := good()
			tc.change(e, &rec)
			if err := exportable(e, rec, request, "boot"); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	if err := exportable(nil, volume.Volume{}, request, "boot"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("no entry: got %v", err)
	}
}

func TestPulse(t *testing.T) {
	cases := map[string]struct {
		tokens int64
		speed  float64
		want   time.Duration
	}{
		"speed unknown":       {1 << 30, 0, minOnTime},
		"slower than allowed": {64 << 20, 50 << 20, 0},
		"much faster":         {1 << 20, 100 << 20, 10 * time.Millisecond},
		"nothing left":        {0, 100 << 20, minOnTime},
		"overdrawn":           {-5, 100 << 20, minOnTime},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := onTime(tc.tokens, tc.speed, minOnTime); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
