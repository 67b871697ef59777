package lvmtest

import (
	"errors"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/lvm"
)

// Rig is an LVM and what it can be tried on.
type Rig struct {
	Client lvm.Client
	// Devices are two blank ones, of 64 MiB at least.
	Devices []string
	// Open opens a block device.
	Open func(path string) (blockdev.File, error)
}

const (
	group = "conform"
	mib   = 1 << 20
)

// Conformance holds an LVM to what this project's code relies on. It leaves the volume
// group "conform" on the devices, without volumes.
func Conformance(t *testing.T, r Rig) {
	c := conform{t, r}
	for _, step := range []struct {
		name string
		do   func(conform)
	}{
		{"Groups", conform.groups}, {"Volumes", conform.volumes}, {"Tags", conform.tags}, {"Room", conform.room}, {"Busy", conform.busy},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(conform{t, r}) }) {
			c.Fatalf("what comes after %s rests on it", step.name)
		}
	}
}

type conform struct {
	*testing.T
	Rig
}

func (c conform) must(what string, err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", what, err)
	}
}

func (c conform) want(what string, err, kind error) {
	c.Helper()
	if !errors.Is(err, kind) {
		c.Errorf("%s: %v, want %v", what, err, kind)
	}
}

func (c conform) lv(name string) lvm.LV {
	c.Helper()
	list, err := c.Client.LVs(c.Context(), group)
	c.must("list", err)
	i := slices.IndexFunc(list, func(v lvm.LV) bool { return v.Name == name })
	if i < 0 {
		c.Fatalf("no logical volume %s among %v", name, list)
	}
	return list[i]
}

func (c conform) create(name string, size int64, change ...func(*lvm.CreateSpec)) error {
	spec := lvm.CreateSpec{VG: group, Name: name, SizeBytes: size, Tags: []string{"b", "a"}}
	for _, f := range change {
		f(&spec)
	}
	return c.Client.CreateLV(c.Context(), spec)
}

func (c conform) groups() {
	ctx := c.Context()
	_, err := c.Client.LVs(ctx, group)
	c.want("no devices", err, lvm.ErrNoDevices)
	c.Client.SetDevices(c.Devices)
	_, err = c.Client.VG(ctx, group)
	c.want("no group", err, lvm.ErrNotFound)
	_, err = c.Client.LVs(ctx, group)
	c.want("volumes of no group", err, lvm.ErrNotFound)
	c.must("remove from no group", c.Client.RemoveLVs(ctx, group, "x"))
	c.want("extend no group", c.Client.ExtendVG(ctx, group, c.Devices[1:]), lvm.ErrNotFound)
	blank, why, err := c.Client.Blank(ctx, c.Devices[0])
	c.must("blank", err)
	if !blank {
		c.Fatalf("%s is not blank: %s", c.Devices[0], why)
	}
	c.must("create", c.Client.CreateVG(ctx, group, c.Devices[:1]))
	c.want("create again", c.Client.CreateVG(ctx, group, c.Devices[1:]), lvm.ErrExists)
	if blank, _, err := c.Client.Blank(ctx, c.Devices[0]); blank || err != nil {
		c.Errorf("a physical volume: blank %t, %v", blank, err)
	}
	c.must("extend", c.Client.ExtendVG(ctx, group, c.Devices[1:]))
	vg, err := c.Client.VG(ctx, group)
	c.must("group", err)
	pvs, err := c.Client.PVs(ctx, c.Devices)
	c.must("physical volumes", err)
	if vg.PVCount != 2 || vg.FreeBytes != vg.SizeBytes || vg.ExtentBytes != extentBytes || len(pvs) != 2 ||
		pvs[0].VG != group || pvs[0].FreeBytes+pvs[1].FreeBytes != vg.FreeBytes {
		c.Errorf("group %+v, physical volumes %+v", vg, pvs)
	}
}

func (c conform) volumes() {
	ctx := c.Context()
	before, err := c.Client.VG(ctx, group)
	c.must("group", err)
	c.must("create", c.create("one", 5*mib))
	c.want("create again", c.create("one", 5*mib), lvm.ErrExists)
	v := c.lv("one")
	if !v.Active || v.SizeBytes != 8*mib || !slices.Equal(slices.Sorted(slices.Values(v.Tags)), []string{"a", "b"}) || v.SegType != "linear" {
		c.Errorf("volume %+v", v)
	}
	c.must("activate what is active", c.Client.Activate(ctx, group, "one"))
	c.want("activate what is not there", c.Client.Activate(ctx, group, "none"), lvm.ErrNotFound)
	c.must("extend", c.Client.ExtendLV(ctx, group, "one", 9*mib))
	c.must("extend to less", c.Client.ExtendLV(ctx, group, "one", mib))
	c.want("extend what is not there", c.Client.ExtendLV(ctx, group, "none", mib), lvm.ErrNotFound)
	if v := c.lv("one"); v.SizeBytes != 12*mib {
		c.Errorf("after it has grown: %+v", v)
	}
	c.must("refresh", c.Client.Refresh(ctx, group, "one"))
	c.must("striped", c.create("two", 8*mib, func(s *lvm.CreateSpec) { s.Stripes = 2 }))
	if v := c.lv("two"); v.SegType != "striped" || v.SizeBytes != 8*mib {
		c.Errorf("striped: %+v", v)
	}
	c.must("remove", c.Client.RemoveLVs(ctx, group, "one", "none", "two"))
	after, err := c.Client.VG(ctx, group)
	c.must("group", err)
	if after.FreeBytes != before.FreeBytes {
		c.Errorf("%d bytes are free, %d were", after.FreeBytes, before.FreeBytes)
	}
}

func (c conform) tags() {
	ctx := c.Context()
	c.must("create", c.create("one", mib))
	c.must("create", c.create("two", mib))
	c.must("change", c.Client.ChangeTags(ctx, group, []string{"c", "d", "a"}, []string{"b", "d", "none"}, "one", "two"))
	for _, name := range []string{"one", "two"} {
		if tags := slices.Sorted(slices.Values(c.lv(name).Tags)); !slices.Equal(tags, []string{"a", "c"}) {
			c.Errorf("tags of %s: %v", name, tags)
		}
	}
	c.want("change of what is not there", c.Client.ChangeTags(ctx, group, []string{"x"}, nil, "none"), lvm.ErrNotFound)
	c.must("remove", c.Client.RemoveLVs(ctx, group, "one", "two"))
}

func (c conform) room() {
	ctx := c.Context()
	vg, err := c.Client.VG(ctx, group)
	c.must("group", err)
	c.want("too much", c.create("one", vg.FreeBytes+mib), lvm.ErrNoSpace)
	c.want("too much for one device", c.create("one", vg.FreeBytes, func(s *lvm.CreateSpec) { s.Devices = c.Devices[:1] }), lvm.ErrNoSpace)
	c.must("everything", c.create("one", vg.FreeBytes))
	c.want("some more", c.create("two", mib), lvm.ErrNoSpace)
	c.want("grow", c.Client.ExtendLV(ctx, group, "one", vg.FreeBytes+mib), lvm.ErrNoSpace)
	c.must("remove", c.Client.RemoveLVs(ctx, group, "one"))
}

func (c conform) busy() {
	ctx := c.Context()
	c.must("create", c.create("one", mib))
	f, err := c.Open(c.lv("one").DevPath())
	c.must("open", err)
	if !c.lv("one").Open {
		c.Error("a volume that is open does not show it")
	}
	c.want("remove", c.Client.RemoveLVs(ctx, group, "one"), lvm.ErrBusy)
	c.must("close", f.Close())
	c.must("remove", c.Client.RemoveLVs(ctx, group, "one"))
}
