package attach

import (
	"context"
	"maps"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
)

// twoSSDs has the caches of v on the first of two SSDs, and those of w on both.
type twoSSDs struct{ lvm.Client }

func (twoSSDs) LVs(context.Context, string) ([]lvm.LV, error) {
	return []lvm.LV{{Name: "v.data", SizeBytes: 64}, {Name: "v.meta", SizeBytes: 8}, {Name: "w.data", SizeBytes: 32}, {Name: "w.meta", SizeBytes: 4}, {Name: "scratch", SizeBytes: 1000}}, nil
}

func (twoSSDs) OnDevices(context.Context, string) (map[string][]string, error) {
	return map[string][]string{"/dev/a": {"v.data", "v.meta", "w.data", "w.meta"}, "/dev/b": {"w.data", "w.meta", "scratch"}}, nil
}

// TestRoomAtMost: what no eviction gives an SSD is not counted for it.
func TestRoomAtMost(t *testing.T) {
	a := New(Config{}, Deps{LVM: twoSSDs{}, Pool: readyPool{}})
	v, w := state.Entry{ID: "v"}, state.Entry{ID: "w"}
	for name, tc := range map[string]struct {
		free     map[string]int64
		retained []state.Entry
		want     map[string]int64
	}{
		"nothing to evict": {map[string]int64{"/dev/a": 1, "/dev/b": 2}, nil, map[string]int64{"/dev/a": 1, "/dev/b": 2}},
		"on one":           {map[string]int64{"/dev/a": 1, "/dev/b": 2}, []state.Entry{v}, map[string]int64{"/dev/a": 73, "/dev/b": 2}},
		"on both":          {map[string]int64{"/dev/a": 1, "/dev/b": 2}, []state.Entry{w}, map[string]int64{"/dev/a": 37, "/dev/b": 38}},
		"the only SSD":     {map[string]int64{"/dev/a": 1}, []state.Entry{v}, map[string]int64{"/dev/a": 73}},
		"both":             {map[string]int64{"/dev/a": 1, "/dev/b": 2}, []state.Entry{v, w}, map[string]int64{"/dev/a": 109, "/dev/b": 38}},
	} {
		got, err := a.roomAtMost(t.Context(), "vg", tc.free, tc.retained)
		if err != nil || !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tc.want)
		}
	}
}
