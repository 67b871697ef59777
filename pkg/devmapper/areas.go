package devmapper

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// areasPerMessage have room in one answer, whatever they have counted.
const areasPerMessage = 8

// trackedRegion is one line of the list.
type trackedRegion struct {
	id, tag       string
	sectors, step uint64
}

// areas is how many the region has; the last one may be shorter.
func (r trackedRegion) areas() uint64 {
	if r.sectors == 0 {
		return 0
	}
	return (r.sectors-1)/r.step + 1
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

// listRegions returns the regions of a program on a device.
func listRegions(c messenger, name, program string) ([]trackedRegion, error) {
	list, err := c.message(name, "@stats_list "+program)
	if err != nil {
		return nil, err
	}
	return parseRegions(list, program)
}

// regionsOf is listRegions whose error says whether the device is there.
func (d *dmsetup) regionsOf(ctx context.Context, c messenger, name, program string) ([]trackedRegion, error) {
	list, err := c.message(name, "@stats_list "+program)
	if err != nil {
		return nil, d.missing(ctx, name, "statistics of", err)
	}
	return parseRegions(list, program)
}

// createAreas makes a region of a program over a whole device, in areas of so many sectors.
func (d *dmsetup) createAreas(ctx context.Context, name string, areaSectors uint64, program ...string) error {
	words := append([]string{"@stats_create", "-", strconv.FormatUint(areaSectors, 10)}, program...)
	err := d.Message(ctx, name, 0, words...)
	if errors.Is(err, ErrInvalid) {
		return fmt.Errorf("%w: dm-stats: %w", ErrUnsupported, err)
	}
	return err
}

func (d *dmsetup) deleteRegions(ctx context.Context, name string, regions []trackedRegion) error {
	for _, r := range regions {
		if err := d.Message(ctx, name, 0, "@stats_delete", r.id); err != nil {
			return err
		}
	}
	return nil
}

// eachArea reads a region a few areas at a time, since the buffer for an answer is small, and gives
// the counts of one after the other to take.
func eachArea(ctx context.Context, c messenger, name string, r trackedRegion, take func(areaCounts)) error {
	areas := r.areas()
	for read := uint64(0); read < areas; {
		if err := ctx.Err(); err != nil {
			return err
		}
		text, err := c.message(name, fmt.Sprintf("@stats_print %s %d %d", r.id, read, areasPerMessage))
		if err != nil {
			return err
		}
		before := read
		for line := range strings.Lines(text) {
			counts, err := parseCounts(line, read*r.step)
			if err != nil {
				return err
			}
			take(counts)
			read++
		}
		if read == before || read > areas {
			return fmt.Errorf("%w: counts of %d areas, want %d", ErrParse, read, areas)
		}
	}
	return nil
}

// areaCounts are those of one area that somebody here asks for.
type areaCounts struct {
	reads, readSectors, writes, writeSectors uint64
	written                                  bool
}

// parseCounts reads the line of one area, which is that of parseStats without a
// histogram. An operation that has begun and not ended may be a write.
//
// Where it ends may be another area: of a bio that the device divides, the kernel finds the part that has
// ended by the end of the whole, which another processor may be shortening at that moment (dm_io_acct and
// bio_trim in drivers/md/dm.c, 5.18 to 7.2). Then the area in which it began has it in flight for ever, and the
// other one has one less than none. One of each kind in the same area is nothing in flight; but as long
// as there is any write, the kernel adds up the time of writes, in its ticks. So written is certain a tick
// after the last write, of a device that divides nothing, or finds where a part begins before that.
// Linear ones do, of which writes are tracked.
func parseCounts(line string, start uint64) (c areaCounts, err error) {
	f := strings.Fields(line)
	if len(f) != 14 {
		return c, fmt.Errorf("%w: %d words of counts, want 14", ErrParse, len(f))
	}
	if at, _, ok := strings.Cut(f[0], "+"); !ok || at != strconv.FormatUint(start, 10) {
		return c, fmt.Errorf("%w: counts of area %q, want that at %d", ErrParse, f[0], start)
	}
	var merged, writing uint64
	for _, field := range [...]struct {
		at  int
		dst *uint64
	}{{1, &c.reads}, {3, &c.readSectors}, {5, &c.writes}, {6, &merged}, {7, &c.writeSectors}, {13, &writing}} {
		if *field.dst, err = parseUint(f[field.at]); err != nil {
			return c, fmt.Errorf("%w: count %d: %w", ErrParse, field.at, err)
		}
	}
	inFlight, err := strconv.ParseInt(f[9], 10, 64)
	if err != nil {
		return c, fmt.Errorf("%w: count 9: %w", ErrParse, err)
	}
	c.written = c.writes+merged+c.writeSectors+writing > 0 || inFlight != 0
	return c, nil
}
