//go:build kernel

package kernel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

func asksMirror(v *volume.Volume) { v.Spec.Mirror = true }

// mirrors is how many logical volumes the volume has, and how many of them have two copies.
func (d *disk) mirrors() (all, mirrored int) {
	d.m.t.Helper()
	lvs, err := d.n.LVM.LVs(d.m.t.Context(), pool.VolumeGroup(nodeName))
	mustPass(d.m.t, "lvs", err)
	for _, lv := range lvs {
		if strings.HasPrefix(lv.Name, string(d.req.ID)+".") {
			all++
			if lv.Mirrored() {
				mirrored++
			}
		}
	}
	return all, mirrored
}

// TestKernelMirrorAsked: a volume that asks for a mirror has its cache in one, or none; asked below a pod,
// what is dirty in a cache of one copy is flushed before that goes.
func TestKernelMirrorAsked(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "asked", 128*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	data := pattern(5, 4*mib)
	d.writeDirty(d.device(), data)
	d.ask(asksMirror)
	soon(t, "no cache", func() bool {
		_, err := n.Change(t.Context())
		mustPass(t, "change", err)
		all, _ := d.mirrors()
		return all == 0
	})
	d.wantReport(v1alpha1.ReasonNotMirrored)
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if all, _ := d.mirrors(); all != 0 || rec.Volume.PossiblyDirty || rec.Applied.Reason != v1alpha1.ReasonNotMirrored {
		t.Errorf("%d logical volumes, possibly dirty %t, applied %+v", all, rec.Volume.PossiblyDirty, rec.Applied)
	}
	check(t, d.device(), data, 0)
	d.wantOrigin("one copy", data)
	d.unstage()
	d.stage()
	d.wantReport(v1alpha1.ReasonNotMirrored)
	check(t, d.device(), data, 0)
	d.ask(func(v *volume.Volume) { v.Spec.Mirror = false })
	d.change()
	d.wantCache("not asked any more", volume.ModeWriteback, 32*mib)
	d.unstage()
	d.remove()
}

// redundancies are of pools in which a volume that asks for it has a mirror.
var redundancies = map[string]v1alpha1.Redundancy{"pool": v1alpha1.RedundancyMirror, "volume": v1alpha1.RedundancyNone}

// TestKernelMirrorHad: such a volume has two copies, and starts warm from them, in a pool that is a mirror
// and in one that is none.
func TestKernelMirrorHad(t *testing.T) {
	for name, redundancy := range redundancies {
		t.Run(name, func(t *testing.T) { mirrorHad(t, redundancy) })
	}
}

func mirrorHad(t *testing.T, redundancy v1alpha1.Redundancy) {
	m := newMachine(t)
	n := m.node(t.TempDir(), v1alpha1.CachePoolSpec{Devices: []string{ssdOne, ssdTwo}, Redundancy: redundancy})
	spec := cached(volume.ModeWriteback, 32*mib)
	spec.Mirror = true
	d := m.volume(n, "had", 128*mib, spec)
	d.req.Block = true
	data := pattern(6, 4*mib)
	for round := range 2 {
		d.stage()
		d.wantReport(v1alpha1.ReasonCacheActive)
		d.change()
		d.wantCache("mirrored", volume.ModeWriteback, 32*mib)
		if all, mirrored := d.mirrors(); all != 2 || mirrored != 2 {
			t.Errorf("%d of %d logical volumes have two copies", mirrored, all)
		}
		if rec, err := d.rec.load(d.req.ID); err != nil || round == 1 && !strings.Contains(rec.Report.Message, "kept") {
			t.Errorf("%v, %+v: want a warm start", err, rec.Report)
		}
		if round == 0 {
			d.writeDirty(d.device(), data)
		}
		check(t, d.device(), data, 0)
		d.unstage()
	}
	d.remove()
}

// tear has the second copies of a mirrored cache lose what is written until the node's power fails.
func (s stopping) tear() {
	s.m.t.Helper()
	for _, lv := range s.lvs() {
		leg := s.m.dmName(lv) + "_rimage_1"
		f := strings.Fields(s.m.must("dmsetup", "table", leg))
		if len(f) != 5 || f[2] != "linear" {
			s.m.t.Fatalf("the second copy of %s is %q", lv.Name, f)
		}
		s.m.swap(leg, fmt.Sprintf("%s %s flakey %s %s 0 3600 1 drop_writes", f[0], f[1], f[3], f[4]))
	}
}

// mismatches is how many sectors differ in the copies of a logical volume, as the kernel counts them.
func (m *machine) mismatches(name string) string {
	m.t.Helper()
	lv := pool.VolumeGroup(nodeName) + "/" + name
	m.must("lvchange", "--syncaction", "check", lv)
	soon(m.t, "counted", func() bool {
		return strings.TrimSpace(m.must("lvs", "--noheadings", "--options", "raid_sync_action", lv)) == "idle"
	})
	return strings.TrimSpace(m.must("lvs", "--noheadings", "--options", "raid_mismatch_count", lv))
}

// TestKernelMirrorTorn: the power is lost while writes are under way to both copies of a writeback cache,
// which have reached one. The kernel takes the copies for equal, and reads from either. Nobody reads one
// content of a block, and then the other.
func TestKernelMirrorTorn(t *testing.T) {
	m := newMachine(t)
	spec := v1alpha1.CachePoolSpec{Devices: []string{ssdOne, ssdTwo}, Redundancy: v1alpha1.RedundancyMirror}
	n := m.node(t.TempDir(), spec)
	d := m.volume(n, "torn", 128*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.writeDirty(d.device(), pattern(7, 4*mib))
	s := stopping{m: m, n: n, name: nodeName, id: d.req.ID, sources: []volume.Source{d.req.Publication.Source}}
	s.tear()
	write(t, d.device(), pattern(8, 4*mib), 0, false)
	disks := []*image{emptyImage(nodeName, ssdOne), emptyImage(nodeName, ssdTwo)}
	for _, disk := range disks {
		disk.copy(m, n)
	}
	s.vanish()
	for _, disk := range disks {
		disk.putBack(m, n)
	}
	var err error
	d.n, err = openNode(t.Context(), n.dir, spec, d.rec)
	mustPass(t, "restart", err)
	d.stage()
	for _, lv := range s.lvs() {
		if n := m.mismatches(lv.Name); n != "0" {
			t.Errorf("%s sectors of %s differ in its two copies", n, lv.Name)
		}
	}
	// No flush has followed what was written last: each block may be the old one or the new one.
	first := content(t, d.device(), 4*mib)
	for range 20 {
		check(t, d.device(), first, 0)
	}
	d.unstage()
	d.wantOrigin("flushed", first)
	d.remove()
}
