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
