package attach

import (
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestWanted: a retained cache is of use to its owner, to the one after it and to a destination,
// and not for longer than it may rest.
func TestWanted(t *testing.T) {
	const node, ttl = "node-a", 72 * time.Hour
	now := time.Now()
	f := volume.Fence{UID: "u", Generation: 3, Node: node}
	next := volume.Fence{UID: "u", Generation: 4, Node: "node-b"}
	source := func(generation int64) *volume.WarmSource {
		return &volume.WarmSource{Node: node, Generation: generation}
	}
	for name, tc := range map[string]struct {
		rest     time.Duration
		rec      volume.Volume
		exported bool
		// none is true if there is no record, and deleted a generation that was deleted.
		none    bool
		deleted int64
		want    bool
	}{
		"the owner's":                {rec: volume.Volume{Fence: f}, want: true},
		"the owner's, rested enough": {rest: ttl + time.Second, rec: volume.Volume{Fence: f}},
		"the owner's, nearly":        {rest: ttl - time.Second, rec: volume.Volume{Fence: f}, want: true},
		"the next one's":             {rec: volume.Volume{Fence: next, WarmSource: source(3)}, want: true},
		"the next one's, too late":   {rest: ttl + time.Second, rec: volume.Volume{Fence: next, WarmSource: source(3)}},
		"taken by the next one":      {rec: volume.Volume{Fence: next}},
		"of another generation":      {rec: volume.Volume{Fence: next, WarmSource: source(2)}},
		"of another UID":             {rec: volume.Volume{Fence: volume.Fence{UID: "v", Generation: 3, Node: node}}, want: true},
		"of another UID, too late":   {rest: ttl + time.Second, rec: volume.Volume{Fence: volume.Fence{UID: "v", Generation: 3, Node: node}}},
		"of another UID, deleted":    {rec: volume.Volume{Fence: volume.Fence{UID: "v"}}, deleted: 3},
		"a later one was deleted":    {none: true, deleted: 4},
		"an earlier one was deleted": {none: true, deleted: 2, want: true},
		"without a record":           {none: true, want: true},
		"without a record, too late": {none: true, rest: ttl + time.Second},
		"uncached by now":            {rec: volume.Volume{Fence: f, Spec: volume.Spec{Mode: volume.ModeNone}}},
		"exported":                   {rest: ttl + time.Second, rec: volume.Volume{Fence: next}, exported: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Config{Node: node, Boot: "boot", Warm: WarmConfig{RetainedCacheTTL: ttl}}, Deps{Now: func() time.Time { return now }, Pool: withoutPool{}})
			e := &state.Entry{ID: "v", State: state.Retained, Mode: volume.ModeWritethrough, Boot: "boot", Clean: true, Fence: f, UpdatedAt: now.Add(-tc.rest)}
			if tc.exported {
				e.Exported = &volume.MoveID{Name: "m"}
			}
			if tc.rec.Spec.Mode == "" {
				tc.rec.Spec.Mode = volume.ModeWritethrough
			}
			rec := &tc.rec
			if tc.none {
				rec = nil
			}
			if got := a.wanted(e, rec, func() []volume.Deletion { return []volume.Deletion{{ID: "v", UID: "u", Generation: tc.deleted}} }); got != tc.want {
				t.Errorf("wanted %v, want %v", got, tc.want)
			}
		})
	}
}

// TestHotSetDue: the hot set of an attached volume is taken at a bounded rate, that of a
// retained cache once, and neither in the middle of a copy.
func TestHotSetDue(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		e    state.Entry
		want bool
	}{
		"long ago":            {state.Entry{State: state.Staged, HotSetAt: now.Add(-31 * time.Minute)}, true},
		"of an earlier boot":  {state.Entry{State: state.Staged, HotSetAt: now.Add(-time.Hour), Boot: "earlier"}, false},
		"a while ago":         {state.Entry{State: state.Staged, HotSetAt: now.Add(-29 * time.Minute)}, false},
		"in a copy":           {state.Entry{State: state.Staged, HotSetAt: now.Add(-time.Hour), Hydration: &state.Hydration{}}, false},
		"uncached":            {state.Entry{State: state.Staged, HotSetAt: now.Add(-time.Hour), Mode: volume.ModeNone}, false},
		"left just now":       {state.Entry{State: state.Retained, HotSetDue: true, UpdatedAt: now}, false},
		"left":                {state.Entry{State: state.Retained, HotSetDue: true, UpdatedAt: now.Add(-time.Hour)}, true},
		"left, and taken":     {state.Entry{State: state.Retained, UpdatedAt: now.Add(-time.Hour)}, false},
		"left, and exported":  {state.Entry{State: state.Retained, HotSetDue: true, UpdatedAt: now.Add(-time.Hour), Exported: &volume.MoveID{}}, false},
		"in between, flushed": {state.Entry{State: state.Flushing, HotSetDue: true, HotSetAt: now.Add(-time.Hour)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Config{}, Deps{Now: func() time.Time { return now }, Pool: withoutPool{}})
			if tc.e.Mode == "" {
				tc.e.Mode = volume.ModeWritethrough
			}
			if got := a.hotSetDue(&tc.e); got != tc.want {
				t.Errorf("due %v, want %v", got, tc.want)
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
			a := New(Config{Warm: WarmConfig{NodeBandwidth: tc.node}}, Deps{Pool: withoutPool{}})
			if got := a.copyLimit(tc.own, tc.active); got != tc.want {
				t.Errorf("%d bytes a second, want %d", got, tc.want)
			}
		})
	}
}
