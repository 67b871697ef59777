//go:build kernel

package kernel

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// flushes is how often a disk was told to make its write cache durable.
func flushes(t *testing.T, disk string) int64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(disk), "stat"))
	mustPass(t, "statistics", err)
	f := strings.Fields(string(b))
	const flushField = 15 // Documentation/block/stat.rst
	if len(f) <= flushField {
		t.Fatalf("the kernel does not count the flushes of %s: %q", disk, f)
	}
	n, err := strconv.ParseInt(f[flushField], 10, 64)
	mustPass(t, "statistics", err)
	return n
}

// TestKernelMapAfterData: before the map of a cache counts, every SSD that has chunks
// of it was flushed. dm-cache itself flushes only those that the map is on.
func TestKernelMapAfterData(t *testing.T) {
	m := newMachine(t)
	disks := []string{ssdOne, ssdTwo}
	n := m.node(t.TempDir(), v1alpha1.CachePoolSpec{Devices: disks})
	d := m.volume(n, "mapped", 128*mib, cached(volume.ModeWriteback, 64*mib))
	d.req.Block = true
	d.stage()
	before := map[string]int64{}
	for _, disk := range disks {
		before[disk] = flushes(t, disk)
	}
	d.heat(16 * mib) // nobody asks for a flush
	if st, found := d.cache(); !found || st.CacheUsed < 50 {
		t.Fatalf("too little is cached: %+v", st)
	}
	m.must("dmsetup", "status", "nf-mapped") // commits the map, as any demotion does
	for disk, was := range before {
		if now := flushes(t, disk); now == was {
			t.Errorf("%s has chunks and was never flushed", disk)
		}
	}
	d.unstage()
	d.remove()
}
