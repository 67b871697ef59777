package devmapper

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// HeatBytes bounds the kernel memory in which the reads of one device are counted by area.
// dm-stats keeps its counts for each possible CPU: the more of them a machine has, the
// coarser are the areas of a large device.
const HeatBytes = 4 << 20

const (
	heatProgram = "nearflash-heat"
	// heatShared is struct dm_stat_shared, and heatPercpu struct dm_stat_percpu, in
	// drivers/md/dm-stats.c of a 64-bit kernel (6.1 to 7.2): what one area costs once, and
	// once for each possible CPU.
	heatShared, heatPercpu = 120, 104
	// maxHeatAreas is what the bound leaves on one CPU.
	maxHeatAreas = HeatBytes / (heatShared + heatPercpu)
	possibleFile = "/sys/devices/system/cpu/possible"
)

// Reads are how often the areas of a device were read.
type Reads struct {
	// AreaSectors is the length of an area; the last one may be shorter.
	AreaSectors uint64
	// Counts are the read operations of each; one over two areas counts in both.
	Counts []uint64
	// ReadSectors, Writes and WriteSectors are of all areas; a write over two counts twice.
	ReadSectors, Writes, WriteSectors uint64
}

// HeatAreaSectors is the length of the areas in which reads are counted: chunks of
// chunkSectors times the smallest power of two by which all areas have room in HeatBytes;
// 0 for an empty device.
func HeatAreaSectors(sectors, chunkSectors uint64, cpus int) uint64 {
	if sectors == 0 || chunkSectors == 0 {
		return 0
	}
	most := max(HeatBytes/(heatShared+heatPercpu*uint64(max(cpus, 1))), 1)
	area := chunkSectors
	for area < sectors && (sectors-1)/area+1 > most {
		area *= 2
	}
	return area
}

// PossibleCPUs is how many CPUs the kernel counts for: also those that may be added.
func PossibleCPUs() int {
	text, err := os.ReadFile(possibleFile)
	if n := countCPUs(strings.TrimSpace(string(text))); err == nil && n > 0 {
		return n
	}
	return runtime.NumCPU()
}

// countCPUs reads a list such as "0-3,8"; 0 if it is none.
func countCPUs(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || b < a {
			return 0
		}
		n += int(b-a) + 1
	}
	return n
}

// TrackReads implements Client. Like StatsCreate it may wait for a disk.
func (d *dmsetup) TrackReads(ctx context.Context, name string, chunkSectors uint64) error {
	t, err := d.Table(ctx, name)
	if err != nil {
		return err
	}
	c, err := d.control()
	if err != nil {
		return err
	}
	defer c.close()
	regions, err := d.regionsOf(ctx, c, name, heatProgram)
	if err != nil {
		return err
	}
	sectors := t.Sectors()
	area := HeatAreaSectors(sectors, chunkSectors, PossibleCPUs())
	if area == 0 || len(regions) == 1 && regions[0].sectors == sectors && regions[0].step == area {
		return nil
	}
	if err := d.deleteRegions(ctx, name, regions); err != nil {
		return err
	}
	return d.createAreas(ctx, name, area, heatProgram)
}

// ReadAreas implements Client.
func (d *dmsetup) ReadAreas(ctx context.Context, name string) (Reads, error) {
	c, err := d.control()
	if err != nil {
		return Reads{}, err
	}
	defer c.close()
	r, err := readAreas(ctx, c, name)
	if err != nil {
		return Reads{}, fmt.Errorf("reads of %s: %w", name, err)
	}
	return r, nil
}

// ClearReads implements Client. The kernel waits for nothing here but for who else asks for
// statistics of the device (dm_stats_clear), so that no process is needed.
func (d *dmsetup) ClearReads(_ context.Context, name string) error {
	c, err := d.control()
	if err != nil {
		return err
	}
	defer c.close()
	r, err := heatRegion(c, name)
	if err != nil {
		return fmt.Errorf("reads of %s: %w", name, err)
	}
	_, err = c.message(name, "@stats_clear "+r.id)
	return err
}

func heatRegion(c messenger, name string) (trackedRegion, error) {
	regions, err := listRegions(c, name, heatProgram)
	switch {
	case err != nil:
		return trackedRegion{}, err
	case len(regions) == 0:
		return trackedRegion{}, fmt.Errorf("%w: nothing is counted", ErrNotExist)
	}
	return regions[0], nil
}

// readAreas reads the region. Nobody's I/O waits meanwhile: dm-stats counts without the lock that
// is held here (dm_stats_account_io). 7,680 areas took 0.2 to 0.7 s in a busy guest of user-mode
// Linux, whose system calls are slow.
func readAreas(ctx context.Context, c messenger, name string) (Reads, error) {
	region, err := heatRegion(c, name)
	if err != nil {
		return Reads{}, err
	}
	if areas := region.areas(); areas > maxHeatAreas {
		return Reads{}, fmt.Errorf("%w: %d areas, at most %d are made", ErrParse, areas, maxHeatAreas)
	}
	r := Reads{AreaSectors: region.step, Counts: make([]uint64, 0, region.areas())}
	err = eachArea(ctx, c, name, region, func(counts areaCounts) {
		r.Counts = append(r.Counts, counts.reads)
		r.ReadSectors += counts.readSectors
		r.Writes += counts.writes
		r.WriteSectors += counts.writeSectors
	})
	if err != nil {
		return Reads{}, err
	}
	return r, nil
}
