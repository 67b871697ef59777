package cachemap_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

func TestShown(t *testing.T) {
	const start = 1000
	data := func(from, length uint64) devmapper.Line {
		return devmapper.Line{Start: start + from, Length: length, Target: devmapper.LinearTarget{Device: devno, Offset: from}}
	}
	zero := func(from, length uint64) devmapper.Line {
		return devmapper.Line{Start: start + from, Length: length, Target: devmapper.ZeroTarget{}}
	}
	blocks := func(mapped ...uint64) cachemap.Map {
		m := cachemap.Map{ChunkSectors: 64, CacheBlocks: 8}
		for i, b := range mapped {
			m.Entries = append(m.Entries, cachemap.Entry{Cache: b, Origin: uint64(i)})
		}
		return m
	}
	cases := map[string]struct {
		got, want devmapper.Table
	}{
		"nothing is cached":            {blocks().Shown(devno, start, 512), devmapper.Table{zero(0, 512)}},
		"the first block":              {blocks(0).Shown(devno, start, 512), devmapper.Table{data(0, 64), zero(64, 448)}},
		"the last block":               {blocks(7).Shown(devno, start, 512), devmapper.Table{zero(0, 448), data(448, 64)}},
		"runs and gaps":                {blocks(1, 2, 4).Shown(devno, start, 512), devmapper.Table{zero(0, 64), data(64, 128), zero(192, 64), data(256, 64), zero(320, 192)}},
		"all":                          {blocks(0, 1, 2, 3, 4, 5, 6, 7).Shown(devno, start, 512), devmapper.Table{data(0, 512)}},
		"all, and a piece behind them": {blocks(0, 1, 2, 3, 4, 5, 6, 7).Shown(devno, start, 520), devmapper.Table{data(0, 512), zero(512, 8)}},
		"full":                         {cachemap.ShownFull(devno, start, 512, 64), devmapper.Table{data(0, 512)}},
		"full, and a piece behind it":  {cachemap.ShownFull(devno, start, 520, 64), devmapper.Table{data(0, 512), zero(512, 8)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.got); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

// TestShownAnyMap: a sector is shown if and only if its block is mapped.
func TestShownAnyMap(t *testing.T) {
	for seed := range uint64(50) {
		m := anyMap(random(seed), 64, 40, 100)
		mapped := map[uint64]bool{}
		for _, e := range m.Entries {
			mapped[e.Cache] = true
		}
		end := uint64(0)
		for _, line := range m.Shown(devno, 0, 40*64+8) {
			if line.Start != end || line.Length == 0 {
				t.Fatalf("seed %d: a line begins at %d after %d", seed, line.Start, end)
			}
			end = line.Start + line.Length
			linear, shows := line.Target.(devmapper.LinearTarget)
			if shows && linear.Offset != line.Start {
				t.Fatalf("seed %d: sector %d shows %d", seed, line.Start, linear.Offset)
			}
			for s := line.Start; s < end; s += 8 {
				if mapped[s/64] != shows {
					t.Fatalf("seed %d: sector %d is shown: %t", seed, s, shows)
				}
			}
		}
		if end != 40*64+8 {
			t.Fatalf("seed %d: the table has %d sectors", seed, end)
		}
	}
}
