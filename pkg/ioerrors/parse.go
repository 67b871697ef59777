package ioerrors

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/pkg/tracefs"
)

var (
	histInfo = regexp.MustCompile(`^hist:keys=dev:vals=hitcount:sort=hitcount:size=\d+ if ` + regexp.QuoteMeta(condition) + ` \[active\]$`)
	histKey  = regexp.MustCompile(`^dev: +(\d+)$`)
	// An event as trace_raw_output_block_bio_complete prints it
	// (include/trace/events/block.h).
	traceLine = regexp.MustCompile(`^block_bio_complete: (\d+),(\d+) .*\[-\d+\]$`)
	// A place in the ring buffer where events are missing; they are among those lost.
	traceGap = regexp.MustCompile(`^CPU:\d+ \[LOST( \d+)? EVENTS\]$`)
)

// parseHistogram reads the file hist of an event. Anything but one histogram of the known
// kind is an error, and so is an end that is missing.
func parseHistogram(text string) (reading, error) {
	h, err := tracefs.ParseHistogram(text, histInfo)
	switch {
	case errors.Is(err, tracefs.ErrNoHistogram):
		return reading{}, fmt.Errorf("%w: %w", ErrNotCounting, err)
	case err != nil:
		return reading{}, err
	}
	r := reading{failed: map[uint32]uint64{}, lost: h.Dropped}
	for _, e := range h.Entries {
		m := histKey.FindStringSubmatch(e.Key)
		if m == nil {
			return reading{}, fmt.Errorf("%w: %q", errParse, e.Key)
		}
		dev, err := strconv.ParseUint(m[1], 10, 32)
		if err != nil {
			return reading{}, fmt.Errorf("%w: %q", errParse, e.Key)
		}
		r.failed[uint32(dev)] += e.N
	}
	return r, nil
}

// parseTrace reads the file trace: how many bios have failed, by device and of all.
func parseTrace(text string) (failed map[uint32]uint64, all uint64, err error) {
	failed = map[uint32]uint64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") || traceGap.MatchString(line) {
			continue
		}
		m := traceLine.FindStringSubmatch(line)
		if m == nil {
			return nil, 0, fmt.Errorf("%w: %q", errParse, line)
		}
		dev, err := tracefs.Number(m[1] + ":" + m[2])
		if err != nil {
			return nil, 0, fmt.Errorf("%w: %q: %w", errParse, line, err)
		}
		failed[dev]++
		all++
	}
	return failed, all, nil
}

// ringStats are counts of a ring buffer.
type ringStats struct {
	// entries are in it, lost were.
	entries, lost uint64
}

// parseStats reads a file stats (tracing_stats_read in kernel/trace/trace.c).
func parseStats(text string) (ringStats, error) {
	found := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		if ok && err == nil { // some are times
			found[name] = n
		}
	}
	s := ringStats{entries: found["entries"]}
	// Too many, too fast, for no room, and taken out by somebody.
	for _, name := range []string{"overrun", "commit overrun", "dropped events", "read events"} {
		n, ok := found[name]
		if !ok {
			return ringStats{}, fmt.Errorf("%w: no %s in %q", errParse, name, text)
		}
		s.lost += n
	}
	if _, ok := found["entries"]; !ok {
		return ringStats{}, fmt.Errorf("%w: no entries in %q", errParse, text)
	}
	return s, nil
}
