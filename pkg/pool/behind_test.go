package pool

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	here = iota
	missing
	failed
)

// copiesOn are the copies of a mirror on the SSDs a and b.
func copiesOn(a, b int) []lvm.Copy {
	out := []lvm.Copy{{LV: "v.data", PV: "A", Device: "/dev/a"}, {LV: "v.data", PV: "B", Device: "/dev/b"}}
	for i, is := range []int{a, b} {
		switch is {
		case missing:
			out[i].Missing, out[i].Device = true, ""
		case failed:
			out[i].Failed = true
		}
	}
	return out
}

// behind is a note of a mirror on a and b.
func behind(pvs ...string) []notedCopy {
	out := []notedCopy{{PV: "A", Device: "/dev/a"}, {PV: "B", Device: "/dev/b"}}
	for i := range out {
		for _, pv := range pvs {
			out[i].Behind = out[i].Behind || out[i].PV == pv
		}
	}
	return out
}

func raid1(active bool, health string, sync float64) lvm.LV {
	return lvm.LV{Name: "v.data", UUID: "lv-1", SegType: "raid1", Active: active, Health: health, SyncPercent: sync}
}

func TestNoted(t *testing.T) {
	unseen := behind("A")
	unseen[0].Device = ""
	cases := map[string]struct {
		before []notedCopy
		lv     lvm.LV
		copies []lvm.Copy
		want   []notedCopy
	}{
		"whole":                            {nil, raid1(true, "", 100), copiesOn(here, here), nil},
		"a device is missing":              {nil, raid1(true, lvm.HealthPartial, 100), copiesOn(missing, here), unseen},
		"it was noted where it was":        {behind("A"), raid1(true, lvm.HealthPartial, 100), copiesOn(missing, here), behind("A")},
		"the kernel has given one up":      {nil, raid1(true, lvm.HealthRefresh, 100), copiesOn(here, failed), behind("B")},
		"given up, and the other missing":  {behind("A"), raid1(true, lvm.HealthPartial, 100), copiesOn(failed, missing), behind("A")},
		"both missing":                     {behind("A"), raid1(true, lvm.HealthPartial, 100), copiesOn(missing, missing), behind("A")},
		"catching up":                      {behind("A"), raid1(true, "", 40), copiesOn(here, here), behind("A")},
		"being made":                       {nil, raid1(true, "", 40), copiesOn(here, here), nil},
		"how far is not known":             {behind("A"), raid1(true, "", -1), copiesOn(here, here), behind("A")},
		"lost again while it catches up":   {behind("A"), raid1(true, lvm.HealthRefresh, 40), copiesOn(failed, here), behind("A")},
		"other one lost while catching up": {behind("A"), raid1(true, lvm.HealthPartial, 40), copiesOn(here, missing), behind("A")},
		"caught up, then other one lost":   {behind("A"), raid1(true, lvm.HealthRefresh, 100), copiesOn(here, failed), behind("A", "B")},
		"whole again":                      {behind("A"), raid1(true, "", 100), copiesOn(here, here), nil},
		"a difference that nobody reads":   {behind("A"), raid1(true, "mismatches exist", 100), copiesOn(here, here), nil},
		"not active, and whole for LVM":    {behind("A"), raid1(false, "", -1), copiesOn(here, here), behind("A")},
		"not active, one missing":          {nil, raid1(false, lvm.HealthPartial, -1), copiesOn(missing, here), nil},
		"LVM says which one too late":      {behind("A"), raid1(true, lvm.HealthRefresh, 100), copiesOn(here, here), behind("A")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, noted(tc.before, tc.lv, tc.copies)); diff != "" {
				t.Errorf("noted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAdmit(t *testing.T) {
	off, on := raid1(false, "", -1), raid1(true, lvm.HealthRefresh, 100)
	first := behind("A")
	first[0].Device = ""
	second := []notedCopy{{PV: "B", Device: "/dev/b"}}
	cases := map[string]struct {
		before        []notedCopy
		lv            lvm.LV
		copies        []lvm.Copy
		after, wanted []notedCopy
	}{
		"both":                              {nil, off, copiesOn(here, here), nil, nil},
		"both, one behind":                  {behind("A"), off, copiesOn(here, here), behind("A"), nil},
		"one alone":                         {nil, off, copiesOn(missing, here), first, nil},
		"the one that went on, alone":       {behind("A"), off, copiesOn(missing, here), behind("A"), nil},
		"the one behind, alone":             {behind("A"), off, copiesOn(here, missing), behind("A"), second},
		"each behind the other":             {behind("A", "B"), off, copiesOn(here, missing), behind("A", "B"), []notedCopy{{PV: "B", Device: "/dev/b", Behind: true}}},
		"none":                              {behind("A"), off, copiesOn(missing, missing), behind("A"), nil},
		"active without the one behind":     {behind("A"), on, copiesOn(failed, here), behind("A"), nil},
		"active without a copy, not noted":  {nil, on, copiesOn(failed, here), nil, nil},
		"active by the one behind alone":    {behind("A"), on, copiesOn(here, failed), behind("A"), second},
		"active by the one behind, missing": {behind("A"), on, copiesOn(here, missing), behind("A"), second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			after, wanted := admit(tc.before, tc.lv, tc.copies)
			if diff := cmp.Diff(tc.after, after) + cmp.Diff(tc.wanted, wanted); diff != "" {
				t.Errorf("admitted (-want +got):\n%s", diff)
			}
		})
	}
}

// mirrored is an LVM with one logical volume, which is mirrored.
type mirrored struct {
	lvm.Client
	lv     lvm.LV
	copies []lvm.Copy
	asked  int
	// refreshed is what was noted when a copy was taken in again.
	refreshed func()
}

func (l *mirrored) LVs(context.Context, string) ([]lvm.LV, error) { return []lvm.LV{l.lv}, nil }

func (l *mirrored) Copies(context.Context, string) ([]lvm.Copy, error) {
	l.asked++
	return l.copies, nil
}

func (l *mirrored) Refresh(context.Context, string, ...string) error {
	l.refreshed()
	return nil
}

// TestBehindOutlivesPlugin: what is behind is known to the next plugin, until LVM and the kernel have seen
// all copies in sync.
func TestBehindOutlivesPlugin(t *testing.T) {
	dir := t.TempDir()
	l := &mirrored{}
	plugin := func() *Manager { return NewManager(Config{StateDir: dir}, l, nil, nil) }
	pass := func(lv lvm.LV, missingPVs int, copies []lvm.Copy) string {
		l.lv, l.copies = lv, copies
		return plugin().mirror(t.Context(), "vg", missingPVs, true)
	}
	admits := func(copies []lvm.Copy) error {
		l.copies = copies
		return plugin().Admit(t.Context(), "vg", raid1(false, "", -1))
	}
	note := func() string {
		b, err := os.ReadFile(plugin().behindFile())
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(b)
	}
	if degraded := pass(raid1(true, "", 100), 0, copiesOn(here, here)); degraded != "" || l.asked > 0 || note() != "" {
		t.Errorf("whole: degraded %q, %d questions, noted %q", degraded, l.asked, note())
	}
	l.refreshed = func() {
		if !strings.Contains(note(), `"pv":"A","device":"/dev/a","behind":true`) {
			t.Errorf("a copy is taken in again, and noted is %s", note())
		}
	}
	if degraded := pass(raid1(true, lvm.HealthRefresh, 100), 0, copiesOn(failed, here)); degraded == "" {
		t.Error("not degraded")
	}
	pass(raid1(false, lvm.HealthPartial, -1), 1, copiesOn(here, missing))
	err := admits(copiesOn(here, missing))
	if !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), "physical volume B, last seen as /dev/b") {
		t.Errorf("the copy that is behind, alone: %v", err)
	}
	for name, copies := range map[string][]lvm.Copy{"both": copiesOn(here, here), "the other one": copiesOn(missing, here)} {
		if err := admits(copies); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	pass(raid1(true, "", 99), 0, copiesOn(here, here))
	if err := admits(copiesOn(here, missing)); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("before it has caught up: %v", err)
	}
	if pass(raid1(true, "", 100), 0, copiesOn(here, here)); note() != "{}" {
		t.Errorf("whole again, and noted is %s", note())
	}
	if err := admits(copiesOn(here, missing)); err != nil {
		t.Errorf("one of two that were whole: %v", err)
	}
	if err := admits(copiesOn(missing, here)); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("the one that was left behind by an activation: %v", err)
	}
	if err := os.WriteFile(plugin().behindFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := admits(copiesOn(here, here)); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("with a note that cannot be read: %v", err)
	}
	if err := plugin().Admit(t.Context(), "vg", lvm.LV{Name: "s.data", SegType: "striped"}); err != nil {
		t.Errorf("what is no mirror, with such a note: %v", err)
	}
}
