package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "write the golden files")

// example is a report with everything in it.
func example() *Report {
	f := func(v float64) *float64 { return &v }
	latency := func(p50 float64) Latency {
		return Latency{MeanMicros: 1.1 * p50, P50Micros: p50, P90Micros: 2 * p50, P99Micros: 5 * p50, P999Micros: 8 * p50, MaxMicros: 20 * p50}
	}
	load := func(iops, p50 float64) Load {
		return Load{
			IOPS: iops, ReadIOPS: iops, BytesPerSecond: 4096 * iops, Seconds: 30, Latency: latency(p50), JobCPUPercent: 30, NodeCPUPercent: f(55),
			Distribution: []Step{{p50 / 2, 0.1}, {p50, 0.5}, {5 * p50, 0.99}, {20 * p50, 1}},
		}
	}
	alone := load(4000, 250)
	cachedAlone := load(9000, 110)
	ssd := load(11000, 85)
	return &Report{
		Version: 1, Run: "x7k2pq", Began: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), Seconds: 541, Node: "node-a", Image: "fio:3", VolumeSize: "2Gi",
		Link: &Link{SequentialBytesPerSecond: 118 << 20, RandomBytesPerSecond: 112 << 20},
		Rows: []Row{
			{
				Volume: "none", Mode: "none", Profile: "randread", Depth: 16, Alone: &alone, Load: load(14200, 1100),
				Counted: &Counted{Volume: &Device{Operations: 426000, Bytes: 426000 * 4096, MeanMicros: 1120}},
				Verdict: Verdict{LimitServer, "a request to the origin takes 1.2ms with 16 under way and 275us alone: they wait for each other"},
			},
			{
				Volume: "writeback", Mode: "writeback", Profile: "randread", Depth: 16, Alone: &cachedAlone, Load: load(51000, 290),
				WarmUp:  &WarmUp{Flat: true, By: "hit rate", Seconds: 95, Windows: []Window{{Seconds: 6, HitPercent: f(12), IOPS: 15000}}},
				Counted: &Counted{ReadHitPercent: f(98.4), SSD: &Device{Operations: 1500000, MeanMicros: 270}, Origin: &Device{Operations: 24000, MeanMicros: 1300, P99Micros: f(5000)}},
				Verdict: Verdict{LimitSSD, "a request to the SSD takes 270us with 16 under way and 100us alone: they wait for each other"},
				Series:  []Point{{Seconds: 6, HitPercent: f(12), IOPS: f(15000)}, {Seconds: 50, HitPercent: f(80), IOPS: f(40000)}, {Seconds: 95, HitPercent: f(98), IOPS: f(50000)}},
			},
			{Volume: "<b>", Mode: "writethrough", Profile: "mine & yours.fio", Load: load(100, 2_000_000), WarmUp: &WarmUp{Seconds: 600}, Verdict: Verdict{LimitUnknown, "the node did not say <how>"}},
		},
		SSD: &SSD{
			Place: "on one SSD", SizeBytes: 1 << 30, NotMeasured: "mine & yours.fio: what a job file says only fio can do",
			Rows: []Row{{
				Volume: "SSD alone", Profile: "randread", Depth: 16, Alone: &ssd, Load: load(61000, 240),
				Verdict: Verdict{LimitSSD, "a request to the SSD takes 264us with 16 under way and 94us alone: they wait for each other"},
			}},
		},
		Moves: []Move{
			{
				Volume: "writeback", Profile: "randread", Warm: true, From: "node-a", To: "node-b", Method: "Clone", AwaySeconds: 9, AwayFrom: 12, AwayTo: 21, WatchSeconds: 40,
				BeforeHitPercent: f(98), FirstHitPercent: f(97.5), LevelSeconds: f(1),
				Series: []Point{{Seconds: 5, HitPercent: f(98), IOPS: f(50000)}, {Seconds: 22, HitPercent: f(97.5), IOPS: f(30000)}},
			},
			{
				Volume: "writeback", Profile: "randread", From: "node-b", To: "node-a", AwaySeconds: 8, AwayFrom: 12, AwayTo: 20, WatchSeconds: 40, BeforeHitPercent: f(98),
				Series: []Point{{Seconds: 5, HitPercent: f(98), IOPS: f(50000)}, {Seconds: 22, IOPS: f(9000)}},
			},
		},
		Notes: []string{"Node node-a did not always say what it counts: x <y>."},
	}
}

// golden compares with a file of testdata, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; `go test ./pkg/bench -update` writes it):\n%s", name, diff)
	}
}

func TestTableGolden(t *testing.T) {
	var b bytes.Buffer
	if err := example().Table(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", b.Bytes())
}

func TestJSONGolden(t *testing.T) {
	text, err := json.MarshalIndent(example(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", append(text, '\n'))
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example(), &back, cmpopts.IgnoreUnexported(Load{}, Device{})); diff != "" {
		t.Errorf("what was read back (-want +got):\n%s", diff)
	}
}

func TestHTMLGolden(t *testing.T) {
	page, err := example().HTML()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.html", page)
	if n := pictures(t, string(page)); n != 5 {
		t.Errorf("%d pictures", n)
	}
	for _, bad := range []string{"<b>", "mine & yours", "<how>", "<y>", "<script", "http:", "https:", "url(", "@import", "NaN", "Inf", "<link", "src="} {
		if strings.Contains(string(page), bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// pictures counts those of a page, each of which is well-formed.
func pictures(t *testing.T, page string) int {
	t.Helper()
	all := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(page, -1)
	for _, p := range all {
		d := xml.NewDecoder(strings.NewReader(p))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, p)
			}
		}
	}
	return len(all)
}

// TestEmptyPlots: a report without figures is a page all the same.
func TestEmptyPlots(t *testing.T) {
	r := &Report{Rows: []Row{{Volume: "none", Mode: "none", Profile: "seq"}}, Moves: []Move{{Volume: "x"}}}
	page, err := r.HTML()
	if err != nil || strings.Contains(string(page), "NaN") || strings.Contains(string(page), "Inf") {
		t.Errorf("%v: %s", err, page)
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		from, to float64
		want     []float64
	}{{0, 100, []float64{0, 20, 40, 60, 80, 100}}, {-10, 40, []float64{-10, 0, 10, 20, 30, 40}}, {0, 0.3, []float64{0, 0.1, 0.2, 0.3}}, {5, 5, nil}} {
		if diff := cmp.Diff(c.want, ticks(c.from, c.to), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("%g to %g: -want +got:\n%s", c.from, c.to, diff)
		}
	}
}
