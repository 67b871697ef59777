package stack

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// statuses is a kernel that says what it has of each device, or how it fails.
type statuses struct {
	devmapper.Client
	of    map[string]devmapper.CacheStatus
	fails map[string]error
	asked int
}

func (s *statuses) Status(_ context.Context, name string) (devmapper.CacheStatus, bool, error) {
	s.asked++
	st, found := s.of[name]
	return st, found, s.fails[name]
}

// TestLevelStatus: both levels of a stream count, and one that cannot be read is not taken for
// one that is not there.
func TestLevelStatus(t *testing.T) {
	broken := errors.New("the kernel does not say")
	dirty := func(n uint64) devmapper.CacheStatus { return devmapper.CacheStatus{Dirty: n, CacheUsed: 10} }
	streams := &state.Entry{ID: "v", Hydration: &state.Hydration{Stream: &state.Stream{}}}
	for name, tc := range map[string]struct {
		entry *state.Entry
		of    map[string]devmapper.CacheStatus
		fails map[string]error
		// wantDirty is -1 if no cache is to be found.
		wantDirty, wantAsked int
		want                 error
	}{
		"both levels":                 {entry: streams, of: map[string]devmapper.CacheStatus{"nf-v": dirty(1), "nf-v.hot": dirty(2)}, wantDirty: 3, wantAsked: 2},
		"the first level is gone":     {entry: streams, of: map[string]devmapper.CacheStatus{"nf-v": dirty(1)}, fails: map[string]error{"nf-v.hot": devmapper.ErrNotExist}, wantDirty: 1, wantAsked: 2},
		"the first level is none":     {entry: streams, of: map[string]devmapper.CacheStatus{"nf-v": dirty(1)}, wantDirty: 1, wantAsked: 2},
		"the first level is unread":   {entry: streams, of: map[string]devmapper.CacheStatus{"nf-v": dirty(0)}, fails: map[string]error{"nf-v.hot": broken}, wantDirty: -1, wantAsked: 2, want: broken},
		"the top is unread":           {entry: streams, fails: map[string]error{"nf-v": broken}, wantDirty: -1, wantAsked: 1, want: broken},
		"no cache any more":           {entry: streams, of: map[string]devmapper.CacheStatus{"nf-v.hot": dirty(2)}, wantDirty: -1, wantAsked: 2},
		"an ordinary cache":           {entry: &state.Entry{ID: "v"}, of: map[string]devmapper.CacheStatus{"nf-v": dirty(4)}, wantDirty: 4, wantAsked: 1},
		"an ordinary cache, no cache": {entry: &state.Entry{ID: "v"}, fails: map[string]error{"nf-v": devmapper.ErrNotExist}, wantDirty: -1, wantAsked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			kernel := &statuses{of: tc.of, fails: tc.fails}
			st, found, err := New(Config{DM: kernel}).LevelStatus(t.Context(), tc.entry)
			if !errors.Is(err, tc.want) || found != (tc.wantDirty >= 0) || found && st.Dirty != uint64(tc.wantDirty) {
				t.Errorf("got %d dirty, found %t, %v", st.Dirty, found, err)
			}
			if kernel.asked != tc.wantAsked {
				t.Errorf("asked %d times, want %d", kernel.asked, tc.wantAsked)
			}
		})
	}
}
