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
