package pool

import (
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/lvm"
)

func TestJudgeMirror(t *testing.T) {
	raid := func(health string, sync float64) lvm.LV {
		return lvm.LV{Name: "v.data", SegType: "raid1", Health: health, SyncPercent: sync}
	}
	cases := map[string]struct {
		lvs       []lvm.LV
		missing   int
		wantStale []string
		degraded  bool
	}{
		"no logical volume":         {nil, 0, nil, false},
		"whole":                     {[]lvm.LV{raid("", 100)}, 0, nil, false},
		"not active":                {[]lvm.LV{raid("", -1)}, 0, nil, false},
		"not a mirror":              {[]lvm.LV{{SegType: "linear", SyncPercent: -1}}, 0, nil, false},
		"a difference nobody reads": {[]lvm.LV{raid("mismatches exist", 100)}, 0, nil, false},
		"a device is missing":       {[]lvm.LV{raid(healthPartial, 100)}, 1, nil, true},
		"missing, nothing on it":    {nil, 1, nil, true},
		"missing, one given up":     {[]lvm.LV{raid(healthRefresh, 100)}, 1, nil, true},
		"it is back":                {[]lvm.LV{raid(healthRefresh, 100)}, 0, []string{"v.data"}, true},
		"being copied":              {[]lvm.LV{raid("", 37.5)}, 0, nil, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			stale, degraded := judgeMirror(tc.lvs, tc.missing)
			if !slices.Equal(stale, tc.wantStale) || (degraded != "") != tc.degraded {
				t.Errorf("got %v, %q; want %v, degraded %t", stale, degraded, tc.wantStale, tc.degraded)
			}
		})
	}
}
