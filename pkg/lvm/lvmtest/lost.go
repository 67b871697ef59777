package lvmtest

import (
	"context"
	"maps"
	"slices"

	"github.com/nearflash/nearflash/pkg/lvm"
)

// Lose takes the device of a physical volume from the machine, or gives it back. What the copies of a
// mirror hold is not simulated: there is one content.
func (l *LVM) Lose(device string, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pvs[device].lost = lost
}

// lost reports whether a volume has a part on a device that is not there.
func (l *LVM) lost(v *volume) bool {
	for device := range v.on {
		if l.pvs[device].lost {
			return true
		}
	}
	return false
}

// Copies implements lvm.Client.
func (c *client) Copies(ctx context.Context, vg string) (out []lvm.Copy, err error) {
	err = c.query(ctx, "copies of "+vg, func() error {
		if _, err := c.group(vg); err != nil {
			return err
		}
		for _, v := range c.l.groups[vg] {
			if !v.lv.Mirrored() {
				continue
			}
			for _, device := range slices.Sorted(maps.Keys(v.on)) {
				p := c.l.pvs[device]
				copied := lvm.Copy{LV: v.lv.Name, PV: p.uuid, Device: device, Missing: p.lost}
				if p.lost {
					copied.Device = ""
				}
				out = append(out, copied)
			}
		}
		return nil
	})
	return out, err
}
