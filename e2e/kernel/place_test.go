//go:build kernel

package kernel

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// smallSSDs are disks of 200 MiB each.
func smallSSDs(m *machine, n int) []string {
	m.t.Helper()
	var out []string
	for i := range n {
		name, disk := fmt.Sprintf("small-%d", i), []string{ssdOne, ssdTwo}[i%2]
		m.must("dmsetup", "create", name, "--table", fmt.Sprintf("0 409600 linear %s %d", disk, 2048+i/2*409600))
		m.t.Cleanup(func() { m.must("dmsetup", "remove", "--retry", name) })
		path, err := filepath.EvalSymlinks("/dev/mapper/" + name)
		mustPass(m.t, "device", err)
		out = append(out, path)
	}
	return out
}

// onDevices returns, by LVM's word, the SSDs of a logical volume.
func (m *machine) onDevices(lv string) []string {
	m.t.Helper()
	below := map[string][]string{}
	for line := range strings.Lines(m.must("lvs", "--all", "--noheadings", "--separator", "|", "--options", "lv_name,devices", pool.VolumeGroup(nodeName))) {
		name, devices, _ := strings.Cut(strings.TrimSpace(line), "|")
		for d := range strings.SplitSeq(devices, ",") {
			d, _, _ = strings.Cut(d, "(")
			below[strings.Trim(name, "[]")] = append(below[strings.Trim(name, "[]")], d)
		}
	}
	var out []string
	for _, d := range below[lv] {
		if copies := below[d]; len(copies) > 0 {
			out = append(out, copies...)
		} else {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// wantTogether: no SSD has data without the map.
func (d *disk) wantTogether(what string) (on []string) {
	d.m.t.Helper()
	data, meta := d.m.onDevices(string(d.req.ID)+".data"), d.m.onDevices(string(d.req.ID)+".meta")
	if len(data) == 0 || slices.ContainsFunc(data, func(s string) bool { return !slices.Contains(meta, s) }) {
		d.m.t.Errorf("%s: %s has data on %v and its map on %v", what, d.req.ID, data, meta)
	}
	return data
}

// TestKernelPlaceMirror: the two copies of data and map of a cache are on the same two of
// three SSDs, also when the cache grows, in a pool that is a mirror and for volumes that ask for one.
func TestKernelPlaceMirror(t *testing.T) {
	for name, redundancy := range redundancies {
		t.Run(name, func(t *testing.T) { placeMirror(t, redundancy) })
	}
}

func placeMirror(t *testing.T, redundancy v1alpha1.Redundancy) {
	m := newMachine(t)
	n := m.node(t.TempDir(), v1alpha1.CachePoolSpec{Devices: smallSSDs(m, 3), Redundancy: redundancy})
	spec := cached(volume.ModeWriteback, 32*mib)
	spec.Mirror = redundancy == v1alpha1.RedundancyNone
	var disks []*disk
	for i := range 3 {
		d := m.volume(n, fmt.Sprintf("triple-%d", i), 128*mib, spec)
		d.req.Block = true
		d.stage()
		d.wantReport(v1alpha1.ReasonCacheActive)
		if on := d.wantTogether("made"); len(on) != 2 {
			t.Errorf("made on %v, want two", on)
		}
		disks = append(disks, d)
	}
	for _, d := range disks {
		d.ask(cacheBytes(48 * mib))
		d.change()
		if on := d.wantTogether("grown"); len(on) != 2 {
			t.Errorf("grown on %v, want two", on)
		}
		if all, mirrored := d.mirrors(); all != 2 || mirrored != 2 {
			t.Errorf("%d of %d logical volumes have two copies", mirrored, all)
		}
		data := pattern(1, 4*mib)
		write(t, d.device(), data, 0, true)
		d.unstage()
		d.stage()
		check(t, d.device(), data, 0)
		if v := n.pool.View(); !v.Ready {
			t.Errorf("pool: %s", v.Problem)
		}
		d.unstage()
		d.remove()
	}
}

// fillDevice takes the rest of an SSD.
func (m *machine) fillDevice(device string) (free func()) {
	m.t.Helper()
	vg, name := pool.VolumeGroup(nodeName), "filler-"+filepath.Base(device)
	m.must("lvcreate", "--yes", "--extents", "100%PVS", "--name", name, vg, device)
	return func() { m.must("lvremove", "--yes", vg+"/"+name) }
}

// TestKernelPlaceExtended: a pool gets another SSD. A cache from before grows where it is
// or not at all, a new one is over all SSDs, and where only one has room it is on that.
func TestKernelPlaceExtended(t *testing.T) {
	m := newMachine(t)
	ssds, dir := smallSSDs(m, 3), t.TempDir()
	n := m.node(dir, v1alpha1.CachePoolSpec{Devices: ssds[:2]})
	before := m.volume(n, "before", 128*mib, cached(volume.ModeWriteback, 32*mib))
	before.req.Block = true
	before.stage()
	data := pattern(2, 16*mib)
	write(t, before.device(), data, 0, true)

	n = m.node(dir, v1alpha1.CachePoolSpec{Devices: ssds})
	before.n = n
	before.ask(cacheBytes(48 * mib))
	before.change()
	if on := before.wantTogether("grown"); len(on) != 2 {
		t.Errorf("grown: on %v", on)
	}
	after := m.volume(n, "after", 128*mib, cached(volume.ModeWriteback, 48*mib))
	after.req.Block = true
	after.stage()
	if on := after.wantTogether("made after"); len(on) != 3 {
		t.Errorf("made after: on %v", on)
	}
	after.unstage() // leaves a retained cache

	// Growth finds no room beside what it belongs to, although the pool has some.
	free := []func(){m.fillDevice(ssds[0])}
	before.ask(cacheBytes(96 * mib))
	_, err := n.Change(t.Context())
	mustPass(t, "change", err)
	rec, err := before.rec.load(before.req.ID)
	mustPass(t, "record", err)
	if rec.Applied.Reason != v1alpha1.ReasonPoolFull {
		t.Errorf("growth without room: %+v", rec.Applied)
	}
	before.wantTogether("not grown")
	check(t, before.device(), data, 0)

	// One SSD has room: data and map go there. The retained cache was in the way.
	free = append(free, m.fillDevice(ssds[1]))
	alone := m.volume(n, "alone", 128*mib, cached(volume.ModeWritethrough, 40*mib))
	alone.req.Block = true
	alone.stage()
	if on := alone.wantTogether("alone"); len(on) != 1 || !strings.HasSuffix(on[0], "small-2") {
		t.Errorf("alone: on %v, want the third", on)
	}
	e, err := n.Journal.Load("alone")
	mustPass(t, "journal", err)
	if st, _ := alone.cache(); int64(st.CacheTotal*st.ChunkSectors)*512 != e.DataBytes {
		t.Errorf("the kernel caches in %d chunks of %d sectors, the journal says %d bytes", st.CacheTotal, st.ChunkSectors, e.DataBytes)
	}
	large := m.volume(n, "large", 512*mib, cached(volume.ModeWritethrough, 250*mib))
	large.req.Block = true
	large.stage()
	large.wantReport(v1alpha1.ReasonPoolFull)
	large.unstage()
	large.remove()
	for _, f := range free {
		f()
	}

	// What a version before made apart is not used again.
	alone.unstage()
	alone.stage()
	alone.wantBegan(beganKept)
	alone.unstage()
	m.must("lvchange", "--activate", "y", pool.VolumeGroup(nodeName)+"/alone.data")
	m.must("pvmove", "--name", "alone.data", ssds[2], ssds[0])
	alone.stage()
	alone.wantBegan(beganEmpty)
	alone.wantTogether("made anew")
	alone.unstage()
	alone.remove()
	check(t, before.device(), data, 0)
	before.unstage()
	before.remove()
	after.remove()
}

// How a cache began, as the report says it first.
const (
	beganEmpty   = "a new, empty cache"
	beganKept    = "the cache that was kept"
	beganUnclean = "the cache as it was before the unclean stop"
)

// wantBegan: the report says how the cache began.
func (d *disk) wantBegan(how string) {
	d.m.t.Helper()
	rec, err := d.rec.load(d.req.ID)
	mustPass(d.m.t, "record", err)
	if !rec.Report.Cached || !strings.HasPrefix(rec.Report.Message, how) {
		d.m.t.Errorf("the cache of %s began with %q, want %s", d.req.ID, rec.Report.Message, how)
	}
}
