package ioerrors

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseHistogram(t *testing.T) {
	one, two := "{ dev:  265289731 } hitcount:          2", "{ dev:          7 } hitcount: 18446744073709551615"
	cases := map[string]struct {
		text string
		want reading
		err  error
	}{
		"empty":       {hist(0), reading{failed: map[uint32]uint64{}}, nil},
		"two devices": {hist(0, one, two), reading{failed: map[uint32]uint64{265289731: 2, 7: 1<<64 - 1}}, nil},
		// The kernel merges what two processors have made at once, but for a moment.
		"one twice":     {hist(0, one, one), reading{failed: map[uint32]uint64{265289731: 4}}, nil},
		"dropped":       {hist(3, one), reading{failed: map[uint32]uint64{265289731: 2}, lost: 3}, nil},
		"no trigger":    {"", reading{}, ErrNotCounting},
		"paused":        {strings.Replace(hist(0), "active", "paused", 1), reading{}, ErrNotCounting},
		"other filter":  {strings.Replace(hist(0), "error != 0", "error == -5", 1), reading{}, ErrNotCounting},
		"other key":     {strings.Replace(hist(0), "keys=dev", "keys=dev,error", 1), reading{}, ErrNotCounting},
		"two triggers":  {hist(0) + "\n\n" + hist(0), reading{}, ErrNotCounting},
		"cut short":     {hist(0, one)[:200], reading{}, errParse},
		"a line less":   {strings.Replace(hist(0, one, two), two+"\n", "", 1), reading{}, errParse},
		"other entry":   {hist(0, "{ dev:  265289731, error: -5 } hitcount: 1"), reading{}, errParse},
		"large device":  {hist(0, "{ dev: 4294967296 } hitcount: 1"), reading{}, errParse},
		"large count":   {hist(0, "{ dev: 7 } hitcount: 18446744073709551616"), reading{}, errParse},
		"no such total": {strings.Replace(hist(0), "Dropped", "Lost", 1), reading{}, errParse},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseHistogram(c.text)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(reading{})); diff != "" || !errors.Is(err, c.err) {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestParseTrace(t *testing.T) {
	const line = "block_bio_complete: 253,3 WS 200 + 8 [-5]\n"
	cases := map[string]struct {
		text string
		want map[uint32]uint64
		all  uint64
	}{
		"empty":         {"# tracer: nop\n#\n", map[uint32]uint64{}, 0},
		"bios":          {"# tracer: nop\n#\n" + line + "block_bio_complete: 8,0 R 0 + 64 [-61]\n##### CPU 1 buffer started ####\n" + line, map[uint32]uint64{253<<20 | 3: 2, 8 << 20: 1}, 3},
		"gaps":          {"CPU:0 [LOST EVENTS]\n" + line + "CPU:11 [LOST 12 EVENTS]\n", map[uint32]uint64{253<<20 | 3: 1}, 1},
		"names":         {"          <idle>-0       [000] d.s..    14.102331: " + line, nil, 0},
		"no error":      {"block_bio_complete: 253,3 WS 200 + 8 [0]\n", nil, 0},
		"other event":   {line + "tracing_mark_write: x\n", nil, 0},
		"in hex":        {"0000 0000 fd\n", nil, 0},
		"no such minor": {"block_bio_complete: 253,1048576 WS 200 + 8 [-5]\n", nil, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, all, err := parseTrace(c.text)
			if diff := cmp.Diff(c.want, got); diff != "" || all != c.all || (c.want == nil) != errors.Is(err, errParse) {
				t.Errorf("%d, %v (-want +got):\n%s", all, err, diff)
			}
		})
	}
}

func TestParseStats(t *testing.T) {
	whole := fmt.Sprintf(stats, 12, 3)
	got, err := parseStats(strings.NewReplacer("\noverrun: 0", "\noverrun: 10", "commit overrun: 0", "commit overrun: 100", "read events: 0", "read events: 1000").Replace(whole))
	if want := (ringStats{entries: 12, lost: 1113}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, name := range []string{"entries", "overrun", "commit overrun", "dropped events", "read events"} {
		for _, text := range []string{strings.Replace(whole, "\n"+name+":", "\nother:", 1), strings.Replace("\n"+whole, "\n"+name+": ", "\n"+name+": -", 1)} {
			if name == "entries" {
				text = strings.Replace(text, "entries: 12", "", 1)
			}
			if got, err := parseStats(text); !errors.Is(err, errParse) {
				t.Errorf("without %s: %+v, %v", name, got, err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(hist(3, "{ dev:  265289731 } hitcount:          2"))
	f.Add("# tracer: nop\n#\nblock_bio_complete: 253,3 WS 200 + 8 [-5]\nCPU:0 [LOST 3 EVENTS]\n")
	f.Add(fmt.Sprintf(stats, 12, 3))
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseHistogram(text)
		known := errors.Is(err, errParse) || errors.Is(err, ErrNotCounting)
		if (err != nil) != known || err == nil && !strings.Contains(text, "[active]") {
			t.Errorf("histogram: %+v, %v", r, err)
		}
		failed, all, err := parseTrace(text)
		if (err != nil) != errors.Is(err, errParse) || all > uint64(strings.Count(text, "block_bio_complete")) || len(failed) > int(all) {
			t.Errorf("trace: %v, %d, %v", failed, all, err)
		}
		if s, err := parseStats(text); (err != nil) != errors.Is(err, errParse) {
			t.Errorf("stats: %+v, %v", s, err)
		}
	})
}
