package attach_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// heat is what node h keeps of the volume; found is false if it keeps nothing.
func (h *host) heat() (heat cachemap.Heat, found bool) {
	h.w.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.files(), string(volumeID)+".heat"))
	if errors.Is(err, os.ErrNotExist) {
		return heat, false
	}
	h.w.must("heat", err)
	heat, err = cachemap.DecodeHeat(b)
	h.w.must("heat", err)
	return heat, true
}

// TestHeat: what a pod reads is counted from the stage on, is kept with the retained cache and goes with
// it, also with a plugin that was replaced in between.
func TestHeat(t *testing.T) {
	l := newStreamLife(t, volume.ModeWritethrough, "")
	l.stay(l.a, 1, 0, 1, 2, 3)
	before, found := l.a.heat()
	if !found || before.Of != l.a.entry().ActivationID {
		t.Fatalf("of the first stage: %+v, entry %+v", before, l.a.entry())
	}
	l.req = l.publish(l.a.name)
	l.begin(l.a)
	read := func(times int, place int64) {
		for range times {
			_, err := l.a.podDevice().ReadAt(make([]byte, 8), offset(place))
			l.must("read", err)
		}
	}
	read(5, 1)
	l.a.start() // another process
	read(40, 2)
	l.leave(l.a)
	heat, found := l.a.heat()
	if !found || heat.Of != l.a.entry().ActivationID || heat.Of == before.Of {
		t.Fatalf("of the second stage: %+v, entry %+v", heat, l.a.entry())
	}
	area := func(place int64) uint8 {
		return heat.Areas[uint64(offset(place))/devmapper.SectorSize/heat.AreaSectors]
	}
	if area(2) <= area(1) || area(1) <= area(0) {
		t.Errorf("heat %d of what was read often, %d of what was read, %d of what was not", area(2), area(1), area(0))
	}
	l.arrive(l.b)
	l.hydration(l.b, l.a, wholeHydration)
	l.leave(l.b)
	l.givenBack(l.a)
	if heat, found := l.a.heat(); found {
		t.Errorf("outlived its cache: %+v", heat)
	}
	if _, found := l.b.heat(); !found {
		t.Error("the other node keeps none")
	}
}

// TestHeatGrows: a longer volume is counted to its end, and what was read before is not forgotten.
func TestHeatGrows(t *testing.T) {
	l := newStreamLife(t, volume.ModeWritethrough, "")
	l.inUse()
	before, err := l.a.kernel.Client(nil).ReadAreas(l.ctx, "nf-"+string(volumeID))
	l.must("counts", err)
	l.lun.Grow(2 * lunBytes)
	_, err = l.control.Expand(l.ctx, volumeID, 2*lunBytes)
	l.must("expand", err)
	l.once(l.a, func(p *plugin) {
		_, err = p.Expand(l.ctx, volume.ExpandRequest{ID: volumeID, Path: staging, Block: false})
	})
	l.must("expand", err)
	after, err := l.a.kernel.Client(nil).ReadAreas(l.ctx, "nf-"+string(volumeID))
	l.must("counts", err)
	if got, want := uint64(len(after.Counts))*after.AreaSectors, uint64(2*lunBytes/devmapper.SectorSize); got != want {
		t.Errorf("counted up to sector %d, want %d (before: %d)", got, want, uint64(len(before.Counts))*before.AreaSectors)
	}
	if heat, found := l.a.heat(); !found || len(heat.Areas) != len(before.Counts) {
		t.Errorf("kept: %+v", heat)
	}
}
