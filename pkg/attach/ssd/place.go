package ssd

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ErrApart: data and map of a cache are on different SSDs (states.md, Names on the host).
var ErrApart = errors.New("the cache's data are on an SSD that its map is not on")

// Place is on which SSDs the logical volumes of one cache go, all of them. It has no
// devices if LVM has no choice.
type Place struct {
	Devices []string
	Stripes int
	Mirror  bool
}

// Apply asks LVM for that place.
func (p Place) Apply(specs []lvm.CreateSpec) []lvm.CreateSpec {
	out := slices.Clone(specs)
	for i := range out {
		out[i].Devices, out[i].Mirror = p.Devices, p.Mirror
		if out[i].Stripes > 0 { // the metadata of a hydration are not spread
			out[i].Stripes = p.Stripes
		}
	}
	return out
}

// OnlyPlace is the place of a cache in a pool that has no other, as far as its SSDs have
// room: all of them.
func OnlyPlace(v pool.View) (Place, bool) {
	if v.Mirror {
		return Place{Mirror: true, Stripes: 1}, len(v.Staying()) <= 2
	}
	return Place{Stripes: max(v.Stripes, 1)}, true
}

// ChoosePlace is where logical volumes of these sizes go: striped over all SSDs, or on
// the one with the most room; of a mirror on the two with the most. It returns false if
// they have nowhere to go. room is what each SSD has free, in bytes.
func ChoosePlace(v pool.View, room map[string]int64, sizes []int64) (Place, bool) {
	devices := slices.SortedFunc(maps.Keys(room), func(x, y string) int {
		return cmp.Or(cmp.Compare(room[y], room[x]), cmp.Compare(x, y))
	})
	extent := max(v.ExtentBytes, 1)
	need := func(stripes, more int64) (sum int64) {
		for _, size := range sizes {
			sum += RoundUp(size, extent*stripes)/stripes + more*extent
		}
		return sum
	}
	switch {
	case v.Mirror:
		// Each copy has an extent for what the mirror knows of itself.
		if len(devices) < 2 || room[devices[1]] < need(1, 1) {
			return Place{}, false
		}
		return Place{Devices: devices[:2], Stripes: 1, Mirror: true}, true
	case len(devices) == 0:
		return Place{}, false
	case room[devices[len(devices)-1]] >= need(int64(len(devices)), 0):
		return Place{Devices: devices, Stripes: len(devices)}, true
	case room[devices[0]] >= need(1, 0):
		return Place{Devices: devices[:1], Stripes: 1}, true
	}
	return Place{}, false
}

// Rooms are the SSDs that stay in the pool, each with its size and what is free of it.
func (g *Group) Rooms(ctx context.Context, v pool.View) (free, size map[string]int64, err error) {
	pvs, err := g.LVM.PVs(ctx, v.Staying())
	if err != nil {
		return nil, nil, err
	}
	free, size = map[string]int64{}, map[string]int64{}
	for _, pv := range pvs {
		if pv.VG != v.VG || pv.Missing {
			continue
		}
		device := pv.Device
		if real, err := filepath.EvalSymlinks(device); err == nil {
			device = real
		}
		free[device], size[device] = pv.FreeBytes, pv.SizeBytes
	}
	return free, size, nil
}

// DevicesBelow are those of the pool's SSDs that a logical volume ("major:minor") is on,
// as the kernel knows them: a flush of the volume reaches these and no others.
func (g *Group) DevicesBelow(devno string, v pool.View) []string {
	var out []string
	var walk func(dir string)
	walk = func(dir string) {
		lower, err := os.ReadDir(filepath.Join(dir, "slaves"))
		if err != nil {
			return // it is gone
		}
		for _, l := range lower {
			device := "/dev/" + l.Name()
			switch below := filepath.Join(g.Sysfs, "class/block", l.Name()); {
			case slices.Contains(out, device):
			case slices.Contains(v.Devices, device) || !hasLower(below):
				out = append(out, device)
			default:
				walk(below)
			}
		}
	}
	walk(filepath.Join(g.Sysfs, "dev/block", devno))
	slices.Sort(out)
	return out
}

func hasLower(dir string) bool {
	lower, err := os.ReadDir(filepath.Join(dir, "slaves"))
	return err == nil && len(lower) > 0
}

// Apart reports whether active logical volumes have data where their map is not.
func (g *Group) Apart(c Cache) bool {
	v := g.Pool.View()
	if len(v.Devices) < 2 {
		return false
	}
	withMap := g.DevicesBelow(c.Meta.DevNo(), v)
	return slices.ContainsFunc(g.DevicesBelow(c.Data.DevNo(), v), func(d string) bool { return !slices.Contains(withMap, d) })
}

// GrowsOn reports whether a logical volume on these SSDs can grow by so many bytes there.
func GrowsOn(v pool.View, free map[string]int64, on []string, bytes int64) bool {
	if !v.Mirror && len(on) > 0 {
		stripes := int64(len(on))
		bytes = RoundUp(bytes, max(v.ExtentBytes, 1)*stripes) / stripes
	}
	return !slices.ContainsFunc(on, func(d string) bool { return free[d] < bytes })
}

// OnLeaving are the volumes of which something lies on an SSD that is to leave the pool, by LVM's
// word.
func (g *Group) OnLeaving(ctx context.Context) (map[volume.ID]bool, error) {
	v := g.Pool.View()
	if len(v.Leaving) == 0 || v.VG == "" {
		return nil, nil
	}
	on, err := g.LVM.OnDevices(ctx, v.VG)
	if err != nil {
		return nil, err
	}
	out := map[volume.ID]bool{}
	for _, device := range v.Leaving {
		for _, name := range on[device] {
			for _, id := range layout.IDs([]lvm.LV{{Name: name}}) {
				out[id] = true
			}
		}
	}
	return out, nil
}
