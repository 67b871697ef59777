package pool

import (
	"reflect"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/lvm"
)

func TestJudgeMirror(t *testing.T) {
	raid := func(health string, sync float64) lvm.LV {
		return lvm.LV{Name: "v.data", SegType: "raid1", Health: health, SyncPercent: sync}
	}
	compared := raid("", 37.5)
	compared.SyncAction = lvm.SyncRepair
	striped := lvm.LV{SegType: "striped", Health: lvm.HealthPartial, SyncPercent: -1}
	cases := map[string]struct {
		lvs       []lvm.LV
		missing   int
		whole     bool
		wantStale []string
		degraded  bool
	}{
		"no logical volume":         {nil, 0, true, nil, false},
		"whole":                     {[]lvm.LV{raid("", 100)}, 0, true, nil, false},
		"not active":                {[]lvm.LV{raid("", -1)}, 0, true, nil, false},
		"not a mirror":              {[]lvm.LV{striped}, 0, true, nil, false},
		"a difference nobody reads": {[]lvm.LV{raid("mismatches exist", 100)}, 0, true, nil, false},
		"a device is missing":       {[]lvm.LV{raid(lvm.HealthPartial, 100)}, 1, true, nil, true},
		"missing, nothing on it":    {nil, 1, true, nil, true},
		"missing, one given up":     {[]lvm.LV{raid(lvm.HealthRefresh, 100)}, 1, true, nil, true},
		"it is back":                {[]lvm.LV{raid(lvm.HealthRefresh, 100)}, 0, true, []string{"v.data"}, true},
		"being copied":              {[]lvm.LV{raid("", 37.5)}, 0, true, nil, true},
		"being compared":            {[]lvm.LV{compared}, 0, true, nil, false},
		"no mirror at all, missing": {[]lvm.LV{striped}, 1, false, nil, false},
		"one beside stripes":        {[]lvm.LV{striped, raid("", 100)}, 0, false, nil, false},
		"one beside, missing":       {[]lvm.LV{raid(lvm.HealthPartial, 100), striped}, 1, false, nil, true},
		"one beside, back":          {[]lvm.LV{striped, raid(lvm.HealthRefresh, 100)}, 0, false, []string{"v.data"}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			stale, degraded := judgeMirror(tc.lvs, tc.missing, tc.whole)
			if !slices.Equal(stale, tc.wantStale) || (degraded != "") != tc.degraded {
				t.Errorf("got %v, %q; want %v, degraded %t", stale, degraded, tc.wantStale, tc.degraded)
			}
		})
	}
}

// TestViewFor: a volume that asks has two copies where there are two SSDs, and the others what the pool has.
func TestViewFor(t *testing.T) {
	none := func(devices ...string) View { return View{Devices: devices, Copies: 1, Stripes: len(devices)} }
	whole := View{Devices: []string{"a", "b", "c"}, Mirror: true, Copies: 2, Stripes: 1}
	cases := map[string]struct {
		v      View
		mirror bool
		want   View
	}{
		"stripes":           {none("a", "b", "c"), false, none("a", "b", "c")},
		"asked, of three":   {none("a", "b", "c"), true, whole},
		"asked, of one":     {none("a"), true, none("a")},
		"asked, one leaves": {View{Devices: []string{"a", "b"}, Leaving: []string{"b"}}, true, View{Devices: []string{"a", "b"}, Leaving: []string{"b"}}},
		"asked, checksums":  {View{Devices: []string{"a", "b"}, Integrity: true}, true, View{Devices: []string{"a", "b"}, Integrity: true}},
		"asked, a mirror":   {whole, true, whole},
		"a mirror":          {whole, false, whole},
		"asked, and no SSD": {View{}, true, View{}},
	}
	for name, tc := range cases {
		if got := tc.v.For(tc.mirror); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
	if got := whole.Holding(false); !reflect.DeepEqual(got, none("a", "b", "c")) {
		t.Errorf("one copy in a mirror: %+v", got)
	}
	if got := none("a", "b", "c").Holding(true); !reflect.DeepEqual(got, whole) {
		t.Errorf("two copies beside stripes: %+v", got)
	}
}
