package devmapper

import (
	"context"
	"fmt"
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
	return d.createAreas(ctx, name, areaSectors, writesProgram, tag)
}

// UntrackWrites implements Client.
func (d *dmsetup) UntrackWrites(ctx context.Context, name string) error {
	c, err := d.control()
	if err != nil {
		return err
	}
	defer c.close()
	regions, err := d.regionsOf(ctx, c, name, writesProgram)
	if err != nil {
		return err
	}
	return d.deleteRegions(ctx, name, regions)
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
	regions, err := listRegions(c, name, writesProgram)
	if err != nil {
		return Written{}, err
	}
	for _, r := range regions {
		if r.tag == tag {
			w := Written{AreaSectors: r.step}
			if err := eachArea(ctx, c, name, r, func(counts areaCounts) { w.Areas = append(w.Areas, counts.written) }); err != nil {
				return Written{}, err
			}
			return w, nil
		}
	}
	return Written{}, fmt.Errorf("%w: nothing was tracked as %q", ErrNotExist, tag)
}
