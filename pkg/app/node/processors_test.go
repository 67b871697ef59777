package node

import "testing"

func TestProcessors(t *testing.T) {
	for _, tc := range []struct {
		machine, now int
		variable     string
		want         int
	}{
		{1, 1, "", atOnce}, {2, 2, "", atOnce}, {atOnce, atOnce, "", 0}, {64, 64, "", 0},
		{4, 2, "", 0},  // a limit
		{64, 2, "", 0}, // a limit
		{1, 1, "1", 0}, // a wish
	} {
		if got := processors(tc.machine, tc.now, tc.variable); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}
