package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrFio is wrapped by the error of an output that is no result of fio.
var ErrFio = errors.New("not the result of fio")

// fioReport is the part of fio's output in the format json+ that is used (fio(1), "JSON+ output").
type fioReport struct {
	Version string   `json:"fio version"`
	Jobs    []fioJob `json:"jobs"`
}

type fioJob struct {
	Name  string  `json:"jobname"`
	Error int     `json:"error"`
	Read  fioSide `json:"read"`
	Write fioSide `json:"write"`
	Sync  struct {
		TotalIOs uint64     `json:"total_ios"`
		Latency  fioLatency `json:"lat_ns"`
	} `json:"sync"`
	// UserCPU and SystemCPU are percentages of one processor.
	UserCPU   float64 `json:"usr_cpu"`
	SystemCPU float64 `json:"sys_cpu"`
}

// fioSide is one direction of a job.
type fioSide struct {
	TotalIOs uint64  `json:"total_ios"`
	IOPS     float64 `json:"iops"`
	Bytes    float64 `json:"bw_bytes"`
	// Runtime is in milliseconds.
	Runtime int64      `json:"runtime"`
	Latency fioLatency `json:"lat_ns"`
}

// fioLatency has a bin for each length of time that was seen: its value in nanoseconds, and how often.
type fioLatency struct {
	Bins map[string]uint64 `json:"bins"`
}

// Load is what fio got of a volume.
type Load struct {
	// IOPS are reads and writes per second, BytesPerSecond what they carried.
	IOPS           float64 `json:"iops"`
	ReadIOPS       float64 `json:"readIOPS"`
	WriteIOPS      float64 `json:"writeIOPS"`
	BytesPerSecond float64 `json:"bytesPerSecond"`
	// Seconds is how long it ran.
	Seconds float64 `json:"seconds"`
	// Latency is of reads and writes together; Sync that of fsync, if there was any.
	Latency Latency  `json:"latency"`
	Sync    *Latency `json:"fsyncLatency,omitempty"`
	// JobCPUPercent is the busiest job's share of one processor.
	JobCPUPercent float64 `json:"jobCPUPercent"`
	// NodeCPUPercent is how busy all processors of the node were, as the pod saw it; absent if it
	// could not see it.
	NodeCPUPercent *float64 `json:"nodeCPUPercent,omitempty"`
	// Distribution is that of Latency.
	Distribution []Step `json:"distribution,omitempty"`

	// jobs is how many ran at once.
	jobs int
}

// parseLoad reads the output of the script: a line of /proc/stat, fio's JSON, and a second line.
// Notes that fio prints before its JSON are skipped.
func parseLoad(out []byte) (Load, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return Load{}, fmt.Errorf("%w: %.200q", ErrFio, strings.TrimSpace(string(out)))
	}
	var r fioReport
	d := json.NewDecoder(bytes.NewReader(out[start:]))
	if err := d.Decode(&r); err != nil {
		return Load{}, fmt.Errorf("%w: %w", ErrFio, err)
	}
	l, err := r.load()
	l.NodeCPUPercent = busyPercent(string(out[:start]), string(out[start+int(d.InputOffset()):]))
	return l, err
}

// load puts the jobs of a report together, which ran at the same time.
func (r fioReport) load() (Load, error) {
	l := Load{jobs: len(r.Jobs)}
	all, syncs := histogram{}, histogram{}
	for _, j := range r.Jobs {
		if j.Error != 0 {
			return Load{}, fmt.Errorf("%w: job %s ended with error %d", ErrFio, j.Name, j.Error)
		}
		for _, s := range []fioSide{j.Read, j.Write} {
			l.IOPS += s.IOPS
			l.BytesPerSecond += s.Bytes
			l.Seconds = max(l.Seconds, float64(s.Runtime)/1000)
			if err := all.add(s.Latency); err != nil {
				return Load{}, fmt.Errorf("%w: job %s: %w", ErrFio, j.Name, err)
			}
		}
		l.ReadIOPS += j.Read.IOPS
		l.WriteIOPS += j.Write.IOPS
		if err := syncs.add(j.Sync.Latency); err != nil {
			return Load{}, fmt.Errorf("%w: job %s: %w", ErrFio, j.Name, err)
		}
		l.JobCPUPercent = max(l.JobCPUPercent, j.UserCPU+j.SystemCPU)
	}
	if len(all) == 0 {
		return Load{}, fmt.Errorf("%w: nothing was read or written, or its latency was not counted", ErrFio)
	}
	l.Latency, l.Distribution = all.latency(), all.steps()
	if len(syncs) > 0 {
		s := syncs.latency()
		l.Sync = &s
	}
	return l, nil
}

// busyPercent compares two looks at the first line of /proc/stat (proc_stat(5)); nil if they are none.
// Time that a hypervisor gave to others counts as busy: the node had no more.
func busyPercent(before, after string) *float64 {
	a, idleA, okA := processorTime(before)
	b, idleB, okB := processorTime(after)
	if !okA || !okB || b <= a {
		return nil
	}
	percent := 100 * (1 - (idleB-idleA)/(b-a))
	percent = max(0, percent)
	return &percent
}

// processorTime returns all of the time that a line of /proc/stat counts, and what of it was idle.
func processorTime(text string) (all, idle float64, ok bool) {
	_, line, found := strings.Cut(text, "cpu ")
	if !found {
		return 0, 0, false
	}
	line, _, _ = strings.Cut(line, "\n")
	fields := strings.Fields(line)
	// Guests' time, from the ninth on, is counted in the first two already.
	for i, f := range fields[:min(len(fields), 8)] {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0, 0, false
		}
		all += n
		if i == 3 || i == 4 { // idle and iowait
			idle += n
		}
	}
	return all, idle, len(fields) >= 5
}
