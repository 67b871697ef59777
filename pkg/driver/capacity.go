package driver

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Capacities in bytes.
const (
	// extent is the unit of a volume's size: the default extent of LVM, on
	// which nearflash-target's volumes lie (lvm.conf(5), physical_extent_size).
	extent = 4 << 20
	// defaultCapacity is that of a request without a capacity.
	defaultCapacity = 1 << 30
	// minCapacity is the smallest volume; smaller requests are rounded up.
	minCapacity = 16 << 20
	// minXFS is the smallest filesystem that mkfs.xfs makes (xfsprogs 5.19).
	minXFS = 300 << 20
	// maxCapacity keeps the rounding below from overflowing.
	maxCapacity = 1 << 62
)

// parseCapacity chooses the size of a new volume within the range.
func parseCapacity(r *csi.CapacityRange, fsType string) (int64, error) {
	required, limit, err := checkRange(r)
	if err != nil {
		return 0, err
	}
	if fsType == "xfs" && required != 0 && required < minXFS {
		return 0, fmt.Errorf("%w: xfs needs at least %d bytes (300Mi), %d were requested; ask for more or use fsType ext4", volume.ErrOutOfRange, minXFS, required)
	}
	size := roundUp(max(required, minCapacity))
	if required == 0 {
		size = defaultCapacity
		if limit != 0 && limit < size {
			size = limit / extent * extent
		}
	}
	lowest := int64(minCapacity)
	if fsType == "xfs" {
		lowest = minXFS
	}
	if size < lowest || limit != 0 && size > limit {
		return 0, fmt.Errorf("%w: limit_bytes %d is too small: volumes have a multiple of %d bytes, at least %d", volume.ErrOutOfRange, limit, extent, max(size, lowest))
	}
	return size, nil
}

// parseExpansion returns the new size of an existing volume.
func parseExpansion(r *csi.CapacityRange) (int64, error) {
	if r == nil {
		return 0, fmt.Errorf("%w: capacity_range is missing", volume.ErrInvalid)
	}
	required, limit, err := checkRange(r)
	if err != nil {
		return 0, err
	}
	size := roundUp(required)
	if required == 0 {
		size = limit / extent * extent
	}
	if size == 0 || limit != 0 && size > limit {
		return 0, fmt.Errorf("%w: limit_bytes %d is too small: volumes have a multiple of %d bytes, at least %d", volume.ErrOutOfRange, limit, extent, max(size, extent))
	}
	return size, nil
}

func checkRange(r *csi.CapacityRange) (required, limit int64, err error) {
	required, limit = r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, 0, fmt.Errorf("%w: capacity_range: required_bytes %d and limit_bytes %d must not be negative", volume.ErrInvalid, required, limit)
	case limit != 0 && required > limit:
		return 0, 0, fmt.Errorf("%w: capacity_range: required_bytes %d exceeds limit_bytes %d", volume.ErrInvalid, required, limit)
	case required > maxCapacity:
		return 0, 0, fmt.Errorf("%w: required_bytes %d: the largest volume has %d bytes", volume.ErrOutOfRange, required, int64(maxCapacity))
	}
	return required, limit, nil
}

// inRange reports whether an existing size satisfies the range.
func inRange(size int64, r *csi.CapacityRange) bool {
	return size >= r.GetRequiredBytes() && (r.GetLimitBytes() == 0 || size <= r.GetLimitBytes())
}

func roundUp(n int64) int64 { return (n + extent - 1) / extent * extent }
