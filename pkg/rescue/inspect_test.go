package rescue

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// noDevices is a machine that has no device of the volume.
type noDevices struct{ devmapper.Client }

func (noDevices) Info(context.Context, string) (map[string]devmapper.Info, error) { return nil, nil }

// inert activates nothing.
type inert struct {
	lvm.Client
	asked bool
}

var errInert = errors.New("not activated")

func (l *inert) Activate(context.Context, string, ...string) error {
	l.asked = true
	return errInert
}

// TestOneCopy: of a mirror that lacks an SSD nothing is activated, unless that is said; of anything else it
// need not be.
func TestOneCopy(t *testing.T) {
	cases := map[string]struct {
		segType, health string
		told            bool
		want            State
	}{
		"a mirror":             {"raid1", "", false, StateUnreadable},
		"an SSD is missing":    {"raid1", lvm.HealthPartial, false, StateOneCopy},
		"and that is known":    {"raid1", lvm.HealthPartial, true, StateUnreadable},
		"of stripes one lacks": {"striped", lvm.HealthPartial, false, StateUnreadable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := &inert{}
			r := &Rescuer{DM: noDevices{}, LVM: l, OneCopy: tc.told}
			tags := layout.Tags(volume.Fence{UID: "u", Generation: 3, Node: "a"}, volume.ModeWriteback)
			part := func(name string) lvm.LV {
				return lvm.LV{Name: name, Tags: tags, SegType: tc.segType, Health: tc.health}
			}
			c := r.inspect(t.Context(), layout.Find([]lvm.LV{part("v.data"), part("v.meta")}, "v"))
			if c.State != tc.want || l.asked != (tc.want == StateUnreadable) {
				t.Errorf("%s: %s; activated %t; want %s", c.State, c.Detail, l.asked, tc.want)
			}
		})
	}
}
