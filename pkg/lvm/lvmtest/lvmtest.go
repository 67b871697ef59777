// Package lvmtest is LVM in memory, on the disks of a blockdevtest.Machine. Volume groups,
// logical volumes, their tags (but see VolatileTags) and contents are there after a power
// loss; what is active is not. A logical volume has a disk of its own: only how much it takes
// of which physical volume is simulated, not where it lies.
//
// The conformance suite of this package holds it to the real one.
package lvmtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/lvm"
)

// extentBytes is what LVM takes by default.
const extentBytes = 4 << 20

// LVM is what the disks of one machine hold.
type LVM struct {
	machine *blockdevtest.Machine
	mu      sync.Mutex
	// pvs are by device, and taken says how many bytes are in use.
	pvs    map[string]*pv
	groups map[string][]*volume
	// freed are the disks of volumes that were removed. New ones get them with what they
	// held: LVM zeroes nothing.
	freed []*blockdevtest.Disk
	ids   int
	// volatile is VolatileTags.
	volatile bool
}

type pv struct {
	uuid, vg string
	size     int64
	taken    int64
	// lost is true while the machine does not have the device.
	lost bool
}

type volume struct {
	lv   lvm.LV
	disk *blockdevtest.Disk
	// on is how much it takes of each device.
	on map[string]int64
	// stable are the tags that a power loss leaves.
	stable []string
	copies
}

// New returns the LVM of a machine that has none.
func New(m *blockdevtest.Machine) *LVM {
	return &LVM{machine: m, pvs: map[string]*pv{}, groups: map[string][]*volume{}}
}

// VolatileTags has a power loss take changes of tags, unless a logical volume was flushed
// since, or LVM has written its metadata for something else: it does not flush the SSD's own
// cache.
func (l *LVM) VolatileTags() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.volatile = true
}

// PowerLoss makes everything inactive.
func (l *LVM) PowerLoss() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.all() {
		l.deactivate(v)
		v.looks = 0
		if l.volatile {
			v.lv.Tags = v.stable
		}
	}
}

func (l *LVM) all() []*volume { return slices.Concat(slices.Collect(maps.Values(l.groups))...) }

// flushed is called after a flush of a logical volume.
func (l *LVM) flushed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
}

// settle has a power loss leave the tags of now.
func (l *LVM) settle() {
	for _, v := range l.all() {
		v.stable = slices.Clone(v.lv.Tags)
	}
}

func (l *LVM) deactivate(v *volume) {
	if v.lv.Active {
		l.machine.Remove(v.lv.DevNo())
	}
	v.lv.Active, v.lv.Major, v.lv.Minor = false, -1, -1
}

func (l *LVM) activate(v *volume) {
	if !v.lv.Active {
		v.lv.Active = true
		v.lv.Major, v.lv.Minor = l.machine.AddDM(v.disk)
	}
}

// Client is LVM as one process of the machine sees it.
func (l *LVM) Client(step blockdevtest.Step) lvm.Client { return &client{l: l, step: step} }

type client struct {
	l    *LVM
	step blockdevtest.Step
	// devices are those of SetDevices; mu is that of the LVM.
	devices []string
}

// SetDevices implements lvm.Client.
func (c *client) SetDevices(paths []string) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.devices = slices.Clone(paths)
}

func (c *client) change(ctx context.Context, what string, do func() error) error {
	return c.step.Change(ctx, what, func() error {
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		return do()
	})
}

func (c *client) query(ctx context.Context, what string, do func() error) error {
	if err := c.step.Query(ctx, what); err != nil {
		return err
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return do()
}

// group returns the physical volumes of a group.
func (c *client) group(name string) ([]string, error) {
	if len(c.devices) == 0 {
		return nil, lvm.ErrNoDevices
	}
	var out []string
	for _, device := range c.devices {
		if p := c.l.pvs[device]; p != nil && p.vg == name {
			out = append(out, device)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: volume group %s", lvm.ErrNotFound, name)
	}
	return out, nil
}

func (c *client) find(vg, name string) (*volume, error) {
	if _, err := c.group(vg); err != nil {
		return nil, err
	}
	for _, v := range c.l.groups[vg] {
		if v.lv.Name == name {
			return v, nil
		}
	}
	return nil, fmt.Errorf("%w: logical volume %s/%s", lvm.ErrNotFound, vg, name)
}

// each does something with all of several logical volumes, or with none if one is missing.
func (c *client) each(vg string, names []string, do func(*volume)) error {
	var found []*volume
	for _, name := range names {
		v, err := c.find(vg, name)
		if err != nil {
			return err
		}
		found = append(found, v)
	}
	for _, v := range found {
		do(v)
	}
	return nil
}

func (l *LVM) newUUID(kind string) string {
	l.ids++
	return fmt.Sprintf("%s-%06d", kind, l.ids)
}

// PVs implements lvm.Client.
func (c *client) PVs(ctx context.Context, devices []string) (out []lvm.PV, err error) {
	err = c.query(ctx, "pvs", func() error {
		for _, device := range devices {
			if p := c.l.pvs[device]; p != nil && !p.lost {
				out = append(out, lvm.PV{Device: device, UUID: p.uuid, VG: p.vg, SizeBytes: p.size, FreeBytes: p.size - p.taken})
			}
		}
		return nil
	})
	return out, err
}

// Blank implements lvm.Client.
func (c *client) Blank(ctx context.Context, device string) (blank bool, why string, err error) {
	err = c.query(ctx, "blank "+device, func() error {
		if c.l.pvs[device] != nil {
			why = "it is a physical volume"
			return nil
		}
		d, err := c.l.machine.Device(device)
		if err != nil {
			return err
		}
		head := make([]byte, 4096)
		if _, err := d.ReadAt(head, 0); err != nil {
			return err
		}
		if blank = !slices.ContainsFunc(head, func(b byte) bool { return b != 0 }); !blank {
			why = "it is not blank"
		}
		return nil
	})
	return blank, why, err
}

// CreateVG implements lvm.Client.
func (c *client) CreateVG(ctx context.Context, name string, devices []string) error {
	return c.change(ctx, "vgcreate "+name, func() error {
		if _, err := c.group(name); err == nil {
			return fmt.Errorf("%w: volume group %s", lvm.ErrExists, name)
		}
		return c.l.join(name, devices)
	})
}

// ExtendVG implements lvm.Client.
func (c *client) ExtendVG(ctx context.Context, name string, devices []string) error {
	return c.change(ctx, "vgextend "+name, func() error {
		if _, err := c.group(name); err != nil {
			return err
		}
		return c.l.join(name, devices)
	})
}

func (l *LVM) join(name string, devices []string) error {
	made := map[string]*pv{}
	for _, device := range devices {
		d, err := l.machine.Device(device)
		if err != nil {
			return err
		}
		if l.pvs[device] != nil {
			return fmt.Errorf("device %s is a physical volume of group %q", device, l.pvs[device].vg)
		}
		// LVM keeps the first MiB for itself.
		made[device] = &pv{uuid: l.newUUID("pv"), vg: name, size: (d.Size() - 1<<20) / extentBytes * extentBytes}
	}
	maps.Copy(l.pvs, made)
	return nil
}

// VG implements lvm.Client.
func (c *client) VG(ctx context.Context, name string) (g lvm.VG, err error) {
	err = c.query(ctx, "vgs "+name, func() error {
		devices, err := c.group(name)
		if err != nil {
			return err
		}
		g = lvm.VG{Name: name, UUID: "vg-" + name, ExtentBytes: extentBytes, PVCount: len(devices), LVCount: len(c.l.groups[name])}
		for _, device := range devices {
			p := c.l.pvs[device]
			if p.lost {
				g.MissingPVs++
			}
			g.SizeBytes, g.FreeBytes = g.SizeBytes+p.size, g.FreeBytes+p.size-p.taken
		}
		return nil
	})
	return g, err
}

// LVs implements lvm.Client.
func (c *client) LVs(ctx context.Context, vg string) (out []lvm.LV, err error) {
	err = c.query(ctx, "lvs "+vg, func() error {
		if _, err := c.group(vg); err != nil {
			return err
		}
		for _, v := range c.l.groups[vg] {
			lv := v.lv
			lv.Tags = slices.Clone(lv.Tags)
			v.look(&lv)
			if c.l.lost(v) {
				lv.Health = "partial"
			}
			lv.Open = lv.Active && c.l.machine.Openers(lv.DevNo()) > 0
			out = append(out, lv)
		}
		return nil
	})
	return out, err
}

// CreateLV implements lvm.Client.
func (c *client) CreateLV(ctx context.Context, spec lvm.CreateSpec) error {
	return c.change(ctx, "lvcreate "+spec.Name, func() error {
		devices, err := c.group(spec.VG)
		if err != nil {
			return err
		}
		if _, err := c.find(spec.VG, spec.Name); err == nil {
			return fmt.Errorf("%w: logical volume %s/%s", lvm.ErrExists, spec.VG, spec.Name)
		}
		if len(spec.Devices) > 0 {
			devices = spec.Devices
		}
		v := &volume{on: map[string]int64{}, lv: lvm.LV{
			VG: spec.VG, Name: spec.Name, UUID: c.l.newUUID("lv"), Tags: slices.Clone(spec.Tags), Major: -1, Minor: -1, SegType: "linear", SyncPercent: -1,
		}}
		switch {
		case spec.Mirror:
			v.lv.SegType, v.lv.SyncPercent = "raid1", 100
		case spec.Stripes > 1:
			v.lv.SegType = "striped"
		}
		if err := c.l.grow(v, devices, max(spec.Stripes, 1), spec.SizeBytes); err != nil {
			return err
		}
		c.l.groups[spec.VG] = append(c.l.groups[spec.VG], v)
		c.l.settle()
		c.l.activate(v)
		return nil
	})
}

// grow takes what is missing of a size from devices.
func (l *LVM) grow(v *volume, devices []string, stripes int, size int64) error {
	unit := int64(extentBytes)
	copies := 1
	if v.lv.SegType == "raid1" {
		copies = 2
	} else {
		unit *= int64(stripes)
	}
	size = (size + unit - 1) / unit * unit
	more := size - v.lv.SizeBytes
	if more <= 0 {
		return nil
	}
	parts := max(stripes, copies)
	each := more
	if copies == 1 {
		each = more / int64(stripes)
	}
	chosen := l.choose(v, devices, parts, each)
	if chosen == nil {
		return fmt.Errorf("%w: %d bytes on %d of %v", lvm.ErrNoSpace, each, parts, devices)
	}
	for device, n := range chosen {
		l.pvs[device].taken += n
		v.on[device] += n
	}
	v.lv.SizeBytes = size
	if v.disk == nil {
		v.disk = l.newDisk(size)
	}
	v.disk.Grow(size)
	return nil
}

// newDisk is one that was used before, if there is one that is not too large.
func (l *LVM) newDisk(size int64) *blockdevtest.Disk {
	i := slices.IndexFunc(l.freed, func(d *blockdevtest.Disk) bool { return d.Size() <= size })
	if i < 0 {
		d := blockdevtest.NewDisk(size)
		d.OnFlush(l.flushed)
		return d
	}
	d := l.freed[i]
	l.freed = slices.Delete(l.freed, i, i+1)
	return d
}

// choose finds parts of each bytes on as many devices, or one part on whatever has room.
func (l *LVM) choose(v *volume, devices []string, parts int, each int64) map[string]int64 {
	if len(v.on) > 0 {
		devices = slices.Collect(maps.Keys(v.on))
	}
	room := func(device string) int64 { return l.pvs[device].size - l.pvs[device].taken }
	sorted := slices.SortedFunc(slices.Values(devices), func(a, b string) int {
		return int(room(b)/extentBytes-room(a)/extentBytes)*2 + strings.Compare(a, b)
	})
	out := map[string]int64{}
	if parts > 1 {
		for _, device := range sorted {
			if len(out) < parts && room(device) >= each {
				out[device] = each
			}
		}
		if len(out) < parts {
			return nil
		}
		return out
	}
	for _, device := range sorted {
		n := min(each, room(device))
		if n > 0 {
			out[device], each = n, each-n
		}
	}
	if each > 0 {
		return nil
	}
	return out
}

// Activate implements lvm.Client.
func (c *client) Activate(ctx context.Context, vg string, names ...string) error {
	return c.change(ctx, "activate "+strings.Join(names, " "), func() error { return c.each(vg, names, c.l.activate) })
}

// ExtendLV implements lvm.Client.
func (c *client) ExtendLV(ctx context.Context, vg, name string, sizeBytes int64) error {
	return c.change(ctx, "lvextend "+name, func() error {
		v, err := c.find(vg, name)
		if err != nil {
			return err
		}
		stripes := 1
		if v.lv.SegType == "striped" {
			stripes = len(v.on)
		}
		defer c.l.settle()
		return c.l.grow(v, slices.Collect(maps.Keys(v.on)), stripes, sizeBytes)
	})
}

// Refresh implements lvm.Client.
func (c *client) Refresh(ctx context.Context, vg string, names ...string) error {
	return c.change(ctx, "refresh "+strings.Join(names, " "), func() error { return c.each(vg, names, func(*volume) {}) })
}

// ChangeTags implements lvm.Client.
func (c *client) ChangeTags(ctx context.Context, vg string, add, remove []string, names ...string) error {
	return c.change(ctx, "tags of "+strings.Join(names, " "), func() error {
		return c.each(vg, names, func(v *volume) {
			tags := slices.Compact(slices.Sorted(slices.Values(append(v.lv.Tags, add...))))
			v.lv.Tags = slices.DeleteFunc(tags, func(t string) bool { return slices.Contains(remove, t) })
		})
	})
}

// Rest implements lvm.Client.
func (c *client) Rest(context.Context, string, ...string) error { return nil }

// RemoveLVs implements lvm.Client. Each is removed by itself, as lvremove does it: one that
// is open does not keep those before it.
func (c *client) RemoveLVs(ctx context.Context, vg string, names ...string) error {
	for _, name := range names {
		if err := c.change(ctx, "lvremove "+name, func() error { return c.remove(vg, name) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) remove(vg, name string) error {
	v, err := c.find(vg, name)
	switch {
	case errors.Is(err, lvm.ErrNotFound):
		return nil
	case err != nil:
		return err
	case v.lv.Active && c.l.machine.Openers(v.lv.DevNo()) > 0:
		return fmt.Errorf("%w: logical volume %s/%s", lvm.ErrBusy, vg, name)
	}
	for device, n := range v.on {
		c.l.pvs[device].taken -= n
	}
	c.l.deactivate(v)
	c.l.freed = append(c.l.freed, v.disk)
	defer c.l.settle()
	c.l.groups[vg] = slices.DeleteFunc(c.l.groups[vg], func(o *volume) bool { return o == v })
	return nil
}
