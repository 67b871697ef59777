package hotset

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDue: the hot set of an attached volume is taken at a bounded rate, that of a
// retained cache once, and neither in the middle of a copy.
func TestDue(t *testing.T) {
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
			r := &Recorder{Every: 30 * time.Minute, Now: func() time.Time { return now }}
			if tc.e.Mode == "" {
				tc.e.Mode = volume.ModeWritethrough
			}
			if got := r.due(&tc.e); got != tc.want {
				t.Errorf("due %v, want %v", got, tc.want)
			}
		})
	}
}

// counts is how often blocks were read, and what was asked for.
type counts struct {
	heat  cachemap.Heat
	calls []string
}

func (c *counts) Add(context.Context, *state.Entry) { c.calls = append(c.calls, "add") }

func (c *counts) Of(context.Context, *state.Entry) cachemap.Heat {
	c.calls = append(c.calls, "of")
	return c.heat
}

// TestOrdered: blocks are listed by how often they were read; of an attached volume that is
// brought up to date before.
func TestOrdered(t *testing.T) {
	m := cachemap.Map{ChunkSectors: 64, CacheBlocks: 9, Entries: []cachemap.Entry{{Cache: 0, Origin: 0, Level: 9}, {Cache: 1, Origin: 2}, {Cache: 2, Origin: 1}}}
	heat := cachemap.Heat{}.Add("a", time.Now(), 64, []uint64{1, 2, 3})
	for name, tc := range map[string]struct {
		state state.State
		heat  *counts
		calls string
		want  []uint64
	}{
		"attached":      {state.Staged, &counts{heat: heat}, "add of", []uint64{2, 1, 0}},
		"left":          {state.Retained, &counts{heat: heat}, "of", []uint64{2, 1, 0}},
		"nothing known": {state.Retained, &counts{}, "of", []uint64{0, 2, 1}},
		"nobody counts": {state.Staged, nil, "", []uint64{0, 2, 1}},
	} {
		r := &Recorder{}
		if tc.heat != nil {
			r.Heat = tc.heat
		}
		got, _ := r.ordered(t.Context(), &state.Entry{State: tc.state}, m).Hottest()
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if tc.heat != nil && strings.Join(tc.heat.calls, " ") != tc.calls {
			t.Errorf("%s: %v, want %s", name, tc.heat.calls, tc.calls)
		}
	}
}
