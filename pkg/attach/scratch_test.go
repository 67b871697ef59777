package attach

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/scratch"
	"github.com/nearflash/nearflash/pkg/volume"
)

// scratchSSD has one device, and at most the scratch volume.
type scratchSSD struct {
	fewLVs
	free    int64
	made    []lvm.CreateSpec
	inUse   int // looks at which a process still has it open
	removes int
}

func (s *scratchSSD) LVs(context.Context, string) ([]lvm.LV, error) {
	out := slices.Clone(s.lvs)
	if len(out) > 0 && s.inUse > 0 {
		s.inUse--
		out[0].Open = true
	}
	return out, nil
}

func (s *scratchSSD) PVs(context.Context, []string) ([]lvm.PV, error) {
	return []lvm.PV{{Device: "/dev/a", VG: "vg", SizeBytes: 4 << 30, FreeBytes: s.free}}, nil
}

func (s *scratchSSD) VG(context.Context, string) (lvm.VG, error) {
	return lvm.VG{Name: "vg", UUID: "a-b"}, nil
}

func (s *scratchSSD) CreateLV(_ context.Context, spec lvm.CreateSpec) error {
	s.made = append(s.made, spec)
	s.lvs = []lvm.LV{{VG: "vg", Name: spec.Name, UUID: "c-d", SizeBytes: spec.SizeBytes, Tags: spec.Tags, Active: true, Major: 254, Minor: 7}}
	return nil
}

func (s *scratchSSD) RemoveLVs(_ context.Context, _ string, names ...string) error {
	s.removes++
	if len(names) == 1 && names[0] == ssd.ScratchLV {
		s.lvs = nil
	}
	return nil
}

type poolOf struct {
	readyPool
	v pool.View
}

func (p poolOf) View() pool.View { return p.v }

func scratchNode(t *testing.T, s *scratchSSD, v pool.View) *Attacher {
	t.Helper()
	entries, err := journal.Open[state.Entry](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{Node: "a", Boot: "b"}, Deps{DM: noDevices{}, FS: noMounts{}, LVM: s, Journal: entries, Records: cleanOwner{}, Pool: poolOf{v: v}, Locks: &keylock.Set{}})
}

func ready() pool.View {
	return pool.View{Ready: true, VG: "vg", Devices: []string{"/dev/a"}, ExtentBytes: 4 << 20, Stripes: 1}
}

// TestScratch: one measurement at a time has a logical volume, and Repair leaves it alone meanwhile.
func TestScratch(t *testing.T) {
	s := &scratchSSD{free: 3 << 30}
	s.lvs = []lvm.LV{{Name: ssd.ScratchLV, Tags: []string{ssd.ScratchTag}}} // a killed plugin left it
	a := scratchNode(t, s, ready())
	d, back, err := a.LendScratch(t.Context(), 8<<30)
	if err != nil {
		t.Fatal(err)
	}
	if want := (scratch.Device{Path: "/dev/dm-7", UUID: "LVM-abcd", Bytes: 1 << 30, Place: "on one SSD"}); d != want {
		t.Errorf("lent %+v, want %+v", d, want)
	}
	if len(s.made) != 1 || s.made[0].Name != "scratch" || s.made[0].Tags[0] != ssd.ScratchTag || s.removes != 1 {
		t.Errorf("made %+v after %d removals", s.made, s.removes)
	}
	if _, _, err := a.LendScratch(t.Context(), 1<<30); !errors.Is(err, volume.ErrBusy) {
		t.Errorf("a second one: %v", err)
	}
	if err := a.Repair(t.Context()); err != nil || len(s.lvs) != 1 {
		t.Errorf("repair: %v, left %v", err, s.lvs)
	}
	s.inUse = 2 // the process has just ended
	if err := back(t.Context()); err != nil || len(s.lvs) != 0 {
		t.Errorf("taken back: %v, left %v", err, s.lvs)
	}
}

// TestScratchLeft: what a killed plugin has left goes, once nobody has it open.
func TestScratchLeft(t *testing.T) {
	s := &scratchSSD{inUse: 2} // the pass sees it, and the removal
	s.lvs = []lvm.LV{{Name: ssd.ScratchLV, Tags: []string{ssd.ScratchTag}}}
	a := scratchNode(t, s, ready())
	if err := a.Repair(t.Context()); err != nil || len(s.lvs) != 1 || s.removes > 0 {
		t.Errorf("while a process has it open: %v, left %v", err, s.lvs)
	}
	if err := a.Repair(t.Context()); err != nil || len(s.lvs) != 0 {
		t.Errorf("afterwards: %v, left %v", err, s.lvs)
	}
}

// TestScratchOfOthers: a logical volume of that name which the plugin has not made stays.
func TestScratchOfOthers(t *testing.T) {
	s := &scratchSSD{}
	s.lvs = []lvm.LV{{Name: ssd.ScratchLV}}
	a := scratchNode(t, s, ready())
	if err := a.Repair(t.Context()); err != nil || len(s.lvs) != 1 || s.removes > 0 {
		t.Errorf("%v, left %v", err, s.lvs)
	}
}

func TestScratchRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pool.View, *scratchSSD)
		why    string
	}{
		"not ready": {func(v *pool.View, _ *scratchSSD) { v.Ready, v.Problem = false, "no SSD" }, "not ready: no SSD"},
		"degraded":  {func(v *pool.View, _ *scratchSSD) { v.Degraded = "a copy is gone" }, "degraded: a copy is gone"},
		"full":      {func(_ *pool.View, s *scratchSSD) { s.free = 100 << 20 }, "64Mi"},
		"still open": {func(_ *pool.View, s *scratchSSD) {
			s.lvs, s.inUse = []lvm.LV{{Name: ssd.ScratchLV, Tags: []string{ssd.ScratchTag}}}, 1
		}, "an earlier measurement"},
	} {
		t.Run(name, func(t *testing.T) {
			v, s := ready(), &scratchSSD{free: 3 << 30}
			c.change(&v, s)
			a := scratchNode(t, s, v)
			if _, _, err := a.LendScratch(t.Context(), 1<<30); err == nil || !strings.Contains(err.Error(), c.why) || errors.Is(err, volume.ErrBusy) {
				t.Errorf("got %v, want %q", err, c.why)
			}
			if len(s.made) > 0 {
				t.Errorf("made all the same: %+v", s.made)
			}
			// A refusal is no measurement.
			if !a.scratch.TryLock() {
				t.Error("nobody will ever measure again")
			}
		})
	}
}
