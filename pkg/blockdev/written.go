package blockdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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
	statReads    = 0
	statReadTime = 3
	statRequests = 4
	statSectors  = 6
	statInFlight = 8
	statDiscards = 11
)

// WrittenTo reads the counts of a device, given as "major:minor", from where sysfs is
// mounted. Unlike a command it costs next to nothing.
func WrittenTo(sysfs, devno string) (Written, error) {
	var w Written
	err := stat(sysfs, devno, map[int]*uint64{statRequests: &w.Requests, statSectors: &w.Sectors, statInFlight: &w.InFlight})
	if err != nil {
		return Written{}, err
	}
	return w, nil
}

// Discards is how many discards a device, given as "major:minor", has completed since it was made.
func Discards(sysfs, devno string) (n uint64, err error) {
	return n, stat(sysfs, devno, map[int]*uint64{statDiscards: &n})
}

// Reads are the reads that a block device has completed since it was made, and how long they
// took together. The kernel counts the time of a device-mapper device in its own ticks, which
// are right in the mean.
type Reads struct {
	Requests uint64
	Took     time.Duration
	// InFlight reads are under way.
	InFlight uint64
}

// ReadFrom reads the counts of a device, like WrittenTo.
func ReadFrom(sysfs, devno string) (Reads, error) {
	var requests, ms uint64
	if err := stat(sysfs, devno, map[int]*uint64{statReads: &requests, statReadTime: &ms}); err != nil {
		return Reads{}, err
	}
	reads, _, err := inFlight(sysfs, devno)
	if err != nil {
		return Reads{}, err
	}
	return Reads{Requests: requests, Took: time.Duration(ms) * time.Millisecond, InFlight: reads}, nil
}

// Idle reports whether no request is under way on a device.
func Idle(sysfs, devno string) (bool, error) {
	reads, writes, err := inFlight(sysfs, devno)
	return reads == 0 && writes == 0, err
}

func inFlight(sysfs, devno string) (reads, writes uint64, err error) {
	path := filepath.Join(sysfs, "dev/block", devno, "inflight")
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(string(text), &reads, &writes); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", path, err)
	}
	return reads, writes, nil
}

// Since is what came after before; nothing did on another device.
func (r Reads) Since(before Reads) Reads {
	if r.Requests < before.Requests || r.Took < before.Took {
		before = r
	}
	return Reads{Requests: r.Requests - before.Requests, Took: r.Took - before.Took, InFlight: r.InFlight}
}

// Mean is how long one took, 0 if there was none.
func (r Reads) Mean() time.Duration {
	if r.Requests == 0 {
		return 0
	}
	return r.Took / time.Duration(r.Requests)
}

// stat reads fields of a device's counts.
func stat(sysfs, devno string, fields map[int]*uint64) error {
	path := filepath.Join(sysfs, "dev/block", devno, "stat")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	all := strings.Fields(string(text))
	for i, to := range fields {
		if len(all) <= i {
			return fmt.Errorf("%s has %d fields", path, len(all))
		}
		if *to, err = strconv.ParseUint(all[i], 10, 64); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
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
