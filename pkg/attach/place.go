package attach

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// errApart: data and map of a cache are on different SSDs (states.md, Names on the host).
var errApart = errors.New("the cache's data are on an SSD that its map is not on")

// place is on which SSDs the logical volumes of one cache go, all of them. It has no
// devices if LVM has no choice.
type place struct {
	devices []string
	stripes int
	mirror  bool
}

// apply asks LVM for that place.
func (p place) apply(specs []lvm.CreateSpec) []lvm.CreateSpec {
	out := slices.Clone(specs)
	for i := range out {
		out[i].Devices, out[i].Mirror = p.devices, p.mirror
		if out[i].Stripes > 0 { // the metadata of a hydration are not spread
			out[i].Stripes = p.stripes
		}
	}
	return out
}

// onlyPlace is the place of a cache in a pool that has no other, as far as its SSDs have
// room: all of them.
func onlyPlace(v pool.View) (place, bool) {
	if v.Mirror {
		return place{mirror: true, stripes: 1}, len(v.Devices) <= 2
	}
	return place{stripes: max(v.Stripes, 1)}, true
}

// choosePlace is where logical volumes of these sizes go: striped over all SSDs, or on
// the one with the most room; of a mirror on the two with the most. It returns false if
// they have nowhere to go. room is what each SSD has free, in bytes.
func choosePlace(v pool.View, room map[string]int64, sizes []int64) (place, bool) {
	devices := slices.SortedFunc(maps.Keys(room), func(x, y string) int {
		return cmp.Or(cmp.Compare(room[y], room[x]), cmp.Compare(x, y))
	})
	extent := max(v.ExtentBytes, 1)
	need := func(stripes, more int64) (sum int64) {
		for _, size := range sizes {
			sum += roundUp(size, extent*stripes)/stripes + more*extent
		}
		return sum
	}
	switch {
	case v.Mirror:
		// Each copy has an extent for what the mirror knows of itself.
		if len(devices) < 2 || room[devices[1]] < need(1, 1) {
			return place{}, false
		}
		return place{devices: devices[:2], stripes: 1, mirror: true}, true
	case len(devices) == 0:
		return place{}, false
	case room[devices[len(devices)-1]] >= need(int64(len(devices)), 0):
		return place{devices: devices, stripes: len(devices)}, true
	case room[devices[0]] >= need(1, 0):
		return place{devices: devices[:1], stripes: 1}, true
	}
	return place{}, false
}

// rooms are the SSDs of the pool, each with its size and what is free of it.
func (a *Attacher) rooms(ctx context.Context, v pool.View) (free, size map[string]int64, err error) {
	pvs, err := a.LVM.PVs(ctx, v.Devices)
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

// devicesBelow are those of the pool's SSDs that a logical volume ("major:minor") is on,
// as the kernel knows them: a flush of the volume reaches these and no others.
func (a *Attacher) devicesBelow(devno string, v pool.View) []string {
	var out []string
	var walk func(dir string)
	walk = func(dir string) {
		lower, err := os.ReadDir(filepath.Join(dir, "slaves"))
		if err != nil {
			return // it is gone
		}
		for _, l := range lower {
			device := "/dev/" + l.Name()
			switch below := filepath.Join(a.Sysfs, "class/block", l.Name()); {
			case slices.Contains(out, device):
			case slices.Contains(v.Devices, device) || !hasLower(below):
				out = append(out, device)
			default:
				walk(below)
			}
		}
	}
	walk(filepath.Join(a.Sysfs, "dev/block", devno))
	slices.Sort(out)
	return out
}

func hasLower(dir string) bool {
	lower, err := os.ReadDir(filepath.Join(dir, "slaves"))
	return err == nil && len(lower) > 0
}

// apart tells whether active logical volumes have data where their map is not.
func (a *Attacher) apart(c cacheVolumes) bool {
	v := a.Pool.View()
	if len(v.Devices) < 2 {
		return false
	}
	withMap := a.devicesBelow(c.Meta.DevNo(), v)
	return slices.ContainsFunc(a.devicesBelow(c.Data.DevNo(), v), func(d string) bool { return !slices.Contains(withMap, d) })
}

// createPlaced makes the logical volumes of a cache where they belong, after it has
// evicted retained caches if there is no room.
func (a *Attacher) createPlaced(ctx context.Context, id volume.ID, specs []lvm.CreateSpec) error {
	view := a.Pool.View()
	if p, only := onlyPlace(view); only {
		err := a.createAll(ctx, p.apply(specs))
		if !errors.Is(err, lvm.ErrNoSpace) {
			return err
		}
		// How much is free, and where, is worth a question only now.
	}
	names, sizes := make([]string, len(specs)), make([]int64, len(specs))
	for i, spec := range specs {
		names[i], sizes[i] = spec.Name, spec.SizeBytes
	}
	if err := a.LVM.RemoveLVs(ctx, view.VG, names...); err != nil {
		return err
	}
	var p place
	if err := a.makeRoom(ctx, id, sizes, func(free map[string]int64) (ok bool) {
		p, ok = choosePlace(view, free, sizes)
		return ok
	}); err != nil {
		return err
	}
	return a.createAll(ctx, p.apply(specs))
}

// createBeside makes logical volumes on the very SSDs that another one is on.
func (a *Attacher) createBeside(ctx context.Context, id volume.ID, lv lvm.LV, specs []lvm.CreateSpec) error {
	view := a.Pool.View()
	p := place{devices: a.devicesBelow(lv.DevNo(), view), mirror: view.Mirror, stripes: 1}
	if !view.Mirror {
		p.stripes = len(p.devices)
	}
	err := a.createAll(ctx, p.apply(specs))
	if !errors.Is(err, lvm.ErrNoSpace) {
		return err
	}
	names, sizes, all := make([]string, len(specs)), make([]int64, len(specs)), int64(0)
	for i, spec := range specs {
		names[i], sizes[i] = spec.Name, spec.SizeBytes
		all += spec.SizeBytes + view.ExtentBytes*max(view.Copies-1, 0)
	}
	if err := a.LVM.RemoveLVs(ctx, view.VG, names...); err != nil {
		return err
	}
	if err := a.makeRoom(ctx, id, sizes, func(free map[string]int64) bool { return growsOn(view, free, p.devices, all) }); err != nil {
		return err
	}
	return a.createAll(ctx, p.apply(specs))
}

// growsOn tells whether a logical volume on these SSDs can grow by so many bytes there.
func growsOn(v pool.View, free map[string]int64, on []string, bytes int64) bool {
	if !v.Mirror && len(on) > 0 {
		stripes := int64(len(on))
		bytes = roundUp(bytes, max(v.ExtentBytes, 1)*stripes) / stripes
	}
	return !slices.ContainsFunc(on, func(d string) bool { return free[d] < bytes })
}
