package ioerrors

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// condition is which events count.
const condition = "error != 0"

// reading is what an instance has counted.
type reading struct {
	// failed are bios by device.
	failed map[uint32]uint64
	// lost are those whose device is not known.
	lost uint64
}

// setting is a text for a file of an instance.
type setting struct {
	file, text string
	// optional files are not there in every version.
	optional bool
}

// way is a way to count.
type way interface {
	// settings are what begins it, in this order.
	settings() []setting
	// read fails if the instance does not count as it is meant to.
	read(dir string) (reading, error)
}

// way is how an instance counts.
func (c *Counter) way(dir string) way {
	if _, err := os.Stat(filepath.Join(dir, event, "hist")); err == nil && !c.noHistogram {
		return histogram{}
	}
	return ring{}
}

// histogram counts by device.
type histogram struct{}

// histogramSize is for how many devices there is room. One more is one whose errors count
// for every device.
const histogramSize = 1024

func (histogram) settings() []setting {
	return []setting{
		// Nothing is ever written to the instance's ring buffer, which has 1.4 MiB for each
		// processor to begin with.
		{file: "buffer_size_kb", text: "4"},
		{file: event + "/trigger", text: fmt.Sprintf("hist:keys=dev:size=%d if %s", histogramSize, condition)},
	}
}

func (histogram) read(dir string) (reading, error) {
	text, err := os.ReadFile(filepath.Join(dir, event, "hist"))
	if err != nil {
		return reading{}, err
	}
	return parseHistogram(string(text))
}

// ring counts what is in a ring buffer that keeps the oldest.
type ring struct{}

// ringOn are the settings without which it does not count, or says so in another form. The
// event comes last.
func ringOn() []setting {
	return []setting{
		{file: "options/overwrite", text: "0"},
		// An instance takes the options of the host's own tracing, of which this one stops the
		// count for as long as somebody reads.
		{file: "options/pause-on-trace", text: "0"},
		// Without it there are no names of processes, which may have any characters.
		{file: "options/context-info", text: "0"},
		{file: "tracing_on", text: "1"},
		{file: event + "/filter", text: condition},
		{file: event + "/enable", text: "1"},
	}
}

func (ring) settings() []setting {
	out := []setting{{file: "buffer_size_kb", text: "32"}} // some hundred bios for each processor
	for _, form := range []string{"raw", "hex", "bin", "fields", "verbose"} {
		out = append(out, setting{file: "options/" + form, text: "0", optional: true})
	}
	return append(out, ringOn()...)
}

func (ring) read(dir string) (reading, error) {
	for _, s := range ringOn() {
		text, err := os.ReadFile(filepath.Join(dir, s.file))
		if err != nil {
			return reading{}, err
		}
		if got := strings.TrimSpace(string(text)); got != s.text {
			return reading{}, fmt.Errorf("%w: %s is %q, not %q", ErrNotCounting, s.file, got, s.text)
		}
	}
	before, err := ringCounts(dir)
	if err != nil {
		return reading{}, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "trace"))
	if err != nil {
		return reading{}, err
	}
	failed, n, err := parseTrace(string(text))
	if err != nil {
		return reading{}, err
	}
	after, err := ringCounts(dir)
	if err != nil {
		return reading{}, err
	}
	// The buffer only grows: what is between has failed meanwhile.
	if n < before.entries || n > after.entries {
		return reading{}, fmt.Errorf("%w: %d bios in a buffer that has between %d and %d", errParse, n, before.entries, after.entries)
	}
	return reading{failed: failed, lost: after.lost}, nil
}

// ringCounts adds up the counts of all processors' buffers.
func ringCounts(dir string) (ringStats, error) {
	files, err := filepath.Glob(filepath.Join(dir, "per_cpu/cpu*/stats"))
	if err != nil {
		return ringStats{}, err
	}
	if len(files) == 0 {
		return ringStats{}, fmt.Errorf("buffers of processors: %w", fs.ErrNotExist)
	}
	var sum ringStats
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return ringStats{}, err
		}
		s, err := parseStats(string(text))
		if err != nil {
			return ringStats{}, fmt.Errorf("%s: %w", file, err)
		}
		sum.entries += s.entries
		sum.lost += s.lost
	}
	return sum, nil
}
