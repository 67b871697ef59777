package hoststate

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Counters are those of a dm-cache device since its metadata were made. See
// Documentation/admin-guide/device-mapper/cache.rst of the kernel, "Status".
type Counters struct {
	ReadHits, ReadMisses, WriteHits, WriteMisses uint64
	Demotions, Promotions, Dirty                 uint64
	// UsedBlocks of TotalBlocks cache blocks hold data.
	UsedBlocks, TotalBlocks uint64
}

// Sub returns what was counted since an earlier reading. Blocks stay as they are.
func (c Counters) Sub(earlier Counters) Counters {
	c.ReadHits -= earlier.ReadHits
	c.ReadMisses -= earlier.ReadMisses
	c.WriteHits -= earlier.WriteHits
	c.WriteMisses -= earlier.WriteMisses
	c.Promotions -= earlier.Promotions
	c.Demotions -= earlier.Demotions
	return c
}

// ReadHitRate is a fraction of 1; NaN when nothing was read.
func (c Counters) ReadHitRate() float64 {
	return float64(c.ReadHits) / float64(c.ReadHits+c.ReadMisses)
}

// TopDevice is the name of a volume's device-mapper device.
func TopDevice(handle string) string { return "nf-" + handle }

// ReadCounters reads the counters of a volume's cache. A volume that is attached
// without a cache is an error.
func ReadCounters(ctx context.Context, r Runner, machine, handle string) (Counters, error) {
	out, err := r.Run(ctx, machine, "dmsetup status --noflush "+TopDevice(handle))
	if err != nil {
		return Counters{}, err
	}
	return parseCounters(out)
}

// Reads are the reads of a volume's device since it was made, and those of the device over its
// origin. While a stream fills its cache nothing is promoted: what the cache has not served is
// what reached the origin, whichever tables were swapped meanwhile.
type Reads struct{ Volume, Origin uint64 }

// Sub is what was read between two looks.
func (r Reads) Sub(before Reads) Reads {
	return Reads{Volume: r.Volume - before.Volume, Origin: r.Origin - before.Origin}
}

// HitRate is the part that did not reach the origin.
func (r Reads) HitRate() float64 {
	if r.Volume == 0 {
		return 0
	}
	return 1 - float64(min(r.Origin, r.Volume))/float64(r.Volume)
}

// CountReads reads the kernel's counts (Documentation/block/stat.rst).
func CountReads(ctx context.Context, r Runner, machine, handle string) (Reads, error) {
	top := TopDevice(handle)
	out, err := r.Run(ctx, machine, fmt.Sprintf(
		"for d in %[1]s %[1]s.origin; do n=$(basename $(readlink -f /dev/mapper/$d)) && read -r reads rest </sys/block/$n/stat && echo $reads; done", top))
	if err != nil {
		return Reads{}, err
	}
	var c Reads
	if _, err := fmt.Sscan(out, &c.Volume, &c.Origin); err != nil {
		return c, fmt.Errorf("reads of %s: %q: %w", top, out, err)
	}
	return c, nil
}

// parseCounters reads "<start> <length> cache <metadata block size> <used>/<total>
// <cache block size> <used>/<total> <read hits> <read misses> <write hits>
// <write misses> <demotions> <promotions> <dirty> ...".
func parseCounters(status string) (Counters, error) {
	f := strings.Fields(status)
	if len(f) < 14 || f[2] != "cache" {
		return Counters{}, fmt.Errorf("%q is not the status of a working cache", strings.TrimSpace(status))
	}
	var c Counters
	used, total, _ := strings.Cut(f[6], "/")
	texts := append([]string{used, total}, f[7:14]...)
	for i, dst := range []*uint64{&c.UsedBlocks, &c.TotalBlocks, &c.ReadHits, &c.ReadMisses, &c.WriteHits, &c.WriteMisses, &c.Demotions, &c.Promotions, &c.Dirty} {
		n, err := strconv.ParseUint(texts[i], 10, 64)
		if err != nil {
			return Counters{}, fmt.Errorf("status %q: %w", strings.TrimSpace(status), err)
		}
		*dst = n
	}
	return c, nil
}

// Table returns the dm table of a volume's top device.
func Table(ctx context.Context, r Runner, machine, handle string) (string, error) {
	out, err := r.Run(ctx, machine, "dmsetup table "+TopDevice(handle))
	return strings.TrimSpace(out), err
}

// CacheUUID returns the LVM UUID of a volume's cache data, "" if the node has
// none: a cache that was wiped and made anew has another one.
func CacheUUID(ctx context.Context, r Runner, machine, handle string) (string, error) {
	out, err := r.Run(ctx, machine, "lvs --noheadings -o lv_uuid -S 'lv_name="+handle+".data && vg_name="+poolVG(machine)+"'")
	return strings.TrimSpace(out), err
}
