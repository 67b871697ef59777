package layout

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// What the pod gets from a level counts as a hit, and everything else as a miss: a level in
// passthrough mode finds chunks in its map, and serves none.
func TestCacheStatusOfLevels(t *testing.T) {
	level := func(mode devmapper.CacheMode, rh, rm, wh, wm uint64) devmapper.CacheStatus {
		return devmapper.CacheStatus{
			ChunkSectors: 128, OriginSectors: 4096, CacheTotal: 30, CacheUsed: 5, Features: []string{"metadata2", string(mode)}, Policy: devmapper.PolicyCleaner,
			ReadHits: rh, ReadMisses: rm, WriteHits: wh, WriteMisses: wm,
		}
	}
	const pass, through = devmapper.Passthrough, devmapper.Writethrough
	// The pod has read 1111 times: 1000 are in the map of the top, 100 in that of the hot level,
	// 11 in neither. It has written 2222 times.
	top := func(mode devmapper.CacheMode) devmapper.CacheStatus { return level(mode, 1000, 111, 2000, 222) }
	hot := func(mode devmapper.CacheMode) devmapper.CacheStatus { return level(mode, 100, 11, 200, 22) }
	// A top in passthrough mode hands on whatever it gets.
	under := func(mode devmapper.CacheMode) devmapper.CacheStatus { return level(mode, 100, 1011, 200, 2022) }
	cases := map[string]struct {
		top, hot               devmapper.CacheStatus
		reads, readMisses      uint64
		writes, writtenThrough uint64
	}{
		"none serves":         {top(pass), under(pass), 0, 1111, 0, 2222},
		"the hot one serves":  {top(pass), under(through), 100, 1011, 200, 2022},
		"both serve":          {top(through), hot(through), 1100, 11, 2200, 22},
		"the top alone would": {top(through), hot(pass), 1000, 111, 2000, 222},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			all := map[string]devmapper.CacheStatus{"nf-v": tc.top, "nf-v.hot": tc.hot, "nf-w": level(through, 7, 7, 7, 7), "nf-w.data.hot": {Fail: true}}
			got, found := CacheStatus(all, "v")
			want := tc.top
			want.ReadHits, want.ReadMisses, want.WriteHits, want.WriteMisses = tc.reads, tc.readMisses, tc.writes, tc.writtenThrough
			want.CacheUsed = 10
			if diff := cmp.Diff(want, got); diff != "" || !found {
				t.Errorf("found %t (-want +got):\n%s", found, diff)
			}
			if got, found := CacheStatus(all, "w"); !found || got.ReadHits != 7 {
				t.Errorf("another volume's: %+v, %t", got, found)
			}
		})
	}
	if got, found := CacheStatus(map[string]devmapper.CacheStatus{"nf-v.hot": hot(pass)}, "v"); found || got.ReadMisses > 0 {
		t.Errorf("a hot level without a top is %+v", got)
	}
}

// Whatever is wrong with either level is wrong with the cache.
func TestFailedLevels(t *testing.T) {
	for name, bad := range map[string]devmapper.CacheStatus{
		"failed": {Fail: true}, "silent": {Silent: true}, "needs check": {NeedsCheck: true}, "read-only": {ReadOnly: true},
	} {
		t.Run(name, func(t *testing.T) {
			for p, all := range map[Part]map[string]devmapper.CacheStatus{
				Top: {"nf-v": bad, "nf-v.hot": {}}, Hot: {"nf-v": {}, "nf-v.hot": bad},
			} {
				got, _ := CacheStatus(all, "v")
				if got.Fail != bad.Fail || got.Silent != bad.Silent || got.NeedsCheck != bad.NeedsCheck || got.ReadOnly != bad.ReadOnly {
					t.Errorf("the %s level: got %+v", p, got)
				}
			}
		})
	}
}

// A stream's devices are among a volume's own, before what they are over; versions before had
// none of them.
func TestLevelDevices(t *testing.T) {
	want := []string{"nf-db", "nf-db.data", "nf-db.origin", "nf-db.source", "nf-db.path", "nf-db.exported", "nf-db.hot", "nf-db.hotdata", "nf-db.hotmeta", "nf-db.restmeta"}
	if got := Devices("db"); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) || got[0] != "nf-db" {
		t.Errorf("devices %v, want %v", got, want)
	}
	if diff := cmp.Diff([]Part{Hot, HotData, HotMeta, RestMeta}, Levels); diff != "" {
		t.Errorf("the first level is removed before what it is on: %s", diff)
	}
	earlier := []string{"nf-db-data", "nf-db-origin", "nf-db-source", "nf-db-path", "nf-db-lent", "nf-db.lent"}
	if diff := cmp.Diff(earlier, EarlierDevices("db")); diff != "" {
		t.Errorf("names of versions before (-want +got):\n%s", diff)
	}
	for _, p := range Levels {
		if IsData(Device("db", p)) {
			t.Errorf("%s is called a data device", Device("db", p))
		}
	}
}
