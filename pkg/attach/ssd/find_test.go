package ssd

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// stuck has the logical volumes of v, which cannot be activated.
type stuck struct{ lvm.Client }

var errStuck = errors.New("device not found")

func (stuck) LVs(context.Context, string) ([]lvm.LV, error) {
	tags := layout.Tags(volume.Fence{UID: "u", Generation: 7, Node: "n"}, volume.ModeWriteback)
	return []lvm.LV{{Name: "v.data", Tags: tags}, {Name: "v.meta", Tags: tags}}, nil
}

func (stuck) Activate(context.Context, string, ...string) error { return errStuck }

type onVG struct{}

func (onVG) View() pool.View { return pool.View{Ready: true, VG: "vg"} }

// TestFindInactive: what the tags say of a cache is known also if nothing else can be.
func TestFindInactive(t *testing.T) {
	c, err := New(Config{LVM: stuck{}, Pool: onVG{}}).Find(t.Context(), "v")
	if !errors.Is(err, errStuck) || !c.Facts.Inactive || !c.Facts.Whole || c.Facts.Mode != volume.ModeWriteback || c.Facts.Fence.Generation != 7 || c.Facts.Stopped {
		t.Errorf("%+v, %v", c.Facts, err)
	}
}

// halves are the logical volumes of v, active or not.
type halves struct {
	lvm.Client
	active, activated bool
}

func (h *halves) LVs(ctx context.Context, vg string) ([]lvm.LV, error) {
	lvs, err := stuck{}.LVs(ctx, vg)
	for i := range lvs {
		lvs[i].Active = h.active
	}
	return lvs, err
}

func (h *halves) Activate(context.Context, string, ...string) error {
	h.active, h.activated = true, true
	return nil
}

// admits refuses the first look, or the second.
type admits struct{ looks, refused int }

func (a *admits) Admit(context.Context, string, ...lvm.LV) error {
	if a.looks++; a.looks == a.refused {
		return volume.ErrUnavailable
	}
	return nil
}

// TestFindBehind: copies that are behind are not activated alone, nor believed if they are active, or have
// become so.
func TestFindBehind(t *testing.T) {
	for name, tc := range map[string]struct {
		active    bool
		refused   int
		activated bool
	}{
		"not active":      {refused: 1},
		"active":          {active: true, refused: 1},
		"activated alone": {refused: 2, activated: true},
	} {
		l := &halves{active: tc.active}
		c, err := New(Config{LVM: l, Pool: onVG{}, Copies: &admits{refused: tc.refused}}).Find(t.Context(), "v")
		if !errors.Is(err, volume.ErrUnavailable) || !c.Facts.Inactive || !c.Facts.Whole || l.activated != tc.activated {
			t.Errorf("%s: %+v, activated %t, %v", name, c.Facts, l.activated, err)
		}
	}
	l := &halves{}
	g := New(Config{LVM: l, Pool: onVG{}, Copies: &admits{refused: 1}})
	if _, err := g.ActivateData(t.Context(), "vg", "v"); !errors.Is(err, volume.ErrUnavailable) || l.activated {
		t.Errorf("prewarmed data: activated %t, %v", l.activated, err)
	}
}
