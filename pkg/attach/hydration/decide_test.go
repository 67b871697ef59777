package hydration

import (
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestDecideHydration(t *testing.T) {
	peer := &volume.ISCSI{IQN: "iqn.x"}
	hydrating := func(change func(*facts)) facts {
		f := facts{
			Entry: &state.Entry{State: state.Staged, Mode: volume.ModeWritethrough, Hydration: &state.Hydration{Peer: peer}},
			Clone: true, Status: devmapper.CloneStatus{Hydrated: 3, Regions: 10},
		}
		change(&f)
		return f
	}
	cases := map[string]struct {
		change func(*facts)
		want   stepKind
	}{
		"under way":                     {func(*facts) {}, stepNothing},
		"begins":                        {func(f *facts) { f.Status.Features = []string{"no_hydration"} }, stepEnable},
		"over its budget":               {func(f *facts) { f.OverBudget = true }, stepRest},
		"over its budget and resting":   {func(f *facts) { f.OverBudget, f.Status.Features = true, []string{"no_hydration"} }, stepNothing},
		"the pod is being started":      {func(f *facts) { f.Settling, f.Status.Features = true, []string{"no_hydration"} }, stepNothing},
		"complete before it could":      {func(f *facts) { f.Settling, f.Status.Hydrated = true, f.Status.Regions }, stepSwap},
		"path lost":                     {func(f *facts) { f.PathFailed = true }, stepRemap},
		"path lost during a stage":      {func(f *facts) { f.PathFailed, f.Entry.State = true, state.Staging }, stepRemap},
		"path lost during an unstage":   {func(f *facts) { f.PathFailed, f.Entry.State = true, state.Flushing }, stepRemap},
		"path lost, nothing to copy":    {func(f *facts) { f.PathFailed, f.Status.Hydrated = true, 10 }, stepRemap},
		"deadline":                      {func(f *facts) { f.Expired = true }, stepRemap},
		"source stopped":                {func(f *facts) { f.SourceStopped = true }, stepRemap},
		"source stopped during a stage": {func(f *facts) { f.SourceStopped, f.Entry.State = true, state.Staging }, stepRemap},
		"source stopped, remapped":      {func(f *facts) { f.SourceStopped, f.OnOrigin = true, true }, stepLeave},
		"source stopped, left":          {func(f *facts) { f.SourceStopped, f.OnOrigin, f.Entry.Hydration.Peer = true, true, nil }, stepNothing},
		"source stopped, swapped":       {func(f *facts) { f.SourceStopped, f.Clone, f.Linear = true, false, true }, stepSweep},
		"remapped":                      {func(f *facts) { f.OnOrigin, f.Expired = true, true }, stepLeave},
		"remapped, an origin's error":   {func(f *facts) { f.OnOrigin, f.PathFailed = true, true }, stepRevive},
		"remapped, session ended":       {func(f *facts) { f.OnOrigin, f.Entry.Hydration.Peer = true, nil }, stepNothing},
		"everything copied":             {func(f *facts) { f.Status.Hydrated = 10 }, stepSwap},
		"everything copied, flushing":   {func(f *facts) { f.Status.Hydrated, f.Entry.State = 10, state.Flushing }, stepNothing},
		"swapped":                       {func(f *facts) { f.Clone, f.Linear = false, true }, stepSweep},
		"swapped, being unstaged":       {func(f *facts) { f.Clone, f.Linear, f.Entry.State = false, true, state.Flushed }, stepNothing},
		"the clone has failed":          {func(f *facts) { f.Status = devmapper.CloneStatus{Fail: true} }, stepNothing},
		"no answer":                     {func(f *facts) { f.Status = devmapper.CloneStatus{Silent: true} }, stepNothing},
		"no answer, path lost":          {func(f *facts) { f.Status, f.PathFailed = devmapper.CloneStatus{Silent: true}, true }, stepRemap},
		"no device":                     {func(f *facts) { f.Clone = false }, stepNothing},
		"no hydration":                  {func(f *facts) { f.Entry.Hydration = nil }, stepNothing},
		"no entry":                      {func(f *facts) { f.Entry = nil }, stepNothing},
		"cache given up":                {func(f *facts) { f.Entry.Mode = volume.ModeNone }, stepNothing},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := hydrating(func(f *facts) {
				hydration := *f.Entry.Hydration
				f.Entry.Hydration = &hydration
				tc.change(f)
			})
			if got := decide(f); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
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

// TestCopyLimit: copies share what the node may copy, and each keeps to its own limit.
func TestCopyLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		node, own int64
		active    int
		want      int64
	}{
		"no limit":              {want: 0},
		"its own":               {own: 64 << 20, active: 5, want: 64 << 20},
		"the node's":            {node: 100 << 20, active: 1, want: 100 << 20},
		"a share of the node's": {node: 100 << 20, own: 64 << 20, active: 20, want: 5 << 20},
		"its own is less":       {node: 100 << 20, own: 1 << 20, active: 20, want: 1 << 20},
		"none is counted yet":   {node: 100 << 20, active: 0, want: 100 << 20},
		"never no limit":        {node: 3, active: 20, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Config{NodeBandwidth: func() int64 { return tc.node }})
			if got := r.Limit(tc.own, tc.active); got != tc.want {
				t.Errorf("%d bytes a second, want %d", got, tc.want)
			}
		})
	}
}
