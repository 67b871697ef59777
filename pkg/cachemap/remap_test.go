package cachemap_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

const devno = "254:7"

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 4)) }

// anyMap is a map with runs and gaps, as one that was used for a while.
func anyMap(r *rand.Rand, chunk, cacheBlocks, originBlocks uint64) cachemap.Map {
	m := cachemap.Map{ChunkSectors: chunk, CacheBlocks: cacheBlocks, Policy: "smq", HintWidth: 4}
	taken := map[uint64]bool{}
	next := r.Uint64N(originBlocks)
	for c := uint64(0); c < cacheBlocks; c++ {
		if r.IntN(4) == 0 {
			continue
		}
		if r.IntN(3) == 0 {
			next = r.Uint64N(originBlocks)
		}
		if o := next % originBlocks; !taken[o] {
			taken[o] = true
			m.Entries = append(m.Entries, cachemap.Entry{Cache: c, Origin: o, Level: r.Uint32N(64)})
		}
		next++
	}
	return m
}

func TestRemapTable(t *testing.T) {
	m := cachemap.Map{ChunkSectors: 64, CacheBlocks: 8, Entries: []cachemap.Entry{
		{Cache: 1, Origin: 10}, {Cache: 2, Origin: 11}, {Cache: 3, Origin: 5}, {Cache: 5, Origin: 20}, {Cache: 6, Origin: 21},
	}}
	line := func(start, length, offset uint64) devmapper.Line {
		return devmapper.Line{Start: start, Length: length, Target: devmapper.LinearTarget{Device: devno, Offset: offset}}
	}
	cases := map[string]struct {
		origin, data uint64
		only         func(uint64) bool
		want         devmapper.Table
	}{
		// What is between the blocks continues the block before.
		"whole": {origin: 4096, data: 520, want: devmapper.Table{
			line(0, 64, 2048), line(64, 128, 640), line(192, 128, 320), line(320, 200, 1280)}},
		"the origin ends inside a block": {origin: 1350, data: 512, want: devmapper.Table{
			line(0, 64, 640), line(64, 128, 640), line(192, 128, 320), line(320, 70, 1280), line(390, 122, 640)}},
		"the origin ends before a block": {origin: 1280, data: 512, want: devmapper.Table{
			line(0, 64, 640), line(64, 128, 640), line(192, 320, 320)}},
		"the data device ends inside a block": {origin: 4096, data: 100, want: devmapper.Table{line(0, 64, 2048), line(64, 36, 640)}},
		"some": {origin: 4096, data: 512, only: func(b uint64) bool { return b == 2 }, want: devmapper.Table{
			line(0, 128, 2048), line(128, 384, 704)}},
		"an origin shorter than a gap": {origin: 100, data: 512, want: devmapper.Table{
			line(0, 100, 0), line(100, 100, 0), line(200, 100, 0), line(300, 100, 0), line(400, 100, 0), line(500, 12, 0)}},
		"no origin": {origin: 0, data: 512, want: devmapper.Table{{Start: 0, Length: 512, Target: devmapper.ZeroTarget{}}}},
		"no device": {origin: 4096, data: 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, m.RemapTable(devno, tc.origin, tc.data, tc.only)); diff != "" {
				t.Errorf("table differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPad(t *testing.T) {
	peer := devmapper.Table{{Length: 100, Target: devmapper.LinearTarget{Device: "8:0", Offset: 7}}}
	pad := devmapper.LinearTarget{Device: "8:0"}
	want := devmapper.Table{peer[0], {Start: 100, Length: 50, Target: pad}, {Start: 150, Length: 30, Target: pad}}
	if diff := cmp.Diff(want, cachemap.Pad(peer, "8:0", 50, 180)); diff != "" {
		t.Errorf("table differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(peer, cachemap.Pad(peer, "8:0", 50, 100)); diff != "" {
		t.Errorf("table differs (-want +got):\n%s", diff)
	}
}

// content is what a device of a table reads as: for each sector that of the origin
// which is there. It checks that the table has no gap, the segments no end beyond the
// origin, and that no two of them should be one.
func content(t *testing.T, table devmapper.Table, originSectors uint64) []uint64 {
	t.Helper()
	var out []uint64
	for _, l := range table {
		if l.Start != uint64(len(out)) || l.Length == 0 {
			t.Fatalf("line %v begins at %d, expected %d", l, l.Start, len(out))
		}
		target, ok := l.Target.(devmapper.LinearTarget)
		if !ok || target.Device != devno || target.Offset+l.Length > originSectors {
			t.Fatalf("line %v is not within an origin of %d sectors", l, originSectors)
		}
		if len(out) > 0 && out[len(out)-1]+1 == target.Offset {
			t.Errorf("two contiguous runs were not joined at %d", l.Start)
		}
		for i := range l.Length {
			out = append(out, target.Offset+i)
		}
	}
	return out
}

func checkRemapTable(t *testing.T, m cachemap.Map, originSectors, dataSectors uint64, only func(uint64) bool) {
	t.Helper()
	got := content(t, m.RemapTable(devno, originSectors, dataSectors, only), originSectors)
	if uint64(len(got)) != dataSectors {
		t.Fatalf("%d sectors, want %d", len(got), dataSectors)
	}
	mapped := make([]bool, dataSectors)
	for _, e := range m.Entries {
		for i := range m.ChunkSectors {
			to, from := e.Cache*m.ChunkSectors+i, e.Origin*m.ChunkSectors+i
			if to >= dataSectors {
				break
			}
			mapped[to] = true
			if from < originSectors && (only == nil || only(e.Cache)) && got[to] != from {
				t.Fatalf("sector %d of the view is %d of the origin, want %d", to, got[to], from)
			}
		}
	}
	free := make([]bool, dataSectors)
	last := uint64(0)
	for i, r := range m.Unmapped(dataSectors) {
		if r.Length == 0 || i > 0 && r.Start <= last {
			t.Fatalf("range %d: %+v does not follow %d", i, r, last)
		}
		last = r.Start + r.Length
		for s := r.Start; s < last; s++ {
			free[s] = true
		}
	}
	for s := range mapped {
		if mapped[s] == free[s] {
			t.Fatalf("sector %d: mapped %t, unmapped %t", s, mapped[s], free[s])
		}
	}
}

func TestGatherShowsTheOrigin(t *testing.T) {
	for seed := range uint64(300) {
		r := random(seed)
		m := anyMap(r, 64*(1+r.Uint64N(3)), 1+r.Uint64N(40), 1+r.Uint64N(100))
		origin, data := 1+r.Uint64N(100*m.ChunkSectors), r.Uint64N((m.CacheBlocks+2)*m.ChunkSectors)
		var only func(uint64) bool
		if seed%2 == 1 {
			only = func(b uint64) bool { return b*7919%5 < 2 }
		}
		checkRemapTable(t, m, origin, data, only)
	}
}

func FuzzRemapTable(f *testing.F) {
	f.Add(uint64(1), uint64(4096), uint64(512), uint64(64))
	f.Fuzz(func(t *testing.T, seed, origin, data, chunk uint64) {
		const most = 1 << 14
		chunk = 64 * (1 + chunk%8)
		checkRemapTable(t, anyMap(random(seed), chunk, 1+seed%64, 1+seed%256), 1+origin%most, data%most, nil)
	})
}

func TestRegionSectors(t *testing.T) {
	for chunk, want := range map[uint64]uint64{64: 64, 192: 64, 256: 256, 576: 64, 1088: 64, 2048: 2048, 1 << 21: 1 << 21, 3 << 20: 1 << 20} {
		got := cachemap.RegionSectors(chunk)
		if got != want || chunk%got != 0 {
			t.Errorf("RegionSectors(%d) = %d, want %d", chunk, got, want)
		}
		clone := devmapper.CloneTarget{Metadata: "1:1", Destination: "1:2", Source: "1:3", RegionSectors: got}
		if err := clone.Validate(); err != nil {
			t.Error(err)
		}
	}
}
