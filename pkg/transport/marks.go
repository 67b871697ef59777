package transport

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// PathMark is a moment in the life of one path.
type PathMark struct {
	// Path names the path and its connection: another value is another path, or one that
	// has lost its connection meanwhile.
	Path string `json:"path"`
	// Errors is how many commands have failed on it, whatever came of them.
	Errors uint64 `json:"errors"`
	// Uncounted says that nobody counts them.
	Uncounted bool `json:"uncounted,omitempty"`
	// Rescans is in how many rescans since then commands have failed, and RescanErrors how
	// many (Rescanned).
	Rescans      uint64 `json:"rescans,omitempty"`
	RescanErrors uint64 `json:"rescanErrors,omitempty"`
}

// Marks are those of the paths of an attached device, by portal.
type Marks map[string]PathMark

// Failed reports whether a device has failed requests.
type Failed string

// Answers to that question. Unknown is the word where a path is gone or its connection was
// lost: what had been sent to it may have failed without being counted.
const (
	FailedNo      Failed = "No"
	FailedYes     Failed = "Yes"
	FailedUnknown Failed = "Unknown"
)

// Since reports whether requests have failed between two moments; why says so in words. Of
// those that failed during rescans, price are harmless for each rescan, by portal. Paths
// that have come since do not count.
func (m Marks) Since(base Marks, price map[string]uint64) (f Failed, why string) {
	if len(base) == 0 {
		return FailedUnknown, "nothing is known of its paths"
	}
	for _, portal := range slices.Sorted(maps.Keys(base)) {
		was := base[portal]
		is, found := m[portal]
		switch {
		case !found:
			return FailedUnknown, "the path by " + portal + " is gone"
		case is.Uncounted || was.Uncounted:
			return FailedUnknown, "nobody counts what fails by " + portal
		case is.Path != was.Path || is.Errors < was.Errors:
			return FailedUnknown, "the path by " + portal + " has lost its connection meanwhile"
		}
		failed := is.Errors - was.Errors
		if failed -= min(failed, was.RescanErrors, was.Rescans*price[portal]); failed > 0 {
			return FailedYes, fmt.Sprintf("%d requests by %s have failed", failed, portal)
		}
	}
	return FailedNo, ""
}

// Rescanned notes in marks what has failed during a rescan, and returns it by portal: the
// moments before and after it are given. A path that has another connection since has no
// answer.
func (m Marks) Rescanned(before, after Marks) map[string]uint64 {
	out := map[string]uint64{}
	for portal, was := range before {
		is, found := after[portal]
		if !found || is.Path != was.Path || is.Errors < was.Errors {
			continue
		}
		failed := is.Errors - was.Errors
		out[portal] = failed
		if b, known := m[portal]; known && b.Path == is.Path && failed > 0 {
			b.Rescans++
			b.RescanErrors += failed
			m[portal] = b
		}
	}
	return out
}

// FailedCommands adds the counts that the kernel shows of a SCSI disk: ioerr_cnt has each command
// that ended with anything but success, also if it was repeated then (scsi_complete in
// drivers/scsi/scsi_lib.c). Kernels that count those that have timed out by themselves have
// iotmo_cnt; late is "" of others.
func FailedCommands(counted, late string) (uint64, error) {
	errors, err := strconv.ParseUint(counted, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("count of errors: %w", err)
	}
	if late == "" {
		return errors, nil
	}
	timeouts, err := strconv.ParseUint(late, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("count of timeouts: %w", err)
	}
	return errors + timeouts, nil
}
