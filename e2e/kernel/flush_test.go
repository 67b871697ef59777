//go:build kernel

package kernel

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
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

// TestKernelFlushUnderLoad: a flush that is asked for ends although the pod never pauses,
// and says until then how much is left.
func TestKernelFlushUnderLoad(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "busy", 128*mib, cached(volume.ModeWriteback, 64*mib))
	d.req.Block = true
	d.stage()
	d.change()
	l := startLoad(t, d.device(), 64*mib)
	l.until(d, func(st devmapper.CacheStatus) bool { return st.Dirty > 100 })
	l.fast.Store(math.MaxInt64)
	if st, _ := d.cache(); st.Dirty == 0 {
		t.Fatal("nothing is dirty: this test proves nothing")
	}
	d.ask(func(v *volume.Volume) { v.FlushRequest = "one" })
	var said []string
	rounds, looks := l.rounds.Load(), 0
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		_, err := n.Change(t.Context())
		mustPass(t, "change", err)
		rec, err := d.rec.load(d.req.ID)
		mustPass(t, "record", err)
		if !rec.Volume.FlushPending() {
			t.Logf("flushed in %s beside %d accesses", time.Since(began).Round(time.Millisecond), l.rounds.Load()-rounds)
			break
		}
		if a := rec.Applied; a.Reason == v1alpha1.ReasonFlushing && !slices.Contains(said, a.Message) {
			said = append(said, a.Message)
		}
		if looks++; time.Since(began) > 5*time.Minute {
			t.Fatalf("the flush does not end: %+v", rec.Applied)
		}
	}
	t.Logf("said: %q", said)
	// The first look may swap the table, the next one has something to say.
	if len(said) == 0 && looks > 2 {
		t.Error("nothing was said of the flush while it lasted")
	}
	if l.rounds.Load() == rounds {
		t.Error("the load stood still")
	}
	l.fast.Store(0)
	l.end()
	l.check(d.device())
	d.unstage()
	d.remove()
}
