package lvmtest

import (
	"context"
	"fmt"
	"slices"

	"github.com/nearflash/nearflash/pkg/lvm"
)

// ReduceVG implements lvm.Client.
func (c *client) ReduceVG(ctx context.Context, name, device string) error {
	return c.change(ctx, "vgreduce "+device, func() error {
		devices, err := c.group(name)
		switch {
		case err != nil:
			return err
		case !slices.Contains(devices, device):
			return fmt.Errorf("%w: %s in volume group %s", lvm.ErrNotFound, device, name)
		case c.l.pvs[device].taken > 0:
			return fmt.Errorf("%w: %s", lvm.ErrBusy, device)
		case len(devices) == 1:
			return fmt.Errorf("%s is the last device of volume group %s", device, name)
		}
		c.l.pvs[device].vg = ""
		return nil
	})
}

// RemoveVG implements lvm.Client.
func (c *client) RemoveVG(ctx context.Context, name string) error {
	return c.change(ctx, "vgremove "+name, func() error {
		devices, err := c.group(name)
		switch {
		case err != nil:
			return err
		case len(c.l.groups[name]) > 0:
			return fmt.Errorf("volume group %s has logical volumes", name)
		}
		for _, device := range devices {
			c.l.pvs[device].vg = ""
		}
		return nil
	})
}

// RemovePV implements lvm.Client.
func (c *client) RemovePV(ctx context.Context, device string) error {
	return c.change(ctx, "pvremove "+device, func() error {
		switch p := c.l.pvs[device]; {
		case p == nil:
			return fmt.Errorf("%s is no physical volume", device)
		case p.vg != "":
			return fmt.Errorf("%s is of volume group %s", device, p.vg)
		}
		delete(c.l.pvs, device)
		return nil
	})
}

// OnDevices implements lvm.Client.
func (c *client) OnDevices(ctx context.Context, vg string) (out map[string][]string, err error) {
	err = c.query(ctx, "lvs on "+vg, func() error {
		if _, err := c.group(vg); err != nil {
			return err
		}
		out = map[string][]string{}
		for _, v := range c.l.groups[vg] {
			for device, n := range v.on {
				if n > 0 {
					out[device] = append(out[device], v.lv.Name)
				}
			}
		}
		for device := range out {
			slices.Sort(out[device])
		}
		return nil
	})
	return out, err
}
