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

func TestSizeString(t *testing.T) {
	for want, size := range map[string]Size{
		"":           {},
		"10%":        {Percent: 10},
		"1Gi":        {Bytes: 1 << 30},
		"1536Mi":     {Bytes: 3 << 29},
		"1024Pi":     {Bytes: 1 << 60},
		"20G":        {Bytes: 20_000_000_000},
		"1000P":      {Bytes: 1_000_000_000_000_000_000},
		"1000Ki":     {Bytes: 1000 << 10},
		"1k":         {Bytes: 1000},
		"4097":       {Bytes: 4097},
		"1073741825": {Bytes: 1<<30 + 1},
	} {
		if got := size.String(); got != want {
			t.Errorf("%d bytes, %d%%: %q, want %q", size.Bytes, size.Percent, got, want)
		}
	}
}
