package attach_test

import (
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

// newCheckedLife is newLife in pools that ask for checksums.
func newCheckedLife(t testing.TB, mode volume.CacheMode, d ...disaster) *life {
	w := newWorld(t, mode)
	w.checked = true
	l := newLifeIn(w, mode)
	l.next = d
	l.arm()
	return l
}

// TestChecked: caches with checksums are used again, and what the kernel keeps of them in memory goes with
// the volume.
func TestChecked(t *testing.T) {
	for _, mode := range cacheModes {
		t.Run(string(mode), func(t *testing.T) {
			l := newCheckedLife(t, mode)
			l.live()
			devices, err := l.a.kernel.Client(nil).Info(l.ctx, "")
			l.must("devices", err)
			if len(devices) > 0 {
				t.Errorf("left: %v", devices)
			}
			lvs, err := l.a.LVM.LVs(l.ctx, vgName)
			l.must("logical volumes", err)
			checked := 0
			for _, lv := range lvs {
				if lv.Checked {
					checked++
				}
			}
			if mode != volume.ModeNone && (checked != 1 || len(lvs) != 2) {
				t.Errorf("%d of %d logical volumes have checksums", checked, len(lvs))
			}
		})
	}
}

// TestKillChecked ends the plugin, or its node, before and after everything that it changes. What the
// layer had in memory goes with the node, and no map is ahead of its data (states.md, Checksums of
// what the SSD holds).
func TestKillChecked(t *testing.T) {
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		for _, power := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/power=%t", mode, power), func(t *testing.T) {
				t.Parallel()
				killEachOf(t, func(d ...disaster) *life { return newCheckedLife(t, mode, d...) }, power, (*life).live, nil,
					"after create "+vgName+".pvc-1.data", "after create "+vgName+".pvc-1.meta", "after remove "+vgName+".pvc-1.data")
			})
		}
	}
}
