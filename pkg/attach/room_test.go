package attach

import (
	"context"
	"maps"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
)

// twoSSDs has the caches of v on the first of two SSDs, those of w on both, that of x with checksums on
// the second, and two copies of that of y.
type twoSSDs struct{ lvm.Client }

func (twoSSDs) LVs(context.Context, string) ([]lvm.LV, error) {
	return []lvm.LV{{Name: "v.data", SizeBytes: 64}, {Name: "v.meta", SizeBytes: 8}, {Name: "w.data", SizeBytes: 32}, {Name: "w.meta", SizeBytes: 4},
		{Name: "x.data", SizeBytes: 100, Checked: true, RawBytes: 120}, {Name: "y.data", SizeBytes: 10, SegType: "raid1"}, {Name: "scratch", SizeBytes: 1000}}, nil
}

func (twoSSDs) OnDevices(context.Context, string) (map[string][]string, error) {
	return map[string][]string{"/dev/a": {"v.data", "v.meta", "w.data", "w.meta", "y.data"}, "/dev/b": {"w.data", "w.meta", "x.data", "y.data", "scratch"}}, nil
}

// TestRoomAtMost: what no eviction gives an SSD is not counted for it.
func TestRoomAtMost(t *testing.T) {
	a := New(Config{}, Deps{LVM: twoSSDs{}, Pool: readyPool{}})
	v, w, x, y := state.Entry{ID: "v"}, state.Entry{ID: "w"}, state.Entry{ID: "x"}, state.Entry{ID: "y"}
	for name, tc := range map[string]struct {
		free      map[string]int64
		retained  []state.Entry
		want      map[string]int64
		evictable int64
	}{
		"nothing to evict": {map[string]int64{"/dev/a": 1, "/dev/b": 2}, nil, map[string]int64{"/dev/a": 1, "/dev/b": 2}, 0},
		"on one":           {map[string]int64{"/dev/a": 1, "/dev/b": 2}, []state.Entry{v}, map[string]int64{"/dev/a": 73, "/dev/b": 2}, 72},
		"on both":          {map[string]int64{"/dev/a": 1, "/dev/b": 2}, []state.Entry{w}, map[string]int64{"/dev/a": 37, "/dev/b": 38}, 36},
		"the only SSD":     {map[string]int64{"/dev/a": 1}, []state.Entry{v}, map[string]int64{"/dev/a": 73}, 72},
		"both":             {map[string]int64{"/dev/a": 1, "/dev/b": 2}, []state.Entry{v, w}, map[string]int64{"/dev/a": 109, "/dev/b": 38}, 108},
		"with checksums":   {map[string]int64{"/dev/b": 2}, []state.Entry{x}, map[string]int64{"/dev/b": 122}, 120},
		"two copies":       {map[string]int64{"/dev/a": 1, "/dev/b": 2}, []state.Entry{y}, map[string]int64{"/dev/a": 15, "/dev/b": 16}, 20},
	} {
		got, evictable, err := a.roomAtMost(t.Context(), pool.View{VG: "vg", ExtentBytes: 4}, tc.free, tc.retained)
		if err != nil || !maps.Equal(got, tc.want) || evictable != tc.evictable {
			t.Errorf("%s: %v, %d, %v, want %v, %d", name, got, evictable, err, tc.want, tc.evictable)
		}
	}
}
