package devmapper

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxAreas bounds how finely writes are told apart.
const MaxAreas = 8192

const (
	// writesProgram sets the region apart from the one that measures (statsProgram).
	writesProgram = "nearflash-writes"
	// areaBytes is what the kernel spends on one area for each CPU: struct
	// dm_stat_percpu and struct dm_stat_shared in drivers/md/dm-stats.c, rounded up.
	areaBytes = 128
	// trackBytes bounds the kernel memory of one tracked device.
	trackBytes = 32 << 20
	// areasPerMessage have room in one answer, whatever they have counted.
	areasPerMessage = 8
)

// Written are the parts of a device that were written to.
type Written struct {
	// AreaSectors is the length of a part; the last one may be shorter.
	AreaSectors uint64
	// Areas tells of each part whether it was written to, or is being written to.
	Areas []bool
}

// AreaSectors is the length of the parts in which writes to a device are told apart:
// a multiple of chunkSectors, so that there are neither more than MaxAreas nor more
// than the memory of a machine with that many CPUs should bear.
func AreaSectors(sectors, chunkSectors uint64, cpus int) uint64 {
	if sectors == 0 || chunkSectors == 0 {
		return 0
	}
	areas := uint64(min(MaxAreas, max(trackBytes/areaBytes/max(cpus, 1), 1)))
	chunks := (sectors + chunkSectors - 1) / chunkSectors
	return (chunks + areas - 1) / areas * chunkSectors
}

// TrackWrites implements Client. Like StatsCreate it may wait for a disk.
func (d *dmsetup) TrackWrites(ctx context.Context, name, tag string, areaSectors uint64) error {
	if err := d.UntrackWrites(ctx, name); err != nil {
		return err
	}
	err := d.Message(ctx, name, 0, "@stats_create", "-", strconv.FormatUint(areaSectors, 10), writesProgram, tag)
	if errors.Is(err, ErrInvalid) {
		return fmt.Errorf("%w: dm-stats: %w", ErrUnsupported, err)
	}
	return err
}

// UntrackWrites implements Client.
func (d *dmsetup) UntrackWrites(ctx context.Context, name string) error {
	c, err := d.control()
	if err != nil {
		return err
	}
	defer c.close()
	list, err := c.message(name, "@stats_list "+writesProgram)
	if err != nil {
		return d.missing(ctx, name, "statistics of", err)
	}
	regions, err := parseRegions(list, writesProgram)
	if err != nil {
		return err
	}
	for _, r := range regions {
		if err := d.Message(ctx, name, 0, "@stats_delete", r.id); err != nil {
			return err
		}
	}
	return nil
}

// WrittenAreas implements Client.
func (d *dmsetup) WrittenAreas(ctx context.Context, name, tag string) (Written, error) {
	c, err := d.control()
	if err != nil {
		return Written{}, err
	}
	defer c.close()
	w, err := writtenAreas(ctx, c, name, tag)
	if err != nil {
		return Written{}, fmt.Errorf("writes to %s: %w", name, err)
	}
	return w, nil
}

func writtenAreas(ctx context.Context, c messenger, name, tag string) (Written, error) {
	list, err := c.message(name, "@stats_list "+writesProgram)
	if err != nil {
		return Written{}, err
	}
	regions, err := parseRegions(list, writesProgram)
	if err != nil {
		return Written{}, err
	}
	for _, r := range regions {
		if r.tag == tag {
			return readWritten(ctx, c, name, r)
		}
	}
	return Written{}, fmt.Errorf("%w: nothing was tracked as %q", ErrNotExist, tag)
}

// readWritten reads a region a few areas at a time: the buffer for an answer is small.
func readWritten(ctx context.Context, c messenger, name string, r trackedRegion) (Written, error) {
	w := Written{AreaSectors: r.step}
	for areas := (r.sectors + r.step - 1) / r.step; uint64(len(w.Areas)) < areas; {
		if err := ctx.Err(); err != nil {
			return Written{}, err
		}
		text, err := c.message(name, fmt.Sprintf("@stats_print %s %d %d", r.id, len(w.Areas), areasPerMessage))
		if err != nil {
			return Written{}, err
		}
		before := len(w.Areas)
		for line := range strings.Lines(text) {
			counts, err := parseCounts(line, uint64(len(w.Areas))*r.step)
			if err != nil {
				return Written{}, err
			}
			w.Areas = append(w.Areas, counts.written)
		}
		if len(w.Areas) == before || uint64(len(w.Areas)) > areas {
			return Written{}, fmt.Errorf("%w: counts of %d areas, want %d", ErrParse, len(w.Areas), areas)
		}
	}
	return w, nil
}

// trackedRegion is one line of the list.
type trackedRegion struct {
	id, tag       string
	sectors, step uint64
}

// parseRegions reads the answer to @stats_list, as far as it is about the regions of one
// program that cover a whole device:
//
//	1: 0+131072 64 nearflash-writes TAG
func parseRegions(text, program string) ([]trackedRegion, error) {
	var out []trackedRegion
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) < 5 || !strings.HasSuffix(f[0], ":") {
			return nil, fmt.Errorf("%w: region %q", ErrParse, line)
		}
		sectors, whole, err := parseRange(f[1])
		if err != nil {
			return nil, err
		}
		step, err := parseUint(f[2])
		if err != nil || step == 0 || !whole {
			return nil, fmt.Errorf("%w: region %q", ErrParse, line)
		}
		if f[3] == program {
			out = append(out, trackedRegion{id: strings.TrimSuffix(f[0], ":"), tag: f[4], sectors: sectors, step: step})
		}
	}
	return out, nil
}

// areaCounts are those of one area that somebody here asks for.
type areaCounts struct {
	reads   uint64
	written bool
}

// parseCounts reads the line of one area, which is that of parseStats without a
// histogram. An operation that has begun and not ended may be a write.
func parseCounts(line string, start uint64) (c areaCounts, err error) {
	f := strings.Fields(line)
	if len(f) != 14 {
		return c, fmt.Errorf("%w: %d words of counts, want 14", ErrParse, len(f))
	}
	if at, _, ok := strings.Cut(f[0], "+"); !ok || at != strconv.FormatUint(start, 10) {
		return c, fmt.Errorf("%w: counts of area %q, want that at %d", ErrParse, f[0], start)
	}
	if c.reads, err = parseUint(f[1]); err != nil {
		return c, fmt.Errorf("%w: count 1: %w", ErrParse, err)
	}
	for _, i := range []int{5, 6, 7, 9} { // writes, merged ones, their sectors, in flight
		n, err := parseUint(f[i])
		if err != nil {
			return c, fmt.Errorf("%w: count %d: %w", ErrParse, i, err)
		}
		c.written = c.written || n > 0
	}
	return c, nil
}
