//go:build kernel

package kernel

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/volume"
)

// replaceLUN has another LUN at the volume's address, with nothing on it. back brings
// the first one back.
func (d *disk) replaceLUN() (back func()) {
	m, name := d.m, string(d.req.ID)
	m.t.Helper()
	ctx, gen := m.t.Context(), d.req.Publication.Fence.Generation
	lv := ""
	for s := range strings.FieldsSeq(m.must("lvs", "--noheadings", "--options", "lv_name", storageVG)) {
		if strings.HasSuffix(s, name) {
			lv = s
		}
	}
	if lv == "" {
		m.t.Fatalf("the storage server has no %s", name)
	}
	mustPass(m.t, "unexport", m.svc.UnexportVolume(ctx, name, "", ""))
	m.must("lvrename", storageVG, lv, "aside")
	_, err := m.svc.CreateVolume(ctx, name, d.size, target.Thin)
	mustPass(m.t, "create", err)
	d.publish(gen)
	return func() {
		m.t.Helper()
		mustPass(m.t, "back", errors.Join(m.svc.UnexportVolume(ctx, name, "", ""), m.svc.DeleteVolume(ctx, name)))
		m.must("lvrename", storageVG, "aside", lv)
		d.publish(gen)
	}
}

// TestKernelLUNReplaced: another LUN at the volume's address. Nothing of the old one is
// read, and what only the old one lacks is not written to the new one.
func TestKernelLUNReplaced(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "replaced", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	write(t, d.device(), pattern(1, 4*mib), 0, true)
	d.heat(4 * mib)
	d.unstage()
	back := d.replaceLUN()
	d.stage()
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if !slices.Contains(rec.Reasons, v1alpha1.ReasonOriginReplaced) {
		t.Errorf("what was said: %v", rec.Reasons)
	}
	d.wantBegan(beganEmpty)
	check(t, d.device(), aligned(4*mib), 0)
	d.unstage()
	d.stage()
	d.wantBegan(beganKept)
	d.unstage()
	back()
	d.stage()
	check(t, d.device(), pattern(1, 4*mib), 0)
	d.unstage()
	d.remove()

	d = m.volume(n, "unflushed", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	data := pattern(2, 4*mib)
	d.writeDirty(d.device(), data)
	s := stopping{m: m, n: n, name: nodeName, id: d.req.ID, sources: []volume.Source{d.req.Publication.Source}}
	s.cut()
	s.vanish()
	back = d.replaceLUN()
	n, err = openNode(t.Context(), n.dir, onOneSSD(), fileRecords{filepath.Join(n.dir, "records")})
	mustPass(t, "node", err)
	d.n = n
	for range 2 {
		// A pass that was held up says nothing, and has done nothing.
		if err := n.Repair(t.Context()); err != nil && !errors.Is(err, volume.ErrFenced) {
			t.Errorf("repair: %v, want ErrFenced", err)
		}
		if err := n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrFenced) || !strings.Contains(err.Error(), "abandon") {
			t.Errorf("stage: %v, want ErrFenced that names the remedy", err)
		}
	}
	if rec, err := d.rec.load(d.req.ID); err != nil || !rec.Volume.PossiblyDirty {
		t.Errorf("the record: %+v, %v", rec.Volume, err)
	}
	back()
	d.stage()
	d.wantBegan(beganUnclean)
	check(t, d.device(), data, 0)
	d.unstage()
	d.remove()
}

// TestKernelLUNExported: the old node exports a cache of another LUN than the one that the new
// node finds at the volume's address.
func TestKernelLUNExported(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "lentunit", cached(volume.ModeWritethrough, 64*mib))
	v.stage()
	v.warmUp(1)
	v.unstage()
	back := v.replaceLUN()
	v.publishTo(v.b, otherName)
	v.stage()
	if e, err := v.b.Journal.Load(string(v.req.ID)); err != nil || e.Hydration != nil || !e.Cached() {
		t.Errorf("the cache is filled from %+v, %v", e.Hydration, err)
	}
	check(t, v.device(), aligned(16*mib), 0)
	v.unstage()
	mustPass(t, "repair", v.a.Repair(t.Context()))
	v.n = v.a
	back()
	v.remove()
	mustPass(t, "repair", v.b.Repair(t.Context()))
}
