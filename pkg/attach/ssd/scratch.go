package ssd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/quantity"
)

const (
	// ScratchLV is the logical volume on which the SSDs are measured alone (states.md, The SSD alone). No
	// part of a cache has a name without a dot.
	ScratchLV = "scratch"
	// ScratchTag tells what it is. A logical volume of that name without it is somebody else's.
	ScratchTag = "nearflash.scratch"
)

// ErrNoScratch: the pool has no scratch volume for anybody now.
var ErrNoScratch = errors.New("no scratch volume")

// Scratch is a scratch volume that was made.
type Scratch struct {
	LV lvm.LV
	// UUID is that of the device mapper.
	UUID string
	Place
}

// DecideScratch chooses where a scratch volume goes, and how large it is: as many bytes as are wanted, or half
// of it as often as it takes, down to the least. As much as it takes is free beside it.
func DecideScratch(v pool.View, room map[string]int64, want, least int64) (p Place, bytes int64, ok bool) {
	for bytes = want; bytes >= least; bytes /= 2 {
		if p, ok = ChoosePlace(v, room, []int64{2 * bytes}); ok {
			return p, bytes, true
		}
	}
	return Place{}, 0, false
}

// MakeScratch makes one, in the place of what an earlier measurement left. Nothing is evicted for it.
// Errors: ErrNoScratch.
func (g *Group) MakeScratch(ctx context.Context, want, least int64) (Scratch, error) {
	v := g.Pool.View()
	switch {
	case !v.Ready:
		return Scratch{}, fmt.Errorf("%w: the pool is not ready: %s", ErrNoScratch, v.Problem)
	case v.Degraded != "":
		return Scratch{}, fmt.Errorf("%w: the mirror is degraded: %s", ErrNoScratch, v.Degraded)
	}
	unlock, err := g.Lock(ctx)
	if err != nil {
		return Scratch{}, err
	}
	defer unlock()
	if err := g.RemoveScratch(ctx); err != nil {
		return Scratch{}, fmt.Errorf("an earlier measurement: %w", err)
	}
	free, _, err := g.Rooms(ctx, v)
	if err != nil {
		return Scratch{}, err
	}
	place, bytes, ok := DecideScratch(v, free, want, least)
	if !ok {
		return Scratch{}, fmt.Errorf("%w: it takes %s that are free where a cache would go, and leaves as much free", ErrNoScratch, quantity.Text(least))
	}
	spec := lvm.CreateSpec{VG: v.VG, Name: ScratchLV, SizeBytes: bytes, Tags: []string{ScratchTag}, Stripes: 1}
	if err := g.Create(ctx, place.Apply([]lvm.CreateSpec{spec})); err != nil {
		return Scratch{}, err
	}
	return g.findScratch(ctx, v.VG, place)
}

func (g *Group) findScratch(ctx context.Context, vg string, place Place) (Scratch, error) {
	group, err := g.LVM.VG(ctx, vg)
	if err != nil {
		return Scratch{}, err
	}
	lv, found, err := g.scratch(ctx, vg)
	if err != nil {
		return Scratch{}, err
	}
	if !found || !lv.Active {
		return Scratch{}, fmt.Errorf("logical volume %s/%s is not active: %w", vg, ScratchLV, lvm.ErrNotFound)
	}
	// As LVM names devices: both UUIDs without their dashes.
	uuid := "LVM-" + strings.ReplaceAll(group.UUID+lv.UUID, "-", "")
	return Scratch{LV: lv, UUID: uuid, Place: place}, nil
}

// IsScratch reports whether a logical volume of the pool is the one that is lent.
func IsScratch(lv lvm.LV) bool { return lv.Name == ScratchLV && slices.Contains(lv.Tags, ScratchTag) }

func (g *Group) scratch(ctx context.Context, vg string) (lv lvm.LV, found bool, err error) {
	lvs, err := g.LVM.LVs(ctx, vg)
	if i := slices.IndexFunc(lvs, IsScratch); err == nil && i >= 0 {
		return lvs[i], true, nil
	}
	return lvm.LV{}, false, err
}

// RemoveScratch removes it, if it is there. Errors: lvm.ErrBusy while a process has it open, which is asked first:
// LVM would try for seconds, in which nothing else of the group is changed.
func (g *Group) RemoveScratch(ctx context.Context) error {
	vg := g.Pool.View().VG
	if vg == "" {
		return nil
	}
	lv, found, err := g.scratch(ctx, vg)
	switch {
	case err != nil || !found:
		return err
	case lv.Open:
		return fmt.Errorf("%w: %s/%s", lvm.ErrBusy, vg, ScratchLV)
	}
	return g.LVM.RemoveLVs(ctx, vg, ScratchLV)
}

// Words say where logical volumes of a place are.
func (p Place) Words() string {
	switch {
	case p.Mirror:
		return "two copies on two SSDs"
	case p.Stripes > 1:
		return fmt.Sprintf("striped over %d SSDs", p.Stripes)
	}
	return "on one SSD"
}
