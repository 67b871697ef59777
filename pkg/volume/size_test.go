package volume

import (
	"math"
	"testing"
)

func TestSizeOf(t *testing.T) {
	cases := map[string]struct {
		size   Size
		volume int64
		want   int64
	}{
		"bytes":                      {Size{Bytes: 7}, 1 << 30, 7},
		"tenth":                      {Size{Percent: 10}, 1 << 30, 107374182},
		"all":                        {Size{Percent: 100}, 1<<30 + 1, 1<<30 + 1},
		"none":                       {Size{}, 1 << 30, 0},
		"largest does not overflow":  {Size{Percent: 99}, math.MaxInt64, 9131138316486228048},
		"percent of an unknown size": {Size{Percent: 10}, 0, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.size.Of(tc.volume); got != tc.want {
				t.Errorf("%v.Of(%d) = %d, want %d", tc.size, tc.volume, got, tc.want)
			}
		})
	}
}
