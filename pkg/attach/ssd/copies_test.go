package ssd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

func raid1(name, action, health string) lvm.LV {
	return lvm.LV{Name: name, UUID: name, Active: true, Major: 254, Minor: 3, SegType: "raid1", SyncAction: action, SyncPercent: 40, Health: health}
}

// TestDecideCopies: only what the kernel has compared since the volume is active is believed, unless
// there is nothing to compare.
func TestDecideCopies(t *testing.T) {
	cases := map[string]struct {
		lv       lvm.LV
		compared bool
		want     copiesStep
	}{
		"none":                             {lvm.LV{}, false, copiesAgree},
		"one copy":                         {lvm.LV{SegType: "linear", SyncPercent: -1}, false, copiesAgree},
		"a mirror":                         {raid1("v", lvm.SyncIdle, ""), false, copiesCompare},
		"being compared":                   {raid1("v", lvm.SyncRepair, ""), true, copiesWait},
		"being compared by who was before": {raid1("v", lvm.SyncRepair, ""), false, copiesWait},
		"compared":                         {raid1("v", lvm.SyncIdle, ""), true, copiesAgree},
		"differences are counted":          {raid1("v", "check", ""), false, copiesWait},
		"differences were counted":         {raid1("v", lvm.SyncIdle, "mismatches exist"), false, copiesCompare},
		"a copy is made anew":              {raid1("v", "recover", ""), false, copiesWait},
		"one is given up":                  {raid1("v", lvm.SyncIdle, "refresh needed"), false, copiesAgree},
		"one is missing":                   {raid1("v", lvm.SyncIdle, "partial"), false, copiesAgree},
		"not known":                        {raid1("v", "", ""), true, copiesWait},
	}
	for name, tc := range cases {
		if got := decideCopies(tc.lv, tc.compared); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// slow is LVM with mirrors whose comparison takes as many looks as are left.
type slow struct {
	lvm.Client
	lvs    []lvm.LV
	left   int
	begun  []string
	refuse error
}

func (s *slow) LVs(context.Context, string) ([]lvm.LV, error) {
	if s.left--; s.left == 0 {
		s.set(lvm.SyncRepair, lvm.SyncIdle)
	}
	return slices.Clone(s.lvs), nil
}

func (s *slow) set(from, to string) {
	for i := range s.lvs {
		if s.lvs[i].SyncAction == from {
			s.lvs[i].SyncAction = to
		}
	}
}

func (s *slow) RepairCopies(_ context.Context, _, name string) error {
	if s.refuse != nil {
		return s.refuse
	}
	s.begun = append(s.begun, name)
	i := slices.IndexFunc(s.lvs, func(lv lvm.LV) bool { return lv.Name == name })
	s.lvs[i].SyncAction, s.left = lvm.SyncRepair, 3
	return nil
}

func mirrors() *slow {
	return &slow{lvs: []lvm.LV{raid1("v.data", lvm.SyncIdle, ""), raid1("v.meta", lvm.SyncIdle, "")}}
}

// TestAlike: map and data are compared once, one after the other.
func TestAlike(t *testing.T) {
	s := mirrors()
	g := New(Config{LVM: s, Pool: onVG{}, PollInterval: time.Microsecond})
	for range 2 {
		if err := g.alike(t.Context(), "v"); err != nil || !slices.Equal(s.begun, []string{"v.meta", "v.data"}) {
			t.Fatalf("%v, compared %v", err, s.begun)
		}
	}
	for i := range s.lvs {
		s.lvs[i].Minor = 9 // active again, after a stop
	}
	if err := g.alike(t.Context(), "v"); err != nil || len(s.begun) != 4 {
		t.Errorf("active again: %v, compared %v", err, s.begun)
	}
}

// TestAlikeWaits: a call does not wait for ever, and the next one begins nothing anew.
func TestAlikeWaits(t *testing.T) {
	s := mirrors()
	s.set(lvm.SyncIdle, lvm.SyncRepair)
	g := New(Config{LVM: s, Pool: onVG{}, PollInterval: time.Millisecond})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errComparing)
	defer cancel()
	err := g.alike(ctx, "v")
	if !errors.Is(err, volume.ErrUnavailable) || !strings.HasSuffix(err.Error(), "the two copies of the cache of volume v (v.meta), 40 %") {
		t.Errorf("while they are compared: %v", err)
	}
	short, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer end()
	if err := g.alike(short, "v"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's time has ended: %v", err)
	}
	s.set(lvm.SyncRepair, lvm.SyncIdle)
	if err := g.alike(t.Context(), "v"); err != nil || !slices.Equal(s.begun, []string{"v.data"}) {
		t.Errorf("after it: %v, compared %v", err, s.begun)
	}
}

// TestAlikeRefused: nothing is believed that could not be compared.
func TestAlikeRefused(t *testing.T) {
	s := mirrors()
	s.refuse = errStuck
	g := New(Config{LVM: s, Pool: onVG{}, PollInterval: time.Microsecond})
	if err := g.alike(t.Context(), "v"); !errors.Is(err, volume.ErrUnavailable) || !errors.Is(err, errStuck) {
		t.Errorf("refused: %v", err)
	}
	s.lvs = []lvm.LV{raid1("v.data", lvm.SyncIdle, "partial"), raid1("v.meta", lvm.SyncIdle, "partial")}
	if err := g.alike(t.Context(), "v"); err != nil {
		t.Errorf("one copy: %v", err)
	}
}
