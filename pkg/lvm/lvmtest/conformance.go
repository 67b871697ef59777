package lvmtest

import (
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/testutil/conform"
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
	c := suite{conform.T{T: t}, r}
	for _, step := range []struct {
		name string
		do   func(suite)
	}{
		{"Groups", suite.groups}, {"Volumes", suite.volumes}, {"Tags", suite.tags}, {"Room", suite.room}, {"Busy", suite.busy}, {"Copies", suite.copies}, {"Leave", suite.leave},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(suite{conform.T{T: t}, r}) }) {
			c.Fatalf("what comes after %s rests on it", step.name)
		}
	}
}

type suite struct {
	conform.T
	Rig
}

func (c suite) lv(name string) lvm.LV {
	c.Helper()
	list, err := c.Client.LVs(c.Context(), group)
	c.Must("list", err)
	i := slices.IndexFunc(list, func(v lvm.LV) bool { return v.Name == name })
	if i < 0 {
		c.Fatalf("no logical volume %s among %v", name, list)
	}
	return list[i]
}

func (c suite) create(name string, size int64, change ...func(*lvm.CreateSpec)) error {
	spec := lvm.CreateSpec{VG: group, Name: name, SizeBytes: size, Tags: []string{"b", "a"}}
	for _, f := range change {
		f(&spec)
	}
	return c.Client.CreateLV(c.Context(), spec)
}

func (c suite) groups() {
	ctx := c.Context()
	_, err := c.Client.LVs(ctx, group)
	c.Want("no devices", err, lvm.ErrNoDevices)
	c.Client.SetDevices(c.Devices)
	_, err = c.Client.VG(ctx, group)
	c.Want("no group", err, lvm.ErrNotFound)
	_, err = c.Client.LVs(ctx, group)
	c.Want("volumes of no group", err, lvm.ErrNotFound)
	c.Must("remove from no group", c.Client.RemoveLVs(ctx, group, "x"))
	c.Want("extend no group", c.Client.ExtendVG(ctx, group, c.Devices[1:]), lvm.ErrNotFound)
	blank, why, err := c.Client.Blank(ctx, c.Devices[0])
	c.Must("blank", err)
	if !blank {
		c.Fatalf("%s is not blank: %s", c.Devices[0], why)
	}
	c.Must("create", c.Client.CreateVG(ctx, group, c.Devices[:1]))
	c.Want("create again", c.Client.CreateVG(ctx, group, c.Devices[1:]), lvm.ErrExists)
	if blank, _, err := c.Client.Blank(ctx, c.Devices[0]); blank || err != nil {
		c.Errorf("a physical volume: blank %t, %v", blank, err)
	}
	c.Must("extend", c.Client.ExtendVG(ctx, group, c.Devices[1:]))
	vg, err := c.Client.VG(ctx, group)
	c.Must("group", err)
	pvs, err := c.Client.PVs(ctx, c.Devices)
	c.Must("physical volumes", err)
	if vg.PVCount != 2 || vg.FreeBytes != vg.SizeBytes || vg.ExtentBytes != extentBytes || len(pvs) != 2 ||
		pvs[0].VG != group || pvs[0].FreeBytes+pvs[1].FreeBytes != vg.FreeBytes {
		c.Errorf("group %+v, physical volumes %+v", vg, pvs)
	}
}

func (c suite) volumes() {
	ctx := c.Context()
	before, err := c.Client.VG(ctx, group)
	c.Must("group", err)
	c.Must("create", c.create("one", 5*mib))
	c.Want("create again", c.create("one", 5*mib), lvm.ErrExists)
	v := c.lv("one")
	if !v.Active || v.SizeBytes != 8*mib || !slices.Equal(slices.Sorted(slices.Values(v.Tags)), []string{"a", "b"}) || v.SegType != "linear" {
		c.Errorf("volume %+v", v)
	}
	c.Must("activate what is active", c.Client.Activate(ctx, group, "one"))
	c.Want("activate what is not there", c.Client.Activate(ctx, group, "none"), lvm.ErrNotFound)
	c.Must("extend", c.Client.ExtendLV(ctx, group, "one", 9*mib))
	c.Must("extend to less", c.Client.ExtendLV(ctx, group, "one", mib))
	c.Want("extend what is not there", c.Client.ExtendLV(ctx, group, "none", mib), lvm.ErrNotFound)
	if v := c.lv("one"); v.SizeBytes != 12*mib {
		c.Errorf("after it has grown: %+v", v)
	}
	c.Must("refresh", c.Client.Refresh(ctx, group, "one"))
	c.Must("striped", c.create("two", 8*mib, func(s *lvm.CreateSpec) { s.Stripes = 2 }))
	if v := c.lv("two"); v.SegType != "striped" || v.SizeBytes != 8*mib {
		c.Errorf("striped: %+v", v)
	}
	c.Must("remove", c.Client.RemoveLVs(ctx, group, "one", "none", "two"))
	after, err := c.Client.VG(ctx, group)
	c.Must("group", err)
	if after.FreeBytes != before.FreeBytes {
		c.Errorf("%d bytes are free, %d were", after.FreeBytes, before.FreeBytes)
	}
}

func (c suite) tags() {
	ctx := c.Context()
	c.Must("create", c.create("one", mib))
	c.Must("create", c.create("two", mib))
	c.Must("change", c.Client.ChangeTags(ctx, group, []string{"c", "d", "a"}, []string{"b", "d", "none"}, "one", "two"))
	for _, name := range []string{"one", "two"} {
		if tags := slices.Sorted(slices.Values(c.lv(name).Tags)); !slices.Equal(tags, []string{"a", "c"}) {
			c.Errorf("tags of %s: %v", name, tags)
		}
	}
	c.Want("change of what is not there", c.Client.ChangeTags(ctx, group, []string{"x"}, nil, "none"), lvm.ErrNotFound)
	c.Must("remove", c.Client.RemoveLVs(ctx, group, "one", "two"))
}

func (c suite) room() {
	ctx := c.Context()
	vg, err := c.Client.VG(ctx, group)
	c.Must("group", err)
	c.Want("too much", c.create("one", vg.FreeBytes+mib), lvm.ErrNoSpace)
	c.Want("too much for one device", c.create("one", vg.FreeBytes, func(s *lvm.CreateSpec) { s.Devices = c.Devices[:1] }), lvm.ErrNoSpace)
	c.Must("everything", c.create("one", vg.FreeBytes))
	c.Want("some more", c.create("two", mib), lvm.ErrNoSpace)
	c.Want("grow", c.Client.ExtendLV(ctx, group, "one", vg.FreeBytes+mib), lvm.ErrNoSpace)
	c.Must("remove", c.Client.RemoveLVs(ctx, group, "one"))
}

// Refused fails the test if something was done that must not be.
func (c suite) Refused(what string, err error) {
	c.Helper()
	if err == nil {
		c.Errorf("%s: no error", what)
	}
}

// leave takes devices out of the group, and puts them in again.
func (c suite) leave() {
	ctx := c.Context()
	one, two := c.Devices[0], c.Devices[1]
	c.Must("on one", c.create("one", mib, func(s *lvm.CreateSpec) { s.Devices = []string{one} }))
	c.Must("on both", c.create("two", 8*mib, func(s *lvm.CreateSpec) { s.Stripes = 2 }))
	c.Must("on both again", c.create("three", 4*mib, func(s *lvm.CreateSpec) { s.Mirror = true }))
	on, err := c.Client.OnDevices(ctx, group)
	c.Must("on devices", err)
	if !slices.Equal(on[one], []string{"one", "three", "two"}) || !slices.Equal(on[two], []string{"three", "two"}) || len(on) != 2 {
		c.Errorf("on devices: %v", on)
	}
	c.copiesOn(one, two)
	_, err = c.Client.OnDevices(ctx, "none")
	c.Want("devices of no group", err, lvm.ErrNotFound)
	c.Want("take a device out that is in use", c.Client.ReduceVG(ctx, group, two), lvm.ErrBusy)
	c.Refused("remove a group with volumes", c.Client.RemoveVG(ctx, group))
	c.Must("remove", c.Client.RemoveLVs(ctx, group, "two", "three"))
	c.Must("take a device out", c.Client.ReduceVG(ctx, group, two))
	c.Refused("take it out again", c.Client.ReduceVG(ctx, group, two))
	c.Refused("take the last one out", c.Client.ReduceVG(ctx, group, one))
	c.out(two)
	c.Refused("remove a physical volume of the group", c.Client.RemovePV(ctx, one))
	c.Must("remove", c.Client.RemoveLVs(ctx, group, "one"))
	c.Must("put it in", c.Client.ExtendVG(ctx, group, []string{two}))
	c.Must("remove the group", c.Client.RemoveVG(ctx, group))
	c.Want("remove it again", c.Client.RemoveVG(ctx, group), lvm.ErrNotFound)
	c.out(one)
	c.out(two)
	c.Must("make it anew", c.Client.CreateVG(ctx, group, c.Devices))
}

// copiesOn holds that a mirror has one copy on each device, and nothing else has any.
func (c suite) copiesOn(one, two string) {
	c.Helper()
	ctx := c.Context()
	copies, err := c.Client.Copies(ctx, group)
	c.Must("copies", err)
	pvs, err := c.Client.PVs(ctx, []string{one, two})
	c.Must("physical volumes", err)
	for _, pv := range pvs {
		if !slices.Contains(copies, lvm.Copy{LV: "three", PV: pv.UUID, Device: pv.Device}) {
			c.Errorf("no copy on %+v among %+v", pv, copies)
		}
	}
	if len(copies) != 2 {
		c.Errorf("copies: %+v", copies)
	}
	_, err = c.Client.Copies(ctx, "none")
	c.Want("copies in no group", err, lvm.ErrNotFound)
}

// out makes a device blank that is of no group any more.
func (c suite) out(device string) {
	c.Helper()
	ctx := c.Context()
	pvs, err := c.Client.PVs(ctx, []string{device})
	c.Must("physical volumes", err)
	if len(pvs) != 1 || pvs[0].VG != "" || pvs[0].UUID == "" {
		c.Errorf("a physical volume of no group: %+v", pvs)
	}
	c.Must("remove physical volume", c.Client.RemovePV(ctx, device))
	c.Refused("remove it again", c.Client.RemovePV(ctx, device))
	if blank, why, err := c.Client.Blank(ctx, device); !blank || err != nil {
		c.Errorf("%s, which was taken out: blank %t, %s, %v", device, blank, why, err)
	}
}

func (c suite) busy() {
	ctx := c.Context()
	c.Must("create", c.create("one", mib))
	f, err := c.Open(c.lv("one").DevPath())
	c.Must("open", err)
	if !c.lv("one").Open {
		c.Error("a volume that is open does not show it")
	}
	c.Want("remove", c.Client.RemoveLVs(ctx, group, "one"), lvm.ErrBusy)
	c.Must("close", f.Close())
	c.Must("remove", c.Client.RemoveLVs(ctx, group, "one"))
}

// copies compares those of a mirror, which LVM has not made alike.
func (c suite) copies() {
	ctx := c.Context()
	c.Must("create", c.create("one", 48*mib, func(s *lvm.CreateSpec) { s.Mirror = true }))
	c.Must("create", c.create("two", mib))
	if v, plain := c.lv("one"), c.lv("two"); v.SyncAction != lvm.SyncIdle || v.SyncPercent != 100 || plain.SyncAction != "" || plain.SyncPercent != -1 {
		c.Errorf("mirror %+v, not a mirror %+v", v, plain)
	}
	c.Want("compare what is not there", c.Client.RepairCopies(ctx, group, "none"), lvm.ErrNotFound)
	c.Refused("compare one copy", c.Client.RepairCopies(ctx, group, "two"))
	for range 2 { // it can be had again
		c.Must("compare", c.Client.RepairCopies(ctx, group, "one"))
		v := c.lv("one")
		for end := time.Now().Add(time.Minute); v.SyncAction != lvm.SyncIdle; v = c.lv("one") {
			if v.SyncAction != lvm.SyncRepair || !v.Comparing() || v.OneCopy() || time.Now().After(end) {
				c.Fatalf("while it is compared: %+v", v)
			}
		}
		if v.SyncPercent != 100 || v.Health != "" {
			c.Errorf("compared: %+v", v)
		}
	}
	c.Must("remove", c.Client.RemoveLVs(ctx, group, "one", "two"))
}
