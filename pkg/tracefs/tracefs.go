// Package tracefs makes instances of the kernel's tracing, which belong to the kernel, and reads
// the histograms that it counts there (Documentation/trace/ftrace.rst, Instances, and
// Documentation/trace/histogram.rst).
package tracefs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Instances is the folder of tracefs that has an instance for each folder that is made in it.
const Instances = "instances"

// Errors; test with errors.Is.
var (
	// ErrNoHistogram: there is no histogram, or another one.
	ErrNoHistogram = errors.New("no such histogram")
	// ErrFormat: the kernel has said something that this version does not understand.
	ErrFormat = errors.New("unknown text of the kernel")
)

// Mount mounts tracefs on dir, in this mount namespace, if it is not. It has one superblock: every mount
// shows the same files.
func Mount(dir string) error {
	mounted := func() (bool, error) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return false, fmt.Errorf("%s: %w", dir, err)
		}
		return st.Type == unix.TRACEFS_MAGIC, nil
	}
	if there, err := mounted(); there || err != nil {
		return err
	}
	err := unix.Mount("tracefs", dir, "tracefs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if there, _ := mounted(); there {
		return nil // by us, or by somebody at the same time
	}
	return fmt.Errorf("mount tracefs on %s: %w", dir, err)
}

// Make makes an instance.
func Make(dir string) error { return os.Mkdir(dir, 0o700) }

// Drop ends an instance.
func Drop(dir string) error { return unix.Rmdir(dir) }

// Write writes to a file that is there, without truncating it, which means something in tracefs.
func Write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Knows checks that an event, of which dir is the folder, has the fields that a filter or a histogram names, as the
// kernel declares them.
func Knows(dir string, fields ...string) error {
	text, err := os.ReadFile(filepath.Join(dir, "format"))
	if err != nil {
		return err
	}
	for _, field := range fields {
		if !strings.Contains(string(text), field) {
			return fmt.Errorf("%w: %s has no %q", ErrFormat, dir, field)
		}
	}
	return nil
}

// Devno has the parts of a device's number as events show it, major<<20 | minor
// (include/linux/kdev_t.h).
func Devno(number uint32) (major, minor uint32) {
	return number >> minorBits, number & (1<<minorBits - 1)
}

const majorBits, minorBits = 12, 20

// Number is the inverse of Devno for "major:minor".
func Number(devno string) (uint32, error) {
	a, b, ok := strings.Cut(devno, ":")
	major, err := strconv.ParseUint(a, 10, majorBits)
	minor, err2 := strconv.ParseUint(b, 10, minorBits)
	if err := errors.Join(err, err2); err != nil || !ok {
		return 0, fmt.Errorf("device %q is not major:minor: %w", devno, err)
	}
	return uint32(major)<<minorBits | uint32(minor), nil
}

// Histogram is what one has counted.
type Histogram struct {
	// Entries are in no order, and one key may have several: the kernel merges what two processors have
	// made at once, but for a moment.
	Entries []Entry
	// Dropped are events for which there was no room.
	Dropped uint64
}

// Entry is a key, as the kernel shows it between braces, and how many events had it.
type Entry struct {
	Key string
	N   uint64
}

var (
	// A histogram as hist_trigger_show prints it (kernel/trace/trace_events_hist.c).
	entryLine = regexp.MustCompile(`^\{ (.+?) *\} hitcount: +(\d+)$`)
	totalLine = regexp.MustCompile(`^    (Hits|Entries|Dropped): (\d+)$`)
)

// ParseHistogram reads the file hist of an event. info is what its trigger has to be, as the kernel shows
// it. Anything but one histogram of that kind is an error, and so is an end that is missing.
func ParseHistogram(text string, info *regexp.Regexp) (Histogram, error) {
	var h Histogram
	infos, totals := 0, map[string]uint64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if trigger, ok := strings.CutPrefix(line, "# trigger info: "); ok {
			if infos++; infos > 1 || !info.MatchString(trigger) {
				return Histogram{}, fmt.Errorf("%w: %q", ErrNoHistogram, line)
			}
		} else if m := entryLine.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseUint(m[2], 10, 64)
			if err != nil {
				return Histogram{}, fmt.Errorf("%w: %q", ErrFormat, line)
			}
			h.Entries = append(h.Entries, Entry{Key: m[1], N: n})
		} else if m := totalLine.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseUint(m[2], 10, 64)
			if _, twice := totals[m[1]]; twice || err != nil {
				return Histogram{}, fmt.Errorf("%w: %q", ErrFormat, line)
			}
			totals[m[1]] = n
		} else if line != "" && line != "Totals:" && !strings.HasPrefix(line, "#") {
			return Histogram{}, fmt.Errorf("%w: %q", ErrFormat, line)
		}
	}
	if infos == 0 {
		return Histogram{}, ErrNoHistogram
	}
	if len(totals) != 3 || totals["Entries"] != uint64(len(h.Entries)) {
		return Histogram{}, fmt.Errorf("%w: a histogram of %d entries ends with %v", ErrFormat, len(h.Entries), totals)
	}
	h.Dropped = totals["Dropped"]
	return h, nil
}
