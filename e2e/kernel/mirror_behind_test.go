//go:build kernel

package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// other is the second SSD of a pool that can be made to fail, as frail is the first.
const (
	other     = "other"
	otherPath = "/dev/mapper/" + other
)

// onFrailMirror is a mirror of two such SSDs.
func onFrailMirror(m *machine) v1alpha1.CachePoolSpec {
	spec := onFrailSSD(m)
	m.must("dmsetup", "create", other, "--table", otherTable(m, "linear %s 0"))
	m.t.Cleanup(func() { m.try("dmsetup", "remove", "--retry", other) })
	spec.Devices, spec.Redundancy = append(spec.Devices, otherPath), v1alpha1.RedundancyMirror
	return spec
}

func otherTable(m *machine, target string) string { return tableOver(m, ssdTwo, target) }

// stopWith is a loss of power after which only the SSDs have something that have tables of here.
func (d *disk) stopWith(frailIs, otherIs string) {
	m := d.m
	m.t.Helper()
	m.swapTable(frail, frailTable(m, "error"))
	m.swapTable(other, otherTable(m, "error"))
	for _, part := range []layout.Part{layout.Top, layout.Data, layout.Origin} {
		m.try("dmsetup", "remove", "--retry", layout.Device(d.req.ID, part))
	}
	names := strings.Fields(m.must("dmsetup", "info", "--columns", "--noheadings", "--options", "name"))
	slices.SortFunc(names, func(a, b string) int { return len(a) - len(b) }) // those above have shorter names
	for _, name := range names {
		if vg, lv, found := strings.Cut(name, "-"+string(d.req.ID)+"."); found && strings.HasPrefix(vg, "nearflash") {
			m.must("dmsetup", "remove", "--retry", name)
			m.t.Logf("gone with the power: %s", lv)
		}
	}
	m.swapTable(frail, frailTable(m, frailIs))
	m.swapTable(other, otherTable(m, otherIs))
	s := stopping{m: m, n: d.n, name: nodeName, id: d.req.ID, sources: []volume.Source{d.req.Publication.Source}}
	s.vanish()
}

// behindNotes is what the node has noted of copies that are behind.
func (n *node) behindNotes() string {
	b, err := os.ReadFile(filepath.Join(n.dir, "mirrors", "behind"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestKernelMirrorBehind: one SSD of a mirror fails below a writeback cache, and what is written and flushed
// from then on is on the other one alone. After a loss of power the one that is behind is not used alone; the
// other one is, and so are both.
func TestKernelMirrorBehind(t *testing.T) {
	const linear = "linear %s 0"
	t.Run("the one behind", func(t *testing.T) {
		d, spec, now := degradedWithWrites(t)
		before := content(t, d.originDevice(), int64(len(now)))
		if bytes.Equal(before, now) {
			t.Fatal("the storage server has everything: nothing is at risk")
		}
		d.stopWith(linear, "error")
		d.openMirror(spec)
		for range 3 {
			if err := d.n.Repair(t.Context()); !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), "out of date") {
				t.Errorf("repair with the copy that is behind: %v", err)
			}
			mustPass(t, "pool", d.n.pool.Reconcile(t.Context()))
		}
		if err := d.n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrFenced) {
			t.Errorf("stage with the copy that is behind: %v, want ErrFenced", err)
		}
		d.wantOrigin("with the copy that is behind", before)
		rec, err := d.rec.load(d.req.ID)
		mustPass(t, "record", err)
		e, err := d.n.Journal.Load(string(d.req.ID))
		mustPass(t, "journal", err)
		if !rec.Volume.PossiblyDirty || !e.MayBeDirty() {
			t.Errorf("possibly dirty %t, entry %+v", rec.Volume.PossiblyDirty, e)
		}
		lvs, err := d.n.raw.LVs(t.Context(), pool.VolumeGroup(nodeName))
		mustPass(t, "logical volumes", err)
		for _, lv := range lvs {
			if lv.Active {
				t.Errorf("%s is active", lv.Name)
			}
		}
		d.m.swapTable(other, otherTable(d.m, linear))
		d.recovers(now)
	})
	t.Run("the one that went on", func(t *testing.T) {
		d, spec, now := degradedWithWrites(t)
		d.stopWith("error", linear)
		d.openMirror(spec)
		for try := 0; try == 0 || try < 60 && !d.n.atRest(d.req.ID); try++ {
			mustPass(t, "repair", d.n.Repair(t.Context()))
		}
		d.wantOrigin("by the copy that went on", now)
		d.m.swapTable(frail, frailTable(d.m, linear))
		d.recovers(now)
		// LVM has made stand-ins for the copy that was missing, and leaves them when it is back.
		for name := range strings.FieldsSeq(d.m.must("dmsetup", "info", "--columns", "--noheadings", "--options", "name")) {
			if strings.Contains(name, "-missing_") {
				d.m.must("dmsetup", "remove", "--retry", name)
			}
		}
	})
}

// degradedWithWrites is a volume whose mirror has lost its first SSD, and what has been written to it
// since, of which some is on the second SSD alone.
func degradedWithWrites(t *testing.T) (d *disk, spec v1alpha1.CachePoolSpec, now []byte) {
	m := newMachine(t)
	spec = onFrailMirror(m)
	n := m.node(t.TempDir(), spec)
	d = m.volume(n, "behind", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	d.writeDirty(d.device(), pattern(1, 4*mib))
	m.swapTable(frail, frailTable(m, "error"))
	now = pattern(2, 4*mib)
	write(t, d.device(), now, 0, true)
	mustPass(t, "pool", n.pool.Reconcile(t.Context()))
	if v := n.pool.View(); v.Degraded == "" {
		t.Fatalf("the pool is %+v", v)
	}
	if st, _ := d.cache(); st.Dirty == 0 {
		t.Fatal("nothing is dirty")
	}
	t.Logf("noted: %s", n.behindNotes())
	return d, spec, now
}

// openMirror starts the node's plugin, whatever its pool is.
func (d *disk) openMirror(spec v1alpha1.CachePoolSpec) {
	d.m.t.Helper()
	n, err := openNode(d.m.t.Context(), d.n.dir, spec, d.rec)
	mustPass(d.m.t, "restart", err)
	d.n = n
	d.m.t.Logf("the pool: %s; noted: %s", n.pool.View().Problem, n.behindNotes())
}

// recovers: with both SSDs the volume has what was written last, and nothing stays noted.
func (d *disk) recovers(now []byte) {
	t := d.m.t
	t.Helper()
	mustPass(t, "pool", d.n.pool.Reconcile(t.Context()))
	d.stage()
	check(t, d.device(), now, 0)
	d.awaitMirror(func() bool {
		v := d.n.pool.View()
		return v.Ready && v.Degraded == "" && d.n.behindNotes() == "{}"
	})
	d.unstage()
	d.wantOrigin("with both copies", now)
	d.remove()
}
