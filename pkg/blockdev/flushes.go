package blockdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// statFlushes is the field of a stat file with the flushes that a device has completed (Linux 5.5).
const statFlushes = 15

// ErrNoFlushes is that a device counts no flushes: it has no write cache, so that the kernel sends it
// none, or the kernel is older.
var ErrNoFlushes = errors.New("flushes are not counted")

// Flushes are those that the disks below a device, given as "major:minor", have completed since they
// were made. Only a disk that is told to flush counts them, not what device-mapper puts above it; the
// kernel makes one of several that come at the same time. Errors: ErrNoFlushes; os.ErrNotExist.
func Flushes(sysfs, devno string) (uint64, error) {
	return flushes(filepath.Join(sysfs, "dev/block", devno))
}

func flushes(dir string) (uint64, error) {
	below, err := os.ReadDir(filepath.Join(dir, "slaves"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	if len(below) == 0 {
		return flushesOfDisk(dir)
	}
	sum := uint64(0)
	for _, d := range below {
		n, err := flushes(filepath.Join(dir, "slaves", d.Name()))
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func flushesOfDisk(dir string) (uint64, error) {
	kind, err := os.ReadFile(filepath.Join(dir, "queue/write_cache"))
	if err != nil {
		return 0, err
	}
	if strings.TrimSpace(string(kind)) != "write back" {
		return 0, fmt.Errorf("%w: %s has no write cache", ErrNoFlushes, dir)
	}
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	all := strings.Fields(string(text))
	if len(all) <= statFlushes {
		return 0, fmt.Errorf("%w: %s has %d fields of counts", ErrNoFlushes, dir, len(all))
	}
	n, err := strconv.ParseUint(all[statFlushes], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("counts of %s: %w", dir, err)
	}
	return n, nil
}
