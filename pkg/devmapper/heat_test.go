package devmapper

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadAreas(t *testing.T) {
	k := areas{list: "0: 0+9 9 nearflash - precise_timestamps\n2: 0+1216 64 nearflash-heat -\n"}
	want := Reads{AreaSectors: 64, ReadSectors: 4104, Writes: 19, WriteSectors: 152}
	for i := range 19 {
		k.lines = append(k.lines, area(64*i, 3*i, 1, 0))
		want.Counts = append(want.Counts, uint64(3*i))
	}
	got, err := readAreas(t.Context(), k, "d")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := readAreas(t.Context(), areas{list: "0: 0+9 9 nearflash -\n"}, "d"); !errors.Is(err, ErrNotExist) {
		t.Errorf("nothing counted: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := readAreas(ctx, k, "d"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestReadAreasThatCannotBeRead: an order is made of what is understood alone, and of no more
// areas than are ever made.
func TestReadAreasThatCannotBeRead(t *testing.T) {
	const one = "0: 0+128 64 nearflash-heat -\n"
	cases := map[string]areas{
		"an area is missing": {list: one, lines: []string{area(0, 0, 0, 0)}},
		"an area too many":   {list: one, lines: []string{area(0, 0, 0, 0), area(64, 0, 0, 0), area(128, 0, 0, 0)}},
		"no number":          {list: one, lines: []string{"0+64 x 0 0 0 0 0 0 0 0 0 0 0 0\n", area(64, 0, 0, 0)}},
		"too many areas":     {list: "0: 0+9223372036854775807 1 nearflash-heat -\n"},
		"no step":            {list: "0: 0+128 0 nearflash-heat -\n"},
	}
	for name, k := range cases {
		if r, err := readAreas(t.Context(), k, "d"); !errors.Is(err, ErrParse) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

// TestHeatAreaSectors: areas are chunks times a power of two, and their memory is bounded.
func TestHeatAreaSectors(t *testing.T) {
	const chunk = 256 // 128 KiB
	cases := map[string]struct {
		sectors, chunk uint64
		cpus           int
		want           uint64
	}{
		"one chunk an area":       {sectors: 8192 * chunk, chunk: chunk, cpus: 2, want: chunk},
		"as many as fit":          {sectors: 12787 * chunk, chunk: chunk, cpus: 2, want: chunk},
		"one more":                {sectors: 12787*chunk + 1, chunk: chunk, cpus: 2, want: 2 * chunk},
		"a terabyte, 64 CPUs":     {sectors: 1 << 31, chunk: chunk, cpus: 64, want: chunk << 14},
		"more CPUs than anybody":  {sectors: 640, chunk: 64, cpus: 1 << 30, want: 1024},
		"none known":              {sectors: 64, chunk: 64, want: 64},
		"small":                   {sectors: 10, chunk: 64, cpus: 1, want: 64},
		"nothing":                 {chunk: 64, cpus: 1},
		"without chunks":          {sectors: 64, cpus: 1},
		"the largest of a kernel": {sectors: 1 << 54, chunk: 64, cpus: 8, want: 1 << 42},
	}
	for name, tc := range cases {
		got := HeatAreaSectors(tc.sectors, tc.chunk, tc.cpus)
		if got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
		if got > 0 && (tc.sectors-1)/got > 0 && ((tc.sectors-1)/got+1)*(heatShared+heatPercpu*uint64(tc.cpus)) > HeatBytes {
			t.Errorf("%s: more than %d bytes", name, HeatBytes)
		}
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-1,8-15": 10, "": 0, "0-": 0, "3-1": 0, "a": 0, "0-99999999": 0} {
		if got := countCPUs(list); got != want {
			t.Errorf("%q: %d, want %d", list, got, want)
		}
	}
	if PossibleCPUs() < 1 {
		t.Error("no CPU is possible")
	}
}

// FuzzReadAreas: whatever the kernel says, there are no more counts than areas.
func FuzzReadAreas(f *testing.F) {
	f.Add("2: 0+128 64 nearflash-heat -\n", area(0, 1, 2, 3)+area(64, 5, 6, 7))
	f.Add("2: 0+128 64 nearflash-heat -\n", area(0, 1, 2, 3))
	f.Add("2: 0+18446744073709551615 1 nearflash-heat -\n", "")
	f.Fuzz(func(t *testing.T, list, text string) {
		r, err := readAreas(t.Context(), areas{list: list, lines: strings.SplitAfter(text, "\n")}, "d")
		if err == nil && (len(r.Counts) > maxHeatAreas || r.AreaSectors == 0) {
			t.Errorf("%d areas of %d sectors", len(r.Counts), r.AreaSectors)
		}
	})
}
