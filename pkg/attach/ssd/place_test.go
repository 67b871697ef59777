package ssd

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const mib = 1 << 20

func TestChoosePlace(t *testing.T) {
	const extent = 4 * mib
	striped := pool.View{ExtentBytes: extent, Stripes: 3}
	mirror := pool.View{ExtentBytes: extent, Stripes: 1, Mirror: true, Copies: 2}
	sizes := []int64{12 * mib, 60 * mib}
	cases := map[string]struct {
		v       pool.View
		room    map[string]int64
		want    []string // nil: nowhere
		stripes int
	}{
		"all have room":                {striped, map[string]int64{"a": 24 * mib, "b": 99 * mib, "c": 24 * mib}, []string{"b", "a", "c"}, 3},
		"one is full":                  {striped, map[string]int64{"a": 0, "b": 99 * mib, "c": 72 * mib}, []string{"b"}, 1},
		"a new one":                    {striped, map[string]int64{"a": 20 * mib, "b": 20 * mib, "c": 72 * mib}, []string{"c"}, 1},
		"enough, but nowhere together": {striped, map[string]int64{"a": 20 * mib, "b": 68 * mib, "c": 68 * mib}, nil, 0},
		"no SSD":                       {striped, nil, nil, 0},
		"one SSD":                      {pool.View{ExtentBytes: extent, Stripes: 1}, map[string]int64{"a": 72 * mib}, []string{"a"}, 1},
		"mirror":                       {mirror, map[string]int64{"a": 100 * mib, "b": 300 * mib, "c": 200 * mib}, []string{"b", "c"}, 1},
		"mirror, an extent of its own": {mirror, map[string]int64{"a": 79 * mib, "b": 300 * mib}, nil, 0},
		"mirror, just enough":          {mirror, map[string]int64{"a": 80 * mib, "b": 80 * mib}, []string{"a", "b"}, 1},
		"mirror of one":                {mirror, map[string]int64{"b": 300 * mib}, nil, 0},
	}
	for name, tc := range cases {
		p, ok := ChoosePlace(tc.v, tc.room, sizes)
		if ok != (tc.want != nil) || !slices.Equal(p.Devices, tc.want) || p.Stripes != tc.stripes || p.Mirror != (ok && tc.v.Mirror) {
			t.Errorf("%s: %+v, %t, want %v in %d stripes", name, p, ok, tc.want, tc.stripes)
		}
	}
}

func TestOnlyPlace(t *testing.T) {
	cases := map[string]struct {
		v    pool.View
		want bool
	}{
		"one":              {pool.View{Devices: []string{"a"}, Stripes: 1}, true},
		"stripes over all": {pool.View{Devices: []string{"a", "b", "c"}, Stripes: 3}, true},
		"mirror of two":    {pool.View{Devices: []string{"a", "b"}, Mirror: true}, true},
		"mirror of three":  {pool.View{Devices: []string{"a", "b", "c"}, Mirror: true}, false},
	}
	for name, tc := range cases {
		if p, ok := OnlyPlace(tc.v); ok != tc.want || p.Devices != nil || p.Mirror != tc.v.Mirror {
			t.Errorf("%s: %+v, %t", name, p, ok)
		}
	}
}

func TestGrowsOn(t *testing.T) {
	free := map[string]int64{"a": 8 * mib, "b": 8 * mib, "c": 0}
	striped, mirror := pool.View{ExtentBytes: 4 * mib}, pool.View{ExtentBytes: 4 * mib, Mirror: true}
	cases := map[string]struct {
		v     pool.View
		on    []string
		bytes int64
		want  bool
	}{
		"each stripe has room":  {striped, []string{"a", "b"}, 16 * mib, true},
		"one stripe has none":   {striped, []string{"a", "c"}, 4 * mib, false},
		"an extent more":        {striped, []string{"a", "b"}, 17 * mib, false},
		"both copies have room": {mirror, []string{"a", "b"}, 8 * mib, true},
		"a copy needs all":      {mirror, []string{"a", "b"}, 12 * mib, false},
	}
	for name, tc := range cases {
		if got := GrowsOn(tc.v, free, tc.on, tc.bytes); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

type viewed struct{ v pool.View }

func (viewed) Deletions(context.Context) ([]volume.Deletion, error) { return nil, nil }

func (p viewed) View() pool.View { return p.v }

// TestApart: what counts is what the kernel has below the two volumes.
func TestApart(t *testing.T) {
	sysfs := t.TempDir()
	below := func(dir string, names ...string) {
		for _, n := range names {
			if err := os.MkdirAll(filepath.Join(sysfs, dir, "slaves", n), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	for devno, devices := range map[string][]string{"253:1": {"sda"}, "253:2": {"sda", "sdb"}, "253:3": {"dm-8", "dm-9"}, "253:4": {"sdb"}, "253:5": {"dm-20"}} {
		below("dev/block/"+devno, devices...)
	}
	below("class/block/dm-8", "sda") // the copies of a mirror
	below("class/block/dm-9", "sdc")
	below("class/block/dm-20", "sdx") // an SSD of the pool that is itself a device over another
	g := New(Config{Sysfs: sysfs, Pool: viewed{pool.View{Devices: []string{"/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/dm-20"}}}})
	cases := map[string]struct {
		data, meta int
		want       bool
	}{
		"same":              {1, 1, false},
		"map on more":       {1, 2, false},
		"data on more":      {2, 1, true},
		"elsewhere":         {4, 1, true},
		"mirror, elsewhere": {3, 2, true},
		"mirror, same":      {3, 3, false},
		"within a mirror":   {1, 3, false},
		"not below sdx":     {5, 5, false},
	}
	for name, tc := range cases {
		c := Cache{Cache: layout.Cache{Data: lvm.LV{Major: 253, Minor: tc.data}, Meta: lvm.LV{Major: 253, Minor: tc.meta}}}
		if got := g.Apart(c); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if got := g.DevicesBelow("253:5", g.Pool.View()); !slices.Equal(got, []string{"/dev/dm-20"}) {
		t.Errorf("below 253:5: %v", got)
	}
}

// A scratch volume takes at most half of what is free where it goes.
func TestDecideScratch(t *testing.T) {
	const extent, gib = 4 * mib, 1 << 30
	one := pool.View{ExtentBytes: extent, Stripes: 1}
	cases := map[string]struct {
		v       pool.View
		room    map[string]int64
		want    int64 // 0: nowhere
		devices int
	}{
		"much room":          {one, map[string]int64{"a": 9 * gib}, gib, 1},
		"just enough":        {one, map[string]int64{"a": 2 * gib}, gib, 1},
		"an extent too few":  {one, map[string]int64{"a": 2*gib - extent}, gib / 2, 1},
		"the least":          {one, map[string]int64{"a": 128 * mib}, 64 * mib, 1},
		"less than that":     {one, map[string]int64{"a": 124 * mib}, 0, 0},
		"striped":            {pool.View{ExtentBytes: extent, Stripes: 2}, map[string]int64{"a": gib, "b": gib}, gib, 2},
		"one of two is full": {pool.View{ExtentBytes: extent, Stripes: 2}, map[string]int64{"a": 0, "b": gib}, gib / 2, 1},
		"mirror":             {pool.View{ExtentBytes: extent, Mirror: true}, map[string]int64{"a": 9 * gib, "b": 3 * gib}, gib, 2},
		"half a mirror":      {pool.View{ExtentBytes: extent, Mirror: true}, map[string]int64{"a": 9 * gib}, 0, 0},
		"no SSD":             {one, nil, 0, 0},
	}
	for name, tc := range cases {
		p, bytes, ok := DecideScratch(tc.v, tc.room, gib, 64*mib)
		if ok != (tc.want > 0) || bytes != tc.want && ok || len(p.Devices) != tc.devices || p.Mirror != (ok && tc.v.Mirror) {
			t.Errorf("%s: %d bytes, %+v, %t, want %d on %d SSDs", name, bytes, p, ok, tc.want, tc.devices)
		}
	}
}
