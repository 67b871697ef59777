package attach_test

import (
	"context"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The blocks of an exported cache are discarded only when the journal says that it goes: a process
// that ends there would leave a retained cache of zeroes, which looks whole and would be exported again.
func TestReleaseForgetsFirst(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	l.a.podWrites(1, 0, 1)
	l.must("unstage", l.a.Unstage(l.ctx, volumeID, staging))
	e, err := l.a.Journal.Load(string(volumeID))
	l.must("journal", err)
	move := volume.MoveID{Name: "m", UID: "1"}
	e.Exported = &move
	l.must("journal", l.a.Journal.Save(string(volumeID), e))
	d := &discards{Blocks: l.a.Blocks, journal: func() state.State {
		e, err := l.a.Journal.Load(string(volumeID))
		l.must("journal", err)
		return e.State
	}}
	l.a.UseBlocks(d)
	l.must("release", l.a.Lessor().Release(l.ctx, volumeID, move))
	if want := []state.State{state.Wiping}; !slices.Equal(d.states, want) {
		t.Errorf("discarded while the journal said %v, want %v", d.states, want)
	}
	l.a.UseBlocks(d.Blocks)
}

// discards notes what the journal says when blocks are discarded.
type discards struct {
	attach.Blocks
	journal func() state.State
	states  []state.State
}

func (d *discards) Discard(context.Context, string, [][2]uint64) error {
	d.states = append(d.states, d.journal())
	return nil
}

// A dirty limit does not let blocks become dirty again while a change of the volume flushes
// the cache: under load that would put off its end for ever.
func TestLimitLeavesChangeAlone(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	host := l.a.DirtyLimits().Host
	swap := func(to dirtylimit.Level) bool {
		t.Helper()
		done, err := host.SwapTo(l.ctx, volumeID, req.Publication.Fence, to)
		l.must("swap to "+string(to), err)
		return done
	}
	if !swap(dirtylimit.Draining) || !swap(dirtylimit.Writeback) || !swap(dirtylimit.Draining) {
		t.Error("without a change the limit did not get its tables")
	}
	l.must("ask for another mode", records.UpdateObject(l.ctx, l.api, volumeID, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.CacheMode = v1alpha1.CacheModeWritethrough
		return nil
	}))
	if swap(dirtylimit.Writeback) {
		t.Error("blocks may become dirty again while the change flushes the cache")
	}
	if !swap(dirtylimit.Draining) {
		t.Error("the limit does not drain while the change waits")
	}
	l.must("unstage", l.a.Unstage(l.ctx, volumeID, staging))
}

// TestLimitLeavesLostAlone: once the LUN is somebody else's, a limit loads no table over
// the one that fails.
func TestLimitLeavesLostAlone(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	e, err := l.a.Journal.Load(string(volumeID))
	l.must("journal", err)
	e.Lost = &state.Lost{}
	l.must("journal", l.a.Journal.Save(string(volumeID), e))
	if done, err := l.a.DirtyLimits().Host.SwapTo(l.ctx, volumeID, req.Publication.Fence, dirtylimit.Draining); done || err != nil {
		t.Errorf("swapped: %t, %v", done, err)
	}
}

// TestExportLive: a cache in use is exported, the copy of it ends, and writes go on being
// recorded until the volume leaves; then the other node can tell what has changed.
func TestExportLive(t *testing.T) {
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		t.Run(string(mode), func(t *testing.T) {
			l := newWarmLife(t, mode, "")
			req := l.publish(l.a.name)
			l.must("stage", l.a.Stage(l.ctx, req))
			l.a.podWrites(1, 0, 1)
			l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.PrewarmNode, s.PrewarmRequest = l.b.name, "r" })
			ask := volume.LeaseRequest{
				Move: volume.MoveID{Name: "m", UID: "1"}, Volume: volumeID, UID: req.Publication.Fence.UID, Generation: req.Publication.Fence.Generation,
				Purpose: volume.PurposePrewarm, To: l.b.name, Request: "r", Method: volume.MethodStream,
			}
			lease, err := l.a.Lessor().Export(l.ctx, ask)
			l.must("export", err)
			l.must("end of the copy", l.a.Lessor().EndLease(l.ctx, volumeID, ask.Move))
			if e := l.a.entry(); e.Exported != nil || e.Track == nil || lease.Tracked == nil || e.Track.ID != lease.Tracked.ID {
				t.Errorf("after the copy: exported %v, record %v, told %v", e.Exported, e.Track, lease.Tracked)
			}
			l.a.podWrites(2, 1)
			l.must("unstage", l.a.Unstage(l.ctx, volumeID, staging))
			if e := l.a.entry(); e.State != state.Retained || e.Track != nil || e.Tracked == nil || e.Tracked.ID != lease.Tracked.ID {
				t.Errorf("after the volume has left: %s, record %v, written %v", e.State, e.Track, e.Tracked)
			}
		})
	}
}

// TestImpossibleEntry: what cannot be true is not journalled; a volume whose journal has it
// already comes away from it.
func TestImpossibleEntry(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	l.must("stage", l.a.Stage(l.ctx, l.publish(l.a.name)))
	l.a.podWrites(1, 0, 1)
	e := *l.a.entry()
	e.Inherited = true
	if err := l.a.Journal.Save(string(volumeID), e); err != nil {
		t.Fatal(err)
	}
	l.must("unstage", l.a.Unstage(l.ctx, volumeID, staging))
	if e := l.a.entry(); e.State != state.Retained {
		t.Errorf("the journal says %s", e.State)
	}
}
