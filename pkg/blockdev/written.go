package blockdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Written is what a block device has been asked to write since it was made
// (Documentation/block/stat.rst of the kernel).
type Written struct {
	// Requests and Sectors were completed; InFlight requests, reads among them, are
	// under way.
	Requests, Sectors, InFlight uint64
}

// Fields of a stat file.
const (
	statRequests = 4
	statSectors  = 6
	statInFlight = 8
)

// WrittenTo reads the counts of a device, given as "major:minor", from where sysfs is
// mounted. Unlike a command it costs next to nothing.
func WrittenTo(sysfs, devno string) (Written, error) {
	path := filepath.Join(sysfs, "dev/block", devno, "stat")
	text, err := os.ReadFile(path)
	if err != nil {
		return Written{}, err
	}
	fields := strings.Fields(string(text))
	if len(fields) <= statInFlight {
		return Written{}, fmt.Errorf("%s has %d fields", path, len(fields))
	}
	var w Written
	for i, to := range map[int]*uint64{statRequests: &w.Requests, statSectors: &w.Sectors, statInFlight: &w.InFlight} {
		if *to, err = strconv.ParseUint(fields[i], 10, 64); err != nil {
			return Written{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	return w, nil
}

// Chunks is how many chunks may have been written to since before, at most.
func (w Written) Chunks(before Written, chunkSectors uint64) uint64 {
	if chunkSectors == 0 || w.Requests < before.Requests || w.Sectors < before.Sectors {
		return ^uint64(0) >> 1 // another device, or one of which nothing is known
	}
	// A request of n chunks lies in up to n+1 of them.
	requests := w.Requests - before.Requests + w.InFlight
	return 2*requests + (w.Sectors-before.Sectors)/chunkSectors
}
