package bench

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/scratch"
)

// ssdOf answers what is asked, or fails.
type ssdOf struct {
	err   error
	tasks []scratch.Task
	bytes int64
	node  string
	then  func()
}

func (s *ssdOf) MeasureSSD(_ context.Context, node string, bytes int64, t scratch.Task) (scratch.Answer, error) {
	s.tasks, s.bytes, s.node = append(s.tasks, t), bytes, node
	if s.then != nil {
		s.then()
	}
	if s.err != nil {
		return scratch.Answer{}, s.err
	}
	a := scratch.Answer{Bytes: 1 << 30, Place: "striped over 2 SSDs"}
	for i, d := range t.Depths {
		a.Runs = append(a.Runs, scratch.Run{
			Depth: d, Seconds: 2, Bytes: 8 << 20, Reads: scratch.Counts{100_000 * int64(1+i): 1500}, Writes: scratch.Counts{200_000: 500}, Syncs: scratch.Counts{1_000_000: 60},
			CPU: [2]string{"cpu  100 0 0 900 0", "cpu  150 0 0 950 0"},
		})
	}
	return a, nil
}

func withSSD(t *testing.T, s SSDMeter, change func(*Plan)) (*Report, error) {
	t.Helper()
	w := newWorld(t, userClass())
	p := planned(t, "none")
	change(p)
	r := w.runner()
	r.SSD = s
	return r.Run(t.Context(), p)
}

func profilesOf(t *testing.T, names ...string) []Profile {
	t.Helper()
	var out []Profile
	for _, n := range names {
		p, ok := Named(n)
		if !ok {
			t.Fatalf("no profile %s", n)
		}
		out = append(out, p)
	}
	return out
}

// TestSSDAlone: each profile has a row of the SSD alone, after those of the volumes.
func TestSSDAlone(t *testing.T) {
	s := &ssdOf{}
	r, err := withSSD(t, s, func(p *Plan) {
		p.Profiles, p.Runtime = profilesOf(t, Names()...), time.Minute
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []scratch.Task{
		{BlockBytes: 4096, ReadPercent: 100, Random: true, Depths: []int{1, 16}, Time: ssdTime},
		{BlockBytes: 8192, ReadPercent: 70, Random: true, SyncEvery: 8, Depths: []int{1, 16}, Time: ssdTime},
		{BlockBytes: 1 << 20, ReadPercent: 100, Depths: []int{1, 8}, Time: ssdTime},
		{BlockBytes: 4096, ReadPercent: 100, Random: true, Depths: []int{1, 16}, Time: ssdTime},
	}
	if diff := cmp.Diff(want, s.tasks); diff != "" || s.bytes != 2<<30 || s.node != "node-a" {
		t.Errorf("%d bytes on %s (-want +got):\n%s", s.bytes, s.node, diff)
	}
	for _, task := range s.tasks {
		if err := task.Check(); err != nil {
			t.Errorf("a profile is refused: %v", err)
		}
	}
	if len(r.SSD.Rows) != 4 || r.SSD.NotMeasured != "" || r.SSD.Place != "striped over 2 SSDs" || r.SSD.SizeBytes != 1<<30 {
		t.Fatalf("%+v", r.SSD)
	}
	row := r.SSD.Rows[1]
	if row.Volume != "SSD alone" || row.Profile != "oltp" || row.Depth != 16 || row.Load.IOPS != 1000 || row.Load.ReadIOPS != 750 || row.Load.WriteIOPS != 250 || row.Load.BytesPerSecond != 4<<20 {
		t.Errorf("row %+v", row)
	}
	// 1500 reads of 200 us and 500 writes of as much; alone the reads took half.
	if l := row.Load.Latency; l.MeanMicros != 200 || row.Alone.Latency.MeanMicros != 125 || row.Load.Sync.P50Micros != 1000 || *row.Load.NodeCPUPercent != 50 {
		t.Errorf("latency %+v, alone %+v, flushes %+v", l, row.Alone.Latency, row.Load.Sync)
	}
	if row.Verdict.Limit != LimitSSD {
		t.Errorf("limit %+v", row.Verdict)
	}
	var b bytes.Buffer
	if err := r.Table(&b); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Count(got, "\nSSD alone   ") != 4 || !strings.Contains(got, "SSD alone: 1Gi of the pool striped over 2 SSDs") {
		t.Errorf("table:\n%s", got)
	}
}

// Whether the SSD's requests wait for each other is judged as for a cache's.
func TestJudgeSSD(t *testing.T) {
	busy := 97.0
	load := func(mean float64) Load { return Load{Latency: Latency{MeanMicros: mean, P50Micros: 0.9 * mean}} }
	tail := Load{Latency: Latency{MeanMicros: 2400, P50Micros: 95}}
	for name, c := range map[string]struct {
		e    Evidence
		want Limit
	}{
		"they wait":        {Evidence{Depth: 16, Alone: load(100), Deep: load(160)}, LimitSSD},
		"they do not":      {Evidence{Depth: 16, Alone: load(100), Deep: load(110)}, LimitDepth},
		"one at a time":    {Evidence{Depth: 1, Deep: load(100)}, LimitDepth},
		"neither":          {Evidence{Depth: 16, Alone: load(100), Deep: load(140)}, LimitUnknown},
		"a few wait long":  {Evidence{Depth: 16, Alone: load(100), Deep: tail}, LimitUnknown},
		"the node is busy": {Evidence{Depth: 16, Alone: load(100), Deep: Load{Latency: Latency{MeanMicros: 900}, NodeCPUPercent: &busy}}, LimitCPU},
	} {
		if got := c.e.ssd(); got.Limit != c.want || got.Why == "" {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
}

// TestSSDNotMeasured: the reason is in table and report, and the other rows are there.
func TestSSDNotMeasured(t *testing.T) {
	mine, err := ParseJobFile("mine.fio", "[x]\nrw=randread\nbs=4k\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ssd  *ssdOf
		plan func(*Plan)
		why  string
		rows int
	}{
		"no right":       {&ssdOf{err: errors.New("this account may not")}, func(*Plan) {}, "this account may not", 0},
		"a job file":     {&ssdOf{}, func(p *Plan) { p.Profiles = []Profile{mine} }, "mine.fio: what a job file says only fio can do", 0},
		"a job file too": {&ssdOf{}, func(p *Plan) { p.Profiles = append(p.Profiles, mine) }, "mine.fio: what", 1},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := withSSD(t, c.ssd, c.plan)
			if err != nil || len(r.Rows) == 0 || len(r.SSD.Rows) != c.rows || !strings.Contains(r.SSD.NotMeasured, c.why) {
				t.Fatalf("%v: %+v", err, r.SSD)
			}
			var b bytes.Buffer
			if err := r.Table(&b); err != nil {
				t.Fatal(err)
			}
			if got := b.String(); strings.Count(got, "\nSSD alone   ") != 1 || !strings.Contains(got, "SSD alone: not measured: "+r.SSD.NotMeasured) {
				t.Errorf("table:\n%s", got)
			}
			if page, err := r.HTML(); err != nil || !strings.Contains(string(page), c.why) {
				t.Errorf("page: %v", err)
			}
		})
	}
}

// Only what is measured by fio on volumes of its own is compared with the SSD.
func TestSSDLeftOut(t *testing.T) {
	s := &ssdOf{}
	r := &Runner{SSD: s, plan: planned(t, "none"), report: &Report{}}
	r.plan.Subjects[0].Claim = "data"
	if err := r.ssd(t.Context()); err != nil || r.report.SSD != nil || len(s.tasks) > 0 {
		t.Errorf("a claim that exists: %v, %+v", err, r.report.SSD)
	}
	r.plan.Subjects[0].Claim, r.plan.Database = "", &Database{}
	if err := r.ssd(t.Context()); err != nil || r.report.SSD != nil || len(s.tasks) > 0 {
		t.Errorf("a database: %v, %+v", err, r.report.SSD)
	}
}

func TestSSDInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := &Runner{SSD: &ssdOf{then: cancel, err: errors.New("ended")}, plan: planned(t, "none"), report: &Report{}, Say: func(string, ...any) {}}
	if err := r.ssd(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
