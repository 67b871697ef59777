package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestVerdict(t *testing.T) {
	raw := row{deep: result{IOPS: 1000, Mean: 100 * time.Microsecond}}
	remote := row{deep: result{Mean: 10 * time.Millisecond}, single: result{P50: 2 * time.Millisecond}}
	warm := func(iops float64, mean time.Duration, hits float64) row {
		return row{deep: result{IOPS: iops, Mean: mean}, single: result{P50: 180 * time.Microsecond}, hits: hits}
	}
	cases := map[string]struct {
		warm row
		want string
	}{
		"within a tenth":      {warm(900, 110*time.Microsecond, 1), "hit path at depth 16: 90.0 % of the raw SSD"},
		"faster":              {warm(1010, 99*time.Microsecond, 1), "hit path at depth 16: 101.0 % of the raw SSD"},
		"latency":             {warm(900, 110*time.Microsecond, 1), "180 us from the cache, 0 us from the raw SSD, 2000 us from the storage server"},
		"misses":              {warm(500, 200*time.Microsecond, 0.99), "1.0 % of the reads were misses, which cost 100 us of the 100 us"},
		"every hit is slower": {warm(500, 200*time.Microsecond, 1), "takes 100 us longer"},
		"fewer in flight":     {warm(500, 100*time.Microsecond, 1), "fewer reads were in flight"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := table{raw: raw, warm: tc.warm, remote: remote}.verdict()
			if !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q in it", got, tc.want)
			}
		})
	}
}

func TestTable(t *testing.T) {
	tab := table{title: "title", rows: []row{
		{name: "raw SSD", deep: result{IOPS: 50000.4}, single: result{P50: 18 * time.Microsecond, P99: time.Millisecond}, hits: math.NaN()},
		{name: "warm", deep: result{IOPS: 7}, single: result{P50: 1, P99: 2}, hits: 0.9912},
	}}
	wantText := "title\n\n" +
		"      case    IOPS     p50       p99   hit rate\n" +
		"   raw SSD   50000   18 us   1000 us          -\n" +
		"      warm       7    0 us      0 us     99.1 %\n"
	if got := tab.text(); got != wantText {
		t.Errorf("got\n%s\nwant\n%s", got, wantText)
	}
	for _, want := range []string{"| case | IOPS | p50 | p99 | hit rate |\n|---|", "| warm | 7 | 0 us | 0 us | 99.1 % |\n"} {
		if got := tab.markdown(); !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant in it\n%s", got, want)
		}
	}
}

// TestEnding: the last that a demo says is what is advised, in each form.
func TestEnding(t *testing.T) {
	tab := table{advice: "$ kubectl nearflash advise\nnot known yet\n"}
	if got := tab.ending(); !strings.HasSuffix(got, "\n\n$ kubectl nearflash advise\nnot known yet\n") {
		t.Errorf("got\n%s", got)
	}
	if got := tab.markdown(); !strings.HasSuffix(got, "\n\n```console\n$ kubectl nearflash advise\nnot known yet\n```\n") {
		t.Errorf("got\n%s", got)
	}
}

func TestMoved(t *testing.T) {
	for want, m := range map[string]moved{
		"hit rate 99.8 % with the old node's cache by clone, 30.0 % with it by stream, and 99.0 % when all has come; 0.5 % without it": {
			by:   []arrival{{method: v1alpha1.MigrationClone, first: 0.998, then: 0.999}, {method: v1alpha1.MigrationStream, first: 0.3, then: 0.99}},
			cold: 0.005,
		},
		"kubectl nearflash doctor": {by: []arrival{{first: 0.005}}, cold: 0.005},
	} {
		if got := m.text(); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
}
