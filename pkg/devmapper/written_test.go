package devmapper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// areas is a kernel with one tracked region of a device.
type areas struct {
	list  string
	lines []string
}

func (a areas) names() ([]string, error)      { return nil, nil }
func (a areas) info(string) (Info, error)     { return Info{}, ErrNotExist }
func (a areas) status(string) (string, error) { return "", ErrNotExist }
func (a areas) close()                        {}

func (a areas) message(_, text string) (string, error) {
	f := strings.Fields(text)
	if f[0] == "@stats_list" {
		return a.list, nil
	}
	var from, n int
	if _, err := fmt.Sscan(f[2]+" "+f[3], &from, &n); err != nil {
		return "", err
	}
	return strings.Join(a.lines[min(from, len(a.lines)):min(from+n, len(a.lines))], ""), nil
}

// area is what the kernel prints of one: see parseArea.
func area(start, reads, writes, inFlight int) string {
	return fmt.Sprintf("%d+64 %d 0 %d 5 %d 0 %d 7 %d 12 12 5 %d\n", start, reads, 8*reads, writes, 8*writes, inFlight, 7*writes)
}

func TestWrittenAreas(t *testing.T) {
	k := areas{list: "0: 0+9 9 nearflash - precise_timestamps\n1: 0+1216 64 nearflash-writes other\n2: 0+1216 64 nearflash-writes t1\n"}
	want := Written{AreaSectors: 64}
	for i := range 19 {
		writes, inFlight := 0, 0
		if i == 3 || i == 18 {
			writes = 1
		}
		if i == 8 {
			inFlight = 1
		}
		if i == 9 { // an operation that began elsewhere has ended here
			inFlight = -1
		}
		line := area(64*i, i, writes, inFlight)
		if i == 11 { // a write has ended elsewhere, and a read that began elsewhere here
			line = strings.TrimSuffix(line, "0\n") + "4\n"
		}
		k.lines = append(k.lines, line)
		want.Areas = append(want.Areas, writes > 0 || inFlight != 0 || i == 11)
	}
	k.list = strings.ReplaceAll(k.list, "1: 0+1216", "1: 0+64")
	got, err := writtenAreas(t.Context(), k, "d", "t1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := writtenAreas(t.Context(), k, "d", "t2"); !errors.Is(err, ErrNotExist) {
		t.Errorf("another tag: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := writtenAreas(ctx, k, "d", "t1"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestWrittenAreasThatCannotBeRead: nothing that is not understood counts as unwritten.
func TestWrittenAreasThatCannotBeRead(t *testing.T) {
	const one = "0: 0+128 64 nearflash-writes t1\n"
	cases := map[string]areas{
		"an area is missing": {list: one, lines: []string{area(0, 0, 0, 0)}},
		"an area too many":   {list: one, lines: []string{area(0, 0, 0, 0), area(64, 0, 0, 0), area(128, 0, 0, 0)}},
		"another order":      {list: one, lines: []string{area(64, 0, 0, 0), area(0, 0, 0, 0)}},
		"fewer words":        {list: one, lines: []string{"0+64 0 0 0\n", area(64, 0, 0, 0)}},
		"no number":          {list: one, lines: []string{"0+64 0 0 0 0 x 0 0 0 0 0 0 0 0\n", area(64, 0, 0, 0)}},
		"none in flight":     {list: one, lines: []string{"0+64 0 0 0 0 0 0 0 0 - 0 0 0 0\n", area(64, 0, 0, 0)}},
		"no time of writes":  {list: one, lines: []string{"0+64 0 0 0 0 0 0 0 0 0 0 0 0 x\n", area(64, 0, 0, 0)}},
		"no step":            {list: "0: 0+128 0 nearflash-writes t1\n"},
		"not from the start": {list: "0: 64+128 64 nearflash-writes t1\n"},
		"no list":            {list: "what is this\n"},
	}
	for name, k := range cases {
		if w, err := writtenAreas(t.Context(), k, "d", "t1"); !errors.Is(err, ErrParse) {
			t.Errorf("%s: %v, %v", name, w, err)
		}
	}
}

func TestAreaSectors(t *testing.T) {
	cases := map[string]struct {
		sectors, chunk uint64
		cpus           int
		want           uint64
	}{
		"one chunk an area":      {sectors: 8192 * 64, chunk: 64, cpus: 4, want: 64},
		"one chunk more":         {sectors: 8192*64 + 1, chunk: 64, cpus: 4, want: 128},
		"a terabyte":             {sectors: 1 << 31, chunk: 2048, cpus: 8, want: 1 << 18},
		"many CPUs":              {sectors: 8192 * 64, chunk: 64, cpus: 256, want: 512},
		"more CPUs than anybody": {sectors: 640, chunk: 64, cpus: 1 << 30, want: 640},
		"small":                  {sectors: 64, chunk: 64, cpus: 1, want: 64},
		"nothing":                {chunk: 64, cpus: 1},
	}
	for name, tc := range cases {
		got := AreaSectors(tc.sectors, tc.chunk, tc.cpus)
		if got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
		if got > 0 && (tc.sectors+got-1)/got > MaxAreas {
			t.Errorf("%s: more than %d areas", name, MaxAreas)
		}
	}
}
