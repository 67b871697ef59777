package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/scratch"
)

// ssdTime is the most that the SSD alone is measured for in each run: it is loaded for others, too.
const ssdTime = 10 * time.Second

// ssdAlone is what the rows of the SSD call it, and notMeasured what is said instead of a limit.
const ssdAlone, notMeasured = "SSD alone", "not measured"

// SSDMeter measures the SSDs of nodes alone.
type SSDMeter interface {
	// MeasureSSD carries a task out on a logical volume of at most so many bytes in a node's pool. Errors
	// say why it cannot.
	MeasureSSD(ctx context.Context, node string, bytes int64, t scratch.Task) (scratch.Answer, error)
}

// SSD is what the node's SSDs do without a cache, by the same profiles.
type SSD struct {
	// NotMeasured says why there are no rows, or not all.
	NotMeasured string `json:"notMeasured,omitempty"`
	// Place says on which SSDs the logical volume was that was read and written, and SizeBytes how large
	// it was.
	Place     string `json:"place,omitempty"`
	SizeBytes int64  `json:"sizeBytes,omitempty"`
	Rows      []Row  `json:"rows,omitempty"`
}

// ssd measures the node's SSD alone by the profiles of the plan. It fails only if it is interrupted: what is
// not known is said.
func (r *Runner) ssd(ctx context.Context) error {
	if r.SSD == nil || r.plan.Database != nil || r.plan.Subjects[0].Claim != "" {
		return nil
	}
	s := &SSD{}
	r.report.SSD = s
	for _, p := range r.plan.Profiles {
		task, ok := r.task(p)
		if !ok {
			s.NotMeasured = fmt.Sprintf("%s: what a job file says only fio can do", p.Name)
			continue
		}
		r.Say("%s, %s: measuring for %s", ssdAlone, p.Name, time.Duration(len(task.Depths))*task.Time)
		a, err := r.SSD.MeasureSSD(ctx, r.plan.Node, r.plan.Size.Value(), task)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			err = s.add(p.Name, a)
		}
		if err != nil {
			s.NotMeasured = err.Error()
			r.Say("%s: %s: %s", ssdAlone, notMeasured, s.NotMeasured)
			return nil
		}
	}
	return nil
}

// task is what a profile does to a device, if that can be told. Places that zipf reads more often than others
// are alike to an SSD.
func (r *Runner) task(p Profile) (t scratch.Task, ok bool) {
	if p.sections != nil {
		return t, false
	}
	t = scratch.Task{ReadPercent: 100, Time: min(r.plan.Runtime, ssdTime), Depths: []int{1}}
	if depth := r.depth(p); depth > 1 {
		t.Depths = append(t.Depths, depth)
	}
	for _, o := range p.Options {
		var err error
		switch o.Key {
		case "rw":
			t.Random = o.Value == "randread" || o.Value == "randrw"
		case "bs":
			var n int64
			n, err = quantity.Bytes(strings.NewReplacer("k", "Ki", "m", "Mi").Replace(o.Value))
			t.BlockBytes = int(n)
		case "rwmixread":
			t.ReadPercent, err = strconv.Atoi(o.Value)
		case "fsync":
			t.SyncEvery, err = strconv.Atoi(o.Value)
		}
		if err != nil {
			return t, false
		}
	}
	return t, t.BlockBytes > 0
}

// add makes a row of an answer.
func (s *SSD) add(profile string, a scratch.Answer) error {
	if len(a.Runs) == 0 {
		return errors.New("the node has measured nothing")
	}
	var loads []Load
	for _, run := range a.Runs {
		l, err := loadOf(run)
		if err != nil {
			return err
		}
		loads = append(loads, l)
	}
	s.Place, s.SizeBytes = a.Place, a.Bytes
	row := Row{Volume: ssdAlone, Profile: profile, Depth: a.Runs[len(a.Runs)-1].Depth, Load: loads[len(loads)-1]}
	e := Evidence{Depth: row.Depth, Deep: row.Load}
	if len(loads) > 1 {
		row.Alone, e.Alone = &loads[0], loads[0]
	}
	row.Verdict = e.ssd()
	s.Rows = append(s.Rows, row)
	return nil
}

// loadOf is a run in the form of the other rows.
func loadOf(run scratch.Run) (Load, error) {
	all := histogram{}
	for _, c := range []scratch.Counts{run.Reads, run.Writes} {
		for ns, n := range c {
			all[ns] += n
		}
	}
	if len(all) == 0 || run.Seconds <= 0 {
		return Load{}, errors.New("the node has measured nothing")
	}
	rate := func(n uint64) float64 { return float64(n) / run.Seconds }
	l := Load{
		IOPS: rate(all.total()), ReadIOPS: rate(run.Reads.Total()), WriteIOPS: rate(run.Writes.Total()), BytesPerSecond: rate(run.Bytes), Seconds: run.Seconds,
		Latency: all.latency(), Distribution: all.steps(), NodeCPUPercent: busyPercent(run.CPU[0], run.CPU[1]),
	}
	if run.Syncs.Total() > 0 {
		syncs := histogram(run.Syncs).latency()
		l.Sync = &syncs
	}
	return l, nil
}

// ssd judges the SSD alone. The program's requests are threads, some of which may wait long for a processor before they
// see that theirs has ended: that shows in the mean, and hardly in the median.
func (e Evidence) ssd() Verdict {
	if n := e.Deep.NodeCPUPercent; n != nil && *n >= busyShare {
		return verdict(LimitCPU, "the node's processors were %.0f%% busy", *n)
	}
	alone, deep := e.Alone.Latency, e.Deep.Latency
	v := e.waits("SSD", LimitSSD, alone.MeanMicros, deep.MeanMicros)
	if e.waits("SSD", LimitSSD, alone.P50Micros, deep.P50Micros).Limit == v.Limit {
		return v
	}
	return verdict(LimitUnknown, "a request to the SSD takes %s in the mean and %s in the median with %d under way, and %s and %s alone: whether some waited for the SSD or for a processor was not measured",
		Text(deep.MeanMicros), Text(deep.P50Micros), e.Depth, Text(alone.MeanMicros), Text(alone.P50Micros))
}

// cells are the SSD's part of the table.
func (s *SSD) cells() [][]string {
	if s == nil {
		return nil
	}
	var out [][]string
	for _, row := range s.Rows {
		cells := row.cells()
		cells[slices.Index(head, "SSD")] = Text(row.Load.Latency.MeanMicros)
		out = append(out, cells)
	}
	if len(s.Rows) == 0 {
		cells := slices.Repeat([]string{none}, len(head))
		cells[0], cells[len(cells)-1] = ssdAlone, notMeasured
		out = append(out, cells)
	}
	return out
}

// lines are what is said of the SSD below the table.
func (s *SSD) lines() []string {
	if s == nil {
		return nil
	}
	var out []string
	for _, row := range s.Rows {
		out = append(out, fmt.Sprintf("%s, %s: %s: %s", row.Volume, row.Profile, row.Verdict.Limit, row.Verdict.Why))
	}
	if len(s.Rows) > 0 {
		out = append(out, fmt.Sprintf("%s: %s of the pool %s, written once before each row; a program of the node plugin reads and writes it, with a thread for each request",
			ssdAlone, quantity.Text(s.SizeBytes), s.Place))
	}
	if s.NotMeasured != "" {
		out = append(out, fmt.Sprintf("%s: %s: %s", ssdAlone, notMeasured, s.NotMeasured))
	}
	return out
}
