package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// errFio is wrapped by the error of an output that is no result of fio jobs.
var errFio = errors.New("not the result of a fio job")

// report is the part of fio's JSON output (fio(1), "JSON output") that is used.
type report struct {
	Jobs []struct {
		Name  string `json:"jobname"`
		Error int    `json:"error"`
		Read  side   `json:"read"`
		Write side   `json:"write"`
	} `json:"jobs"`
}

// side is one direction of a job.
type side struct {
	TotalIOs uint64  `json:"total_ios"`
	IOPS     float64 `json:"iops"`
	// Latency is from submission to completion, in nanoseconds.
	Latency struct {
		Mean       float64          `json:"mean"`
		Percentile map[string]int64 `json:"percentile"`
	} `json:"clat_ns"`
}

// result is what one job measured.
type result struct {
	IOPS           float64
	Mean, P50, P99 time.Duration
}

// job is one of a script: with so many I/Os under way, for a time.
type job struct {
	depth int
	time  time.Duration
}

// parseFio reads the output of so many jobs that read or write, not both. Notes
// that fio prints before its JSON are skipped.
func parseFio(out []byte, jobs int) ([]result, error) {
	var r report
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return nil, fmt.Errorf("%w: %q", errFio, strings.TrimSpace(string(out)))
	}
	if err := json.Unmarshal(out[start:], &r); err != nil {
		return nil, fmt.Errorf("%w: %w", errFio, err)
	}
	if len(r.Jobs) != jobs {
		return nil, fmt.Errorf("%w: %d jobs, not %d", errFio, len(r.Jobs), jobs)
	}
	results := make([]result, jobs)
	for i, job := range r.Jobs {
		s := job.Read
		if job.Write.TotalIOs > 0 {
			s = job.Write
		}
		p50, ok50 := s.Latency.Percentile["50.000000"]
		p99, ok99 := s.Latency.Percentile["99.000000"]
		switch {
		case job.Error != 0:
			return nil, fmt.Errorf("%w: job %s ended with error %d", errFio, job.Name, job.Error)
		case job.Read.TotalIOs > 0 && job.Write.TotalIOs > 0:
			return nil, fmt.Errorf("%w: job %s read and wrote", errFio, job.Name)
		case s.TotalIOs == 0 || !ok50 || !ok99:
			return nil, fmt.Errorf("%w: job %s has no I/O or no percentiles", errFio, job.Name)
		}
		results[i] = result{IOPS: s.IOPS, Mean: time.Duration(s.Latency.Mean), P50: time.Duration(p50), P99: time.Duration(p99)}
	}
	return results, nil
}

// fioScript runs jobs on a device one after the other, or writes the whole working set once for the
// kind "write". One program for all of them: to start it takes as long as a short job.
func fioScript(kind, device string, workingSet int, jobs ...job) string {
	script := fmt.Sprintf("fio --filename=%s --size=%dm --rw=%s --direct=1 --ioengine=libaio --output-format=json", device, workingSet, kind)
	if kind == "write" {
		return script + " --name=write --bs=1m --iodepth=4 --end_fsync=1"
	}
	script += " --bs=4k --norandommap --randrepeat=0 --time_based"
	for _, j := range jobs {
		script += fmt.Sprintf(" --name=depth-%d --stonewall --iodepth=%d --runtime=%d", j.depth, j.depth, int(j.time.Seconds()))
	}
	return script
}
