package transport_test

import (
	"maps"
	"testing"

	"github.com/nearflash/nearflash/pkg/transport"
)

func TestMarksSince(t *testing.T) {
	a, b := transport.PathMark{Path: "session1 a", Errors: 2}, transport.PathMark{Path: "session2 b"}
	both := transport.Marks{"p:1": a, "q:1": b}
	at := func(errors uint64) transport.Marks {
		return transport.Marks{"p:1": {Path: a.Path, Errors: errors}}
	}
	twice := transport.Marks{"p:1": {Path: a.Path, Errors: 2, Rescans: 2, RescanErrors: 2}}
	hidden := transport.Marks{"p:1": {Path: a.Path, Errors: 2, Rescans: 2, RescanErrors: 3}}
	cases := map[string]struct {
		base, now transport.Marks
		price     uint64
		want      transport.Failed
	}{
		"as before":            {both, transport.Marks{"p:1": a, "q:1": b}, 0, transport.FailedNo},
		"a path has come":      {transport.Marks{"p:1": a}, both, 0, transport.FailedNo},
		"a request has failed": {both, transport.Marks{"p:1": a, "q:1": {Path: b.Path, Errors: 1}}, 0, transport.FailedYes},
		"fewer than before":    {both, transport.Marks{"p:1": {Path: a.Path, Errors: 1}, "q:1": b}, 0, transport.FailedUnknown},
		"a path is gone":       {both, transport.Marks{"p:1": a}, 0, transport.FailedUnknown},
		"another connection":   {both, transport.Marks{"p:1": {Path: "session3 a", Errors: 2}, "q:1": b}, 0, transport.FailedUnknown},
		"not counted":          {both, transport.Marks{"p:1": {Path: a.Path, Errors: 2, Uncounted: true}, "q:1": b}, 0, transport.FailedUnknown},
		"was not counted":      {transport.Marks{"p:1": {Path: a.Path, Errors: 2, Uncounted: true}}, both, 0, transport.FailedUnknown},
		"nothing is there":     {both, nil, 0, transport.FailedUnknown},
		"nothing was known":    {transport.Marks{}, both, 0, transport.FailedUnknown},

		"two rescans":                       {twice, at(4), 1, transport.FailedNo},
		"two rescans, which cost nothing":   {twice, at(4), 0, transport.FailedYes},
		"two rescans, and an error beside":  {twice, at(5), 1, transport.FailedYes},
		"an error beside, a higher price":   {twice, at(5), 9, transport.FailedYes},
		"an error during one of them":       {hidden, at(5), 1, transport.FailedYes},
		"what a rescan costs, without one":  {transport.Marks{"p:1": a}, at(3), 1, transport.FailedYes},
		"two rescans, and a new connection": {twice, transport.Marks{"p:1": {Path: "session3 a", Errors: 4}}, 1, transport.FailedUnknown},
	}
	for name, tc := range cases {
		got, why := tc.now.Since(tc.base, map[string]uint64{"p:1": tc.price})
		if got != tc.want || (why == "") != (got == transport.FailedNo) {
			t.Errorf("%s: %s (%s), want %s", name, got, why, tc.want)
		}
	}
}

// TestMarksRescanned: what fails during rescans adds up, on the paths that are still the same.
func TestMarksRescanned(t *testing.T) {
	base := transport.Marks{"p:1": {Path: "a", Errors: 1}, "q:1": {Path: "b"}, "r:1": {Path: "c"}}
	before := transport.Marks{"p:1": {Path: "a", Errors: 4}, "q:1": {Path: "b"}, "r:1": {Path: "d"}, "s:1": {Path: "e"}}
	after := transport.Marks{"p:1": {Path: "a", Errors: 6}, "q:1": {Path: "b"}, "r:1": {Path: "d", Errors: 1}, "s:1": {Path: "f", Errors: 1}}
	for range 2 {
		got := base.Rescanned(before, after)
		if want := map[string]uint64{"p:1": 2, "q:1": 0, "r:1": 1}; !maps.Equal(got, want) {
			t.Errorf("failed: %v, want %v", got, want)
		}
	}
	want := transport.Marks{"p:1": {Path: "a", Errors: 1, Rescans: 2, RescanErrors: 4}, "q:1": {Path: "b"}, "r:1": {Path: "c"}}
	if !maps.Equal(base, want) {
		t.Errorf("base: %+v, want %+v", base, want)
	}
}
