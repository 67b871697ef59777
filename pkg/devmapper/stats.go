package devmapper

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// IOStats are the counts of the reads, or of the writes, of a device.
type IOStats struct {
	// Operations are those completed. The kernel counts what it gives to a target
	// at once: a request over several chunks of a cache counts once for each, and
	// a flush without data does not count.
	Operations uint64 `json:"ops"`
	Sectors    uint64 `json:"sectors"`
	// Nanoseconds are the sum of the operations' durations.
	Nanoseconds uint64 `json:"ns"`
}

// Stats are what a region of dm-stats has counted since it was made.
type Stats struct {
	// Region tells one region from another: a device that was made anew has
	// another one, and its counts begin at zero.
	Region uint64
	Read   IOStats
	Write  IOStats
	// InFlight is how many operations have begun and not ended. In one area it is never below zero, but it may
	// be a few too many for ever (parseCounts): what ends in no area at all goes on there.
	InFlight uint64
	// Histogram counts operations, reads and writes together, by their duration:
	// element i those shorter than StatsBounds()[i] and not shorter than the bound
	// before, the last element those not shorter than the last bound.
	Histogram Histogram
}

// Histogram has one element more than there are bounds.
type Histogram [len(statsBounds) + 1]uint64

// Operations is the sum of all buckets.
func (h Histogram) Operations() uint64 {
	var n uint64
	for _, c := range h {
		n += c
	}
	return n
}

// statsBounds are dense from an SSD's hit (tens to hundreds of microseconds) to
// a remote miss (milliseconds) and end beyond the failover of a path.
var statsBounds = [...]time.Duration{
	20 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 150 * time.Microsecond, 200 * time.Microsecond,
	300 * time.Microsecond, 500 * time.Microsecond, 750 * time.Microsecond,
	time.Millisecond, 1500 * time.Microsecond, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 5 * time.Second,
}

// StatsBounds are the upper bounds of the histogram's buckets, ascending.
func StatsBounds() []time.Duration { return append([]time.Duration(nil), statsBounds[:]...) }

// A region covers what no device reaches, because the kernel compares nothing
// with the device's size and a region never grows: so it covers an expanded
// device too. Its length, which the kernel repeats in front of the counts, also
// says that the region is ours (regionMark), what its bounds are (regionFormat)
// and which region it is, without a further question to the kernel.
const (
	statsProgram = "nearflash"
	// regionMark are the four bits above 48: some 2^51 sectors, one EiB.
	regionMark       = 0x9
	regionMarkShift  = 48
	regionFormatBits = 8
	// regionFormat must change when the bounds do.
	regionFormat = 1
)

// newRegion returns a length that no other region has.
func newRegion() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("name a statistics region: %w", err)
	}
	unique := binary.LittleEndian.Uint64(b[:]) & (1<<(regionMarkShift-regionFormatBits) - 1)
	return regionMark<<regionMarkShift | unique<<regionFormatBits | regionFormat, nil
}

func isRegion(length uint64) bool {
	return length>>regionMarkShift == regionMark && length&(1<<regionFormatBits-1) == regionFormat
}

// createWords is the message that makes a region (kernel, statistics.rst):
//
//	@stats_create <range> <step> <#optional args> <optional args> <program id>
func createWords(region uint64) []string {
	bounds := make([]string, len(statsBounds))
	for i, b := range statsBounds {
		bounds[i] = strconv.FormatInt(b.Nanoseconds(), 10)
	}
	length := strconv.FormatUint(region, 10)
	return []string{"@stats_create", "0+" + length, length, "2", "precise_timestamps", "histogram:" + strings.Join(bounds, ","), statsProgram}
}

// StatsCreate implements Client. The kernel waits for the device's outstanding
// I/O here, for ever if a disk does not answer; hence dmsetup, a process that can
// be abandoned.
func (d *dmsetup) StatsCreate(ctx context.Context, name string) error {
	c, err := d.control()
	if err != nil {
		return err
	}
	defer c.close()
	if _, found, err := readStats(c, name); err != nil || found {
		return d.missing(ctx, name, "statistics of", err)
	}
	region, err := newRegion()
	if err != nil {
		return err
	}
	err = d.Message(ctx, name, 0, createWords(region)...)
	if errors.Is(err, ErrInvalid) {
		return fmt.Errorf("%w: dm-stats with histograms: %w", ErrUnsupported, err)
	}
	return err
}

// StatsAll implements Client.
func (d *dmsetup) StatsAll(ctx context.Context, prefix string) (map[string]Stats, error) {
	c, err := d.control()
	if err != nil {
		return nil, err
	}
	defer c.close()
	return statsAll(ctx, c, prefix)
}

// messenger is the part of the device mapper's control device that is used without
// dmsetup.
type messenger interface {
	// names lists all devices.
	names() ([]string, error)
	// info tells the state of a device. Errors: ErrNotExist.
	info(name string) (Info, error)
	// status returns the status of a device's live table, a line for each target, and
	// makes no target commit anything. Errors: ErrNotExist.
	status(name string) (string, error)
	// message sends a message to a device and returns its answer. Errors:
	// ErrNotExist; ErrInvalid for a region that does not exist.
	message(name, text string) (string, error)
	close()
}

func statsAll(ctx context.Context, c messenger, prefix string) (map[string]Stats, error) {
	names, err := c.names()
	if err != nil {
		return nil, err
	}
	all := map[string]Stats{}
	var problems []error
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return all, errors.Join(append(problems, err)...)
		}
		st, found, err := readStats(c, name)
		switch {
		case errors.Is(err, ErrNotExist): // removed meanwhile
		case err != nil:
			problems = append(problems, fmt.Errorf("statistics of %s: %w", name, err))
		case found:
			all[name] = st
		}
	}
	return all, errors.Join(problems...)
}

// readStats reads our region of a device. It asks for region 0 at once, which it
// is unless somebody else measures the device too; found is false if the device
// has none.
func readStats(c messenger, name string) (st Stats, found bool, err error) {
	text, err := c.message(name, "@stats_print 0")
	if err == nil {
		if st, err = parseStats(text); err == nil {
			return st, true, nil
		}
	}
	if err != nil && !errors.Is(err, ErrInvalid) && !errors.Is(err, errForeign) {
		return Stats{}, false, err
	}
	list, err := c.message(name, "@stats_list "+statsProgram)
	if err != nil {
		return Stats{}, false, err
	}
	id, found, err := parseStatsList(list)
	if err != nil || !found {
		return Stats{}, false, err
	}
	if text, err = c.message(name, "@stats_print "+id); err != nil {
		return Stats{}, false, err
	}
	st, err = parseStats(text)
	return st, err == nil, err
}

// errForeign: the region is not one of ours.
var errForeign = errors.New("a region of somebody else")

// parseStatsList finds our region among lines such as
//
//	0: 0+2534... 2534... nearflash - precise_timestamps histogram:20000,...
func parseStatsList(text string) (id string, found bool, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) < 4 || !strings.HasSuffix(f[0], ":") {
			return "", false, fmt.Errorf("%w: region %q", ErrParse, line)
		}
		length, _, err := parseRange(f[1])
		if err != nil {
			return "", false, err
		}
		if f[3] == statsProgram && isRegion(length) {
			return strings.TrimSuffix(f[0], ":"), true, nil
		}
	}
	return "", false, nil
}

// parseRange reads "start+length".
func parseRange(s string) (length uint64, whole bool, err error) {
	start, rest, ok := strings.Cut(s, "+")
	if !ok {
		return 0, false, fmt.Errorf("%w: %q is no start+length", ErrParse, s)
	}
	length, err = parseUint(rest)
	if err != nil {
		return 0, false, fmt.Errorf("%w: %q is no start+length", ErrParse, s)
	}
	return length, start == "0", nil
}

// parseStats reads the answer to @stats_print, one line since our region has one
// area:
//
//	0+<length> <reads> <merged> <sectors> <ns> <writes> <merged> <sectors> <ns>
//	<in flight> <ns busy> <ns weighted> <ns busy reading> <ns busy writing>
//	<count>:<count>:...
//
// Errors: errForeign, ErrParse.
func parseStats(text string) (Stats, error) {
	f := strings.Fields(text)
	if len(f) == 0 {
		return Stats{}, fmt.Errorf("%w: no counts", ErrParse)
	}
	length, whole, err := parseRange(f[0])
	if err != nil {
		return Stats{}, err
	}
	if !whole || !isRegion(length) {
		return Stats{}, errForeign
	}
	if len(f) != 15 {
		return Stats{}, fmt.Errorf("%w: %d words of counts, want 15", ErrParse, len(f))
	}
	st := Stats{Region: length}
	for _, field := range [...]struct {
		at  int
		dst *uint64
	}{
		{1, &st.Read.Operations}, {3, &st.Read.Sectors}, {4, &st.Read.Nanoseconds},
		{5, &st.Write.Operations}, {7, &st.Write.Sectors}, {8, &st.Write.Nanoseconds}, {9, &st.InFlight},
	} {
		if *field.dst, err = parseUint(f[field.at]); err != nil {
			return Stats{}, fmt.Errorf("%w: count %d: %w", ErrParse, field.at, err)
		}
	}
	counts := strings.Split(f[14], ":")
	if len(counts) != len(st.Histogram) {
		return Stats{}, fmt.Errorf("%w: %d buckets, want %d", ErrParse, len(counts), len(st.Histogram))
	}
	for i, c := range counts {
		if st.Histogram[i], err = parseUint(c); err != nil {
			return Stats{}, fmt.Errorf("%w: bucket %d: %w", ErrParse, i, err)
		}
	}
	return st, nil
}
