//go:build kernel

package kernel

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// wideSSD is a device with room for the caches of hundreds of volumes: most of
	// their blocks are never written.
	wideSSD, widePool, wideMeta, wideData = "wide-ssd", "wide-pool", "wide-meta", "wide-data"
	wideSectors                           = 8 << 30 / 512
	// manyLives is how much longer the last of many may take than the first: guests
	// share their machine with others.
	manyLives = 2.5
)

// askedRecords counts how often a record is asked for.
type askedRecords struct {
	fileRecords
	asked *atomic.Int64
}

func (r askedRecords) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	r.asked.Add(1)
	return r.fileRecords.Get(ctx, id)
}

// TestKernelManyVolumes attaches many cached volumes to one node, looks after them and
// detaches them: the last must cost about what the first did, and nothing may be left.
func TestKernelManyVolumes(t *testing.T) {
	for _, n := range []int{20, 200} {
		t.Run(fmt.Sprintf("%d volumes", n), func(t *testing.T) {
			if n > 20 && testing.Short() {
				t.Skip("takes many minutes: VERBOSE=true SHORT=false DISK=4096 RUN='^TestKernelManyVolumes$' hack/kernel-ring.sh")
			}
			manyVolumes(t, n)
		})
	}
}

func manyVolumes(t *testing.T, n int) {
	m := newMachine(t)
	m.wideSSD()
	spec := v1alpha1.CachePoolSpec{Devices: []string{"/dev/mapper/" + wideSSD}}
	dir := t.TempDir()
	rec := askedRecords{fileRecords{filepath.Join(dir, "records")}, &atomic.Int64{}}
	node, err := openNode(t.Context(), dir, spec, rec)
	mustPass(t, "open node", err)
	t.Cleanup(func() { m.dropPool(spec) })
	if v := node.pool.View(); !v.Ready {
		t.Fatalf("the pool is not ready: %s", v.Problem)
	}
	before := usageNow(t)
	disks := make([]*disk, n)
	for i := range disks {
		disks[i] = m.volume(node, fmt.Sprintf("pvc-%08d-0000-4000-8000-000000000000", i), 16*mib, cached(volume.ModeWritethrough, 4*mib))
		disks[i].req.Block = true
	}
	served := usageNow(t)
	staged := timeEach(disks, func(d *disk) {
		d.stage()
		write(t, d.device(), pattern(1, 64<<10), 0, true)
	})
	attached := usageNow(t)
	t.Logf("%d volumes: %s", n, staged)
	t.Logf("room for the metadata of LVM, all and free: %s", strings.TrimSpace(m.must("vgs", "--noheadings", "--options", "vg_mda_size,vg_mda_free", pool.VolumeGroup(nodeName))))
	t.Logf("memory: served by the storage server %s; attached %s", served.since(before, n), attached.since(served, n))
	pollAfter(t, node, disks, rec)
	unstaged := timeEach(disks, (*disk).unstage)
	t.Logf("unstage: %s", unstaged)
	retainedCaches(t, node, n, rec)
	for _, d := range disks {
		d.remove()
	}
	after := usageNow(t)
	t.Logf("memory when everything is gone: %s", after.since(before, n))
	for what, took := range map[string]durations{"stage": staged, "unstage": unstaged} {
		// Among other guests the machine's own load decides that.
		if first, last := took.ends(); !testing.Short() && last > time.Duration(manyLives*float64(first))+200*time.Millisecond {
			t.Errorf("%s: the first took %v, the last %v", what, first, last)
		}
	}
	if d := after.files - before.files; d > 2 {
		t.Errorf("%d more open files than before", d)
	}
	if d := after.goroutines - before.goroutines; d > 4 {
		t.Errorf("%d more goroutines than before", d)
	}
	if d := after.heap - before.heap; d > 4*mib+int64(n)*4096 {
		t.Errorf("%d more bytes in use by this process than before", d)
	}
	if d := after.slab - before.slab; d > 16*mib+int64(n)*(32<<10) {
		t.Errorf("%d more bytes in use by the kernel than before", d)
	}
}

// pollAfter does what the plugin's loops and its scrapes do with all volumes, twice,
// and once what the kubelet asks of each.
func pollAfter(t *testing.T, node *node, disks []*disk, rec askedRecords) {
	t.Helper()
	run := &counting{Runner: hostexec.New()}
	dm := devmapper.New(run)
	pass := sampling(t, node, dm)
	for range 2 {
		for _, look := range []struct {
			what string
			do   func() error
		}{
			{"repair", func() error { return node.Attacher.Repair(t.Context()) }},
			{"comparison with the records", func() error { _, err := node.Change(t.Context()); return err }},
			{"look for failing SSDs", func() error { return node.CacheFaults().Pass(t.Context()) }},
			{"scrape", func() error { return pass(len(disks)) }},
		} {
			rec.asked.Store(0)
			began, cpu := time.Now(), cpuTime(t)
			mustPass(t, look.what, look.do())
			t.Logf("%s of %d volumes: %v, CPU %v, %d records asked for", look.what, len(disks), time.Since(began).Round(time.Millisecond), cpuTime(t)-cpu, rec.asked.Load())
			if look.what == "repair" && rec.asked.Load() > 0 {
				t.Errorf("%d records were asked for to find that nothing is to be repaired", rec.asked.Load())
			}
		}
	}
	all, err := dm.StatusAll(t.Context())
	mustPass(t, "status of all", err)
	run.n = 0
	one := timeEach(disks, func(d *disk) {
		name := "nf-" + string(d.req.ID)
		st, found, err := dm.Status(t.Context(), name)
		mustPass(t, "status", err)
		want := all[name]
		// What comes and goes by itself, while udev looks into the device.
		for _, s := range []*devmapper.CacheStatus{&st, &want} {
			s.CacheUsed, s.MetadataUsed, s.Promotions, s.ReadHits, s.ReadMisses = 0, 0, 0, 0, 0
		}
		if diff := cmp.Diff(want, st); diff != "" || !found {
			t.Errorf("status of %s alone, found %t (-of all +alone):\n%s", name, found, diff)
		}
	})
	t.Logf("status of one: %s", one)
	if _, found, err := dm.Status(t.Context(), layout.Device(disks[0].req.ID, layout.Data)); found || err != nil {
		t.Errorf("the status of a device that is no cache: found %t, %v", found, err)
	}
}

// sampling returns a scrape of the node's volumes.
func sampling(t *testing.T, node *node, dm devmapper.Client) func(n int) error {
	t.Helper()
	dir := filepath.Join(node.dir, "journal")
	entries, err := journal.Open[state.Entry](dir)
	mustPass(t, "open the journal", err)
	s, err := observe.Open(observe.Config{
		Kernel: dm, Dir: filepath.Join(t.TempDir(), "metrics"), Now: time.Now,
		Volumes: observe.Remember(dir, func() ([]observe.Volume, error) {
			list, err := entries.List()
			var out []observe.Volume
			for _, e := range list {
				out = append(out, observe.Volume{ID: e.ID, PV: string(e.ID), Attached: true, Mode: e.Mode, Cached: e.Cached(), Activation: e.Counting, Base: e.Base})
			}
			return out, err
		}),
	})
	mustPass(t, "open the totals", err)
	return func(n int) error {
		time.Sleep(1100 * time.Millisecond) // within a second, scrapes share a pass
		snap := s.Scrape(t.Context())
		if len(snap.Volumes) != n {
			return fmt.Errorf("%d volumes instead of %d", len(snap.Volumes), n)
		}
		for _, v := range snap.Volumes {
			if v.Cache == nil || !v.Healthy() {
				return fmt.Errorf("volume %+v", v)
			}
		}
		return snap.Err
	}
}

// retainedCaches wants every volume to have left its cache on the node, and that keeping
// them asks nobody.
func retainedCaches(t *testing.T, node *node, n int, rec askedRecords) {
	t.Helper()
	entries, err := node.Journal.List()
	mustPass(t, "journal", err)
	for _, e := range entries {
		if e.State != state.Retained || !e.Clean {
			t.Errorf("volume %s is %s after its unstage", e.ID, e.State)
		}
	}
	if len(entries) != n {
		t.Errorf("the journal has %d volumes, want %d", len(entries), n)
	}
	rec.asked.Store(0)
	began := time.Now()
	mustPass(t, "repair", node.Attacher.Repair(t.Context()))
	t.Logf("repair of %d retained caches: %v, %d records asked for", n, time.Since(began).Round(time.Millisecond), rec.asked.Load())
	if rec.asked.Load() > 0 {
		t.Errorf("%d records were asked for to find that retained caches are to be kept", rec.asked.Load())
	}
}

// wideSSD makes a thin device over the second SSD.
func (m *machine) wideSSD() {
	const metaSectors = 16 << 20 / 512
	size, err := strconv.Atoi(strings.TrimSpace(m.must("blockdev", "--getsz", ssdTwo)))
	mustPass(m.t, "size of the SSD", err)
	m.must("dd", "if=/dev/zero", "of="+ssdTwo, "bs=4096", "count=1", "conv=notrunc")
	m.must("dmsetup", "create", wideMeta, "--table", fmt.Sprintf("0 %d linear %s 0", metaSectors, ssdTwo))
	m.must("dmsetup", "create", wideData, "--table", fmt.Sprintf("0 %d linear %s %d", size-metaSectors, ssdTwo, metaSectors))
	m.must("dmsetup", "create", widePool, "--table", fmt.Sprintf("0 %d thin-pool /dev/mapper/%s /dev/mapper/%s 128 0", size-metaSectors, wideMeta, wideData))
	m.must("dmsetup", "message", "/dev/mapper/"+widePool, "0", "create_thin 0")
	m.must("dmsetup", "create", wideSSD, "--table", fmt.Sprintf("0 %d thin /dev/mapper/%s 0", wideSectors, widePool))
	m.t.Cleanup(func() {
		for _, name := range []string{wideSSD, widePool, wideData, wideMeta} {
			m.try("dmsetup", "remove", "--retry", name)
		}
	})
}

// durations are what the same took for one volume after the other.
type durations []time.Duration

func timeEach(disks []*disk, do func(*disk)) durations {
	var out durations
	for _, d := range disks {
		began := time.Now()
		do(d)
		out = append(out, time.Since(began))
	}
	return out
}

// ends are the medians of the first and of the last quarter.
func (d durations) ends() (first, last time.Duration) {
	quarter := max(len(d)/4, 1)
	median := func(part durations) time.Duration {
		part = slices.Sorted(slices.Values(part))
		return part[len(part)/2]
	}
	return median(d[:quarter]), median(d[len(d)-quarter:])
}

func (d durations) String() string {
	first, last := d.ends()
	return fmt.Sprintf("median of the first quarter %v, of the last %v, longest %v", first.Round(10*time.Microsecond), last.Round(10*time.Microsecond), slices.Max(d).Round(10*time.Microsecond))
}

// usage is what this process and the kernel hold.
type usage struct {
	heap, slab, taken int64
	files, goroutines int
}

// usageNow looks after a collection, and without what the kernel would give back.
func usageNow(t *testing.T) usage {
	t.Helper()
	debug.FreeOSMemory()
	mustPass(t, "drop caches", os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200))
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	files, err := os.ReadDir("/proc/self/fd")
	mustPass(t, "open files", err)
	mem := memInfo(t)
	return usage{
		heap: int64(stats.HeapAlloc), slab: mem["SUnreclaim"], taken: mem["MemTotal"] - mem["MemAvailable"],
		files: len(files), goroutines: runtime.NumGoroutine(),
	}
}

// memInfo reads /proc/meminfo, in bytes.
func memInfo(t *testing.T) map[string]int64 {
	t.Helper()
	f, err := os.Open("/proc/meminfo")
	mustPass(t, "open", err)
	defer func() { _ = f.Close() }()
	out := map[string]int64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) >= 2 {
			kib, err := strconv.ParseInt(words[1], 10, 64)
			mustPass(t, "meminfo", err)
			out[strings.TrimSuffix(words[0], ":")] = kib << 10
		}
	}
	return out
}

func (u usage) since(before usage, n int) string {
	return fmt.Sprintf("%d KiB of the machine per volume, of that %d KiB the kernel's own objects; this process %+d KiB, %+d files, %+d goroutines",
		(u.taken-before.taken)/int64(n)>>10, (u.slab-before.slab)/int64(n)>>10, (u.heap-before.heap)>>10, u.files-before.files, u.goroutines-before.goroutines)
}
