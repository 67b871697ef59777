package integrity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
)

// Blocks is what a client does to block devices themselves.
type Blocks interface {
	blockdev.Opener
	// ZeroHead zeroes the first n bytes of a device.
	ZeroHead(ctx context.Context, path string, n int64) error
}

// client is LVM with checksums. What has none is LVM's alone.
type client struct {
	lvm.Client
	dm     devmapper.Client
	blocks Blocks
	// apart leaves maps as LVM has them.
	apart bool
}

// New returns a client over another one.
func New(l lvm.Client, dm devmapper.Client, b Blocks) lvm.Client {
	return &client{Client: l, dm: dm, blocks: b}
}

// NewApart is New for a rescue, which writes no data and has the map's own device: its tools open
// the data as nobody may who has them below another device.
func NewApart(l lvm.Client, dm devmapper.Client, b Blocks) lvm.Client {
	return &client{Client: l, dm: dm, blocks: b, apart: true}
}

// group is the volumes of a group, and their devices by name; any tells that one of them has to do
// with checksums. Without any, devices are not looked for.
type group struct {
	volumes []volume
	devices map[string]devmapper.Info
	any     bool
	// apart is the client's.
	apart bool
}

func (c *client) look(ctx context.Context, vg string) (g group, err error) {
	g.apart = c.apart
	lvs, err := c.Client.LVs(ctx, vg)
	if err != nil {
		return g, err
	}
	for _, lv := range lvs {
		v, err := read(lv)
		if err != nil {
			return g, err
		}
		g.volumes, g.any = append(g.volumes, v), g.any || v.Checked
	}
	if g.any {
		g.devices, err = c.dm.Info(ctx, prefix(vg))
	}
	return g, err
}

// device is that of a volume, if it is live.
func (g group) device(v volume) (devmapper.Info, bool) {
	info, found := g.devices[Device(v.VG, v.Name)]
	return info, found && info.HasLive && !info.Suspended && v.Active && info.UUID == uuid(v.LV)
}

// find is the volume of a name.
func (g group) find(name string) (volume, bool) {
	i := slices.IndexFunc(g.volumes, func(v volume) bool { return v.Name == name })
	if i < 0 {
		return volume{}, false
	}
	return g.volumes[i], true
}

// layered tells a volume that has a device of its own: it has checksums, or has to flush one that has.
func (g group) layered(v volume) bool {
	below, found := g.find(v.flushes)
	return v.Checked || !g.apart && found && below.Checked
}

// LVs implements lvm.Client. A volume is as active as its device.
func (c *client) LVs(ctx context.Context, vg string) ([]lvm.LV, error) {
	g, err := c.look(ctx, vg)
	if err != nil {
		return nil, err
	}
	out := make([]lvm.LV, len(g.volumes))
	for i, v := range g.volumes {
		out[i] = g.shown(v)
	}
	return out, nil
}

// shown is a volume as others see it.
func (g group) shown(v volume) lvm.LV {
	lv := v.LV
	if v.Checked {
		lv.SizeBytes, lv.RawBytes = v.bytes, v.SizeBytes
	}
	if !g.layered(v) {
		if join, joined := g.device(v); joined && v.flushes != "" && join.OpenCount == 0 {
			lv.Open = false // by its own device alone, which nobody has open
		}
		return lv
	}
	dev, live := g.device(v)
	if !live || v.fresh {
		lv.Active, lv.Major, lv.Minor = false, -1, -1
		return lv
	}
	lv.Major, lv.Minor = dev.Major, dev.Minor
	openers := dev.OpenCount
	for _, above := range g.volumes {
		if _, joined := g.device(above); joined && above.flushes == v.Name {
			openers-- // by the map, whoever has that open
			lv.Active = lv.Active && !g.apart
		}
	}
	lv.Open = openers > 0
	return lv
}

// CreateLV implements lvm.Client.
func (c *client) CreateLV(ctx context.Context, spec lvm.CreateSpec) error {
	if spec.Checked == 0 && spec.Flushes == "" {
		return c.Client.CreateLV(ctx, spec)
	}
	if spec.Checked > 0 && spec.Mirror {
		// A mirror is made without a copy of what nobody has written (lvm.Client), so that its two copies
		// differ there, and one checksum cannot be right for both.
		return fmt.Errorf("logical volume %s/%s: checksums do not go with two copies", spec.VG, spec.Name)
	}
	if spec.Checked > 0 {
		spec.Tags = append(hidden(spec.Tags), newTag(spec.Checked))
	} else {
		spec.Tags = append(slices.Clone(spec.Tags), tagFlushes+spec.Flushes)
	}
	if err := c.Client.CreateLV(ctx, spec); err != nil {
		return err
	}
	return c.lay(ctx, spec.VG, spec.Name)
}

// Activate implements lvm.Client.
func (c *client) Activate(ctx context.Context, vg string, names ...string) error {
	g, err := c.look(ctx, vg)
	if err != nil {
		return err
	}
	if !g.any {
		return c.Client.Activate(ctx, vg, names...)
	}
	all := slices.Clone(names)
	for _, name := range names {
		if v, _ := g.find(name); v.flushes != "" && !slices.Contains(all, v.flushes) && g.layered(v) {
			all = append(all, v.flushes)
		}
	}
	if c.apart {
		if err := c.down(ctx, vg, names); err != nil {
			return err
		}
	}
	if err := c.Client.Activate(ctx, vg, all...); err != nil {
		return err
	}
	return c.lay(ctx, vg, all...)
}

// lay makes the devices of volumes that LVM has active, and those of the maps that flush them.
func (c *client) lay(ctx context.Context, vg string, names ...string) error {
	g, err := c.look(ctx, vg)
	if err != nil {
		return err
	}
	for _, v := range g.volumes {
		if v.Checked && v.Active && slices.Contains(names, v.Name) {
			if err := c.layLayer(ctx, g, v); err != nil {
				return fmt.Errorf("checksums of logical volume %s/%s: %w", vg, v.Name, err)
			}
		}
	}
	if g, err = c.look(ctx, vg); err != nil || c.apart {
		return err
	}
	for _, v := range g.volumes {
		if v.flushes == "" || !v.Active || !slices.Contains(names, v.Name) && !slices.Contains(names, v.flushes) {
			continue
		}
		if err := c.layJoin(ctx, g, v); err != nil {
			return fmt.Errorf("device of logical volume %s/%s: %w", vg, v.Name, err)
		}
	}
	return nil
}

// headBytes covers the kernel's superblock with a margin.
const headBytes = 64 << 10

// layLayer makes the device with checksums, and formats it first if nobody has.
func (c *client) layLayer(ctx context.Context, g group, v volume) error {
	if _, live := g.device(v); live && !v.fresh {
		return nil
	}
	name := Device(v.VG, v.Name)
	if err := c.dm.Remove(ctx, name); err != nil {
		return err
	}
	if v.fresh {
		if err := c.blocks.ZeroHead(ctx, v.DevPath(), headBytes); err != nil {
			return err
		}
	}
	dev, err := c.dm.Create(ctx, name, uuid(v.LV), v.layer())
	if err != nil || !v.fresh {
		return err
	}
	if err := c.Client.ChangeTags(ctx, v.VG, []string{checkedTag(v.bytes)}, []string{newTag(v.bytes)}, v.Name); err != nil {
		return err
	}
	// LVM does not flush what it writes. Without the tag the layer would be formatted again.
	return blockdev.Sync(c.blocks, dev.DevPath())
}

// layJoin makes the device of a map.
func (c *client) layJoin(ctx context.Context, g group, v volume) error {
	if _, live := g.device(v); live {
		return nil
	}
	below, found := g.find(v.flushes)
	layer, live := g.device(below)
	if !found || !below.Checked || !live {
		return nil // it comes with the other
	}
	name := Device(v.VG, v.Name)
	if err := c.dm.Remove(ctx, name); err != nil {
		return err
	}
	_, err := c.dm.Create(ctx, name, uuid(v.LV), v.join(layer, uint64(below.bytes)/devmapper.SectorSize))
	return err
}

// ExtendLV implements lvm.Client. The tag comes last: by what it says the step is repeated.
func (c *client) ExtendLV(ctx context.Context, vg, name string, size int64) error {
	g, err := c.look(ctx, vg)
	if err != nil {
		return err
	}
	v, _ := g.find(name)
	if !v.Checked {
		return c.Client.ExtendLV(ctx, vg, name, size)
	}
	size = size / devmapper.SectorSize * devmapper.SectorSize
	if v.bytes >= size {
		return nil
	}
	dev, live := g.device(v)
	if !live {
		return fmt.Errorf("extend logical volume %s/%s: its checksums are not active", vg, name)
	}
	if err := c.Client.ExtendLV(ctx, vg, name, RawBytes(size)); err != nil {
		return err
	}
	before := v.bytes
	v.bytes = size
	if err := c.reload(ctx, dev.Name, v.layer()); err != nil {
		return fmt.Errorf("extend the checksums of logical volume %s/%s: %w", vg, name, err)
	}
	return c.Client.ChangeTags(ctx, vg, []string{checkedTag(size)}, []string{checkedTag(before)}, name)
}

// reload gives a live device a longer table. Resume suspends, swaps and resumes in one call.
func (c *client) reload(ctx context.Context, name string, t devmapper.Table) error {
	now, err := c.dm.Table(ctx, name)
	if err != nil || now.Sectors() >= t.Sectors() {
		return err
	}
	if err := c.dm.Load(ctx, name, t); err != nil {
		return err
	}
	return c.dm.Resume(ctx, name)
}

// ChangeTags implements lvm.Client.
func (c *client) ChangeTags(ctx context.Context, vg string, add, remove []string, names ...string) error {
	named := func(t string) bool { return strings.HasPrefix(t, layout.TagUID) }
	if !slices.ContainsFunc(add, named) && !slices.ContainsFunc(remove, named) {
		return c.Client.ChangeTags(ctx, vg, add, remove, names...)
	}
	g, err := c.look(ctx, vg)
	if err != nil {
		return err
	}
	var plain, checked []string
	for _, name := range names {
		if v, _ := g.find(name); v.Checked {
			checked = append(checked, name)
		} else {
			plain = append(plain, name)
		}
	}
	if len(checked) > 0 {
		err = c.Client.ChangeTags(ctx, vg, hidden(add), hidden(remove), checked...)
	}
	if err == nil && len(plain) > 0 {
		err = c.Client.ChangeTags(ctx, vg, add, remove, plain...)
	}
	return err
}

// Rest implements lvm.Client.
func (c *client) Rest(ctx context.Context, vg string, names ...string) error {
	devices, err := c.dm.Info(ctx, prefix(vg))
	if err != nil || len(devices) == 0 {
		return err
	}
	return c.down(ctx, vg, names)
}

// RemoveLVs implements lvm.Client.
func (c *client) RemoveLVs(ctx context.Context, vg string, names ...string) error {
	if err := c.Rest(ctx, vg, names...); err != nil {
		return err
	}
	return c.Client.RemoveLVs(ctx, vg, names...)
}

// down removes devices: those of maps before what they flush.
func (c *client) down(ctx context.Context, vg string, names []string) error {
	g, err := c.look(ctx, vg)
	if errors.Is(err, lvm.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var joins, layers []string
	for _, v := range g.volumes {
		name := Device(vg, v.Name)
		switch _, exists := g.devices[name]; {
		case !exists:
		case v.flushes != "" && (slices.Contains(names, v.Name) || slices.Contains(names, v.flushes)):
			joins = append(joins, name)
		case v.flushes == "" && slices.Contains(names, v.Name):
			layers = append(layers, name)
		}
	}
	for _, name := range slices.Concat(joins, layers) {
		err := c.dm.Remove(ctx, name)
		if errors.Is(err, devmapper.ErrBusy) {
			return fmt.Errorf("%w: %s: %w", lvm.ErrBusy, name, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
