package ioerrors

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var (
	// A histogram as hist_trigger_show prints it (kernel/trace/trace_events_hist.c).
	histInfo  = regexp.MustCompile(`^# trigger info: hist:keys=dev:vals=hitcount:sort=hitcount:size=\d+ if ` + regexp.QuoteMeta(condition) + ` \[active\]$`)
	histEntry = regexp.MustCompile(`^\{ dev: +(\d+) \} hitcount: +(\d+)$`)
	histTotal = regexp.MustCompile(`^    (Hits|Entries|Dropped): (\d+)$`)
	// An event as trace_raw_output_block_bio_complete prints it
	// (include/trace/events/block.h).
	traceLine = regexp.MustCompile(`^block_bio_complete: (\d+),(\d+) .*\[-\d+\]$`)
	// A place in the ring buffer where events are missing; they are among those lost.
	traceGap = regexp.MustCompile(`^CPU:\d+ \[LOST( \d+)? EVENTS\]$`)
)

// parseHistogram reads the file hist of an event. Anything but one histogram of the known
// kind is an error, and so is an end that is missing.
func parseHistogram(text string) (reading, error) {
	r := reading{failed: map[uint32]uint64{}}
	infos, entries, totals := 0, uint64(0), map[string]uint64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "# trigger info:") {
			if infos++; infos > 1 || !histInfo.MatchString(line) {
				return reading{}, fmt.Errorf("%w: %q", ErrNotCounting, line)
			}
		} else if m := histEntry.FindStringSubmatch(line); m != nil {
			dev, err := strconv.ParseUint(m[1], 10, 32)
			if err != nil {
				return reading{}, fmt.Errorf("%w: %q", errParse, line)
			}
			n, err := strconv.ParseUint(m[2], 10, 64)
			if err != nil {
				return reading{}, fmt.Errorf("%w: %q", errParse, line)
			}
			r.failed[uint32(dev)] += n
			entries++
		} else if m := histTotal.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseUint(m[2], 10, 64)
			if _, twice := totals[m[1]]; twice || err != nil {
				return reading{}, fmt.Errorf("%w: %q", errParse, line)
			}
			totals[m[1]] = n
		} else if line != "" && line != "Totals:" && !strings.HasPrefix(line, "#") {
			return reading{}, fmt.Errorf("%w: %q", errParse, line)
		}
	}
	if infos == 0 {
		return reading{}, ErrNotCounting
	}
	if len(totals) != 3 || totals["Entries"] != entries {
		return reading{}, fmt.Errorf("%w: a histogram of %d entries ends with %v", errParse, entries, totals)
	}
	r.lost = totals["Dropped"]
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
		dev, err := number(m[1] + ":" + m[2])
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
