package hotset

import (
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
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
