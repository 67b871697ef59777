//go:build kernel

package kernel

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// heatEvery is which areas are hot: every eighth, more than a sixteenth of what is cached.
const heatEvery = 8

// area is the length of the areas of the volume in which reads are counted, in bytes.
func (v *movers) area() int64 {
	v.m.t.Helper()
	e, err := v.n.Journal.Load(string(v.req.ID))
	mustPass(v.m.t, "journal", err)
	sectors := devmapper.HeatAreaSectors(uint64(e.OriginBytes)/devmapper.SectorSize, e.ChunkSectors, devmapper.PossibleCPUs())
	return int64(sectors) * devmapper.SectorSize
}

// readAreas reads one block of every area of what is cached, and more often one of each hot
// area: those whose numbers leave rest.
func (v *movers) readAreas(area int64, rest, times int) {
	t := v.m.t
	t.Helper()
	f := openDirect(t, v.device())
	defer func() { _ = f.Close() }()
	buf := aligned(4096)
	for i := range 16 * mib / area {
		n := 1
		if i%heatEvery == int64(rest) {
			n = times
		}
		for range n {
			if _, err := f.ReadAt(buf, i*area); err != nil {
				t.Fatalf("read: %v", err)
			}
		}
	}
}

// wantHottest wants the first sixteenth of what node A sends by such a lease to be of the hot
// areas.
func (v *movers) wantHottest(what string, r volume.LeaseRequest, area int64, rest int) {
	t := v.m.t
	t.Helper()
	r.Method, r.Volume, r.UID, r.To = volume.MethodStream, v.req.ID, v.req.Publication.Fence.UID, otherName
	_, err := v.a.Lessor().Export(t.Context(), r)
	mustPass(t, what, err)
	c, err := v.a.Lessor().OpenStream(t.Context(), r.Volume, r.Move, r.To)
	mustPass(t, what, err)
	blocks, chunk := c.Blocks(), int64(c.ChunkSectors())*devmapper.SectorSize
	first := cachemap.HotChunks(uint64(len(blocks)))
	cold := 0
	for _, b := range blocks[:first] {
		if int64(b)*chunk/area%heatEvery != int64(rest) {
			cold++
		}
	}
	if cold > 0 {
		t.Errorf("%s: %d of the first %d of %d chunks are not hot", what, cold, first, len(blocks))
	}
	mustPass(t, what, c.Close())
	mustPass(t, what, v.a.Lessor().EndLease(t.Context(), r.Volume, r.Move))
}

// TestKernelHeat: of a cache of which every chunk is read now and then, those are sent first
// that are read most, while the volume is attached and when it has left.
func TestKernelHeat(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "heat", streaming(cached(volume.ModeWriteback, 64*mib)))
	v.stage()
	v.warmUp(1)
	area := v.area()
	v.readAreas(area, 3, 200)
	v.askFor(otherName)
	v.wantHottest("attached", volume.LeaseRequest{
		Generation: v.gen, Purpose: volume.PurposePrewarm, Request: "request-1", Move: volume.MoveID{Name: "heat", UID: "1"},
	}, area, 3)
	v.readAreas(area, 5, 600)
	v.unstage()
	v.publishTo(v.b, otherName)
	v.wantHottest("retained", volume.LeaseRequest{Generation: v.gen - 1, Move: volume.MoveID{Name: "heat", UID: "2"}}, area, 5)
	v.remove()
}
