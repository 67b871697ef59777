//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// prewarm carries out a request to be prewarmed.
func (n *node) prewarm(ctx context.Context, id volume.ID) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	ended := make(chan struct{})
	go func() { n.RunPrewarms(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	for {
		e, err := n.Journal.Load(string(id))
		if err == nil && e.State == state.Prewarmed && !e.Prewarm.Copying {
			// Whoever has said so has the volume until the last step is done.
			unlock, err := n.hold(ctx, id)
			if err != nil {
				return err
			}
			unlock()
			return nil
		}
		if err != nil && !errors.Is(err, journal.ErrNotFound) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the copy does not end: %+v, %w", e.Prewarm, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// askFor asks a node to copy the cache.
func (v *movers) askFor(name string) {
	v.m.t.Helper()
	mustPass(v.m.t, "record", v.rec.update(v.req.ID, func(r *fileRecord) error {
		r.Volume.Prewarm = &volume.Prewarm{Node: name, Request: fmt.Sprintf("request-%d", v.gen)}
		return nil
	}))
}

// left is how much of the volume's cache is still to be copied, in bytes.
func (v *movers) left() int64 {
	v.m.t.Helper()
	e, err := v.n.Journal.Load(string(v.req.ID))
	mustPass(v.m.t, "journal", err)
	if e.Hydration == nil {
		v.m.t.Fatal("the cache is not being filled")
	}
	clones, err := v.n.DM.CloneStatusAll(v.m.t.Context())
	mustPass(v.m.t, "clones", err)
	st, found := clones[layout.Device(v.req.ID, layout.Data)]
	if !found {
		v.m.t.Fatal("the data device is no clone")
	}
	return int64(st.Regions-st.Hydrated) * int64(e.Hydration.RegionSectors) * 512
}

// warmedMove copies the cache of A to B while it is written to, writes more, and moves
// the volume. It returns what the volume must hold.
func (v *movers) warmedMove() []byte {
	t := v.m.t
	v.stage()
	data := v.warmUp(11)
	v.askFor(otherName)
	done := make(chan error, 1)
	go func() { done <- v.b.prewarm(t.Context(), v.req.ID) }()
	put := func(seed uint64, at, n int64) {
		late := pattern(seed, n)
		write(t, v.device(), late, at, true)
		copy(data[at:], late)
	}
	for i := range int64(8) { // while it is copied
		put(uint64(20+i), i*mib+mib/2, mib/8)
		time.Sleep(200 * time.Millisecond)
	}
	mustPass(t, "copy", <-done)
	put(30, 12*mib, mib/2)
	// What was not cached before takes the place of what was, or of nothing.
	more := pattern(31, 4*mib)
	write(t, v.device(), more, 64*mib, true)
	for pass := range uint64(30) {
		reads(t, v.device(), pass, 500, 16*mib)
		check(t, v.device(), more, 64*mib)
	}
	v.unstage()
	v.publishTo(v.b, otherName)
	v.stage()
	return data
}

// TestKernelPrewarm: what was prewarmed is there at once after the move, and
// what was written since is not taken from it.
func TestKernelPrewarm(t *testing.T) {
	m := newMachine(t)
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		v := newMovers(t, m, "prewarm-"+string(mode), cached(mode, 64*mib))
		data := v.warmedMove()
		left := v.left()
		t.Logf("%s: %d KiB are left to copy", mode, left/1024)
		if left == 0 || left > 12*mib {
			t.Errorf("%s: %d bytes are left to copy, want some and at most %d", mode, left, 12*mib)
		}
		check(t, v.device(), data, 0)
		check(t, v.device(), pattern(31, 4*mib), 64*mib)
		v.wantHydrated()
		v.endMoved(data)
	}
}

// TestKernelPrewarmForgotten: the test above would see it if the record of writes were
// not heeded.
func TestKernelPrewarmForgotten(t *testing.T) {
	m := newMachine(t)
	for name, spec := range map[string]volume.Spec{
		"clone": cached(volume.ModeWritethrough, 64*mib), "stream": streaming(cached(volume.ModeWritethrough, 64*mib)),
	} {
		v := newMovers(t, m, "forgotten-"+name, spec)
		v.b.Moves.(*pair).unchanged = true
		data := v.warmedMove()
		if spec.WarmStart.Method == volume.MethodStream {
			v.wantHydrated()
		}
		if err := compare(v.device(), data, 0); err == nil {
			t.Errorf("%s: no stale byte was seen although the record of writes was cleared", name)
		} else {
			t.Logf("%s, as expected: %v", name, err)
		}
		v.unstage()
		v.remove()
		mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
	}
}

// TestKernelStreamPrewarmed: a stream goes on from what was prewarmed, without dm-clone and without
// a target for iSCSI on either node: what is there is not sent again, and what was written
// since is.
func TestKernelStreamPrewarmed(t *testing.T) {
	m := newMachine(t)
	for _, mode := range cachingModes() {
		v := newMovers(t, m, "ahead-"+string(mode), streaming(cached(mode, 64*mib)))
		for _, n := range []*node{v.a, v.b} {
			n.Lessor().Exporter = nil
			n.WarmProblem = func(context.Context) string { return "this kernel has neither of them" }
		}
		data := v.warmedMove()
		e, err := v.b.Journal.Load(string(v.req.ID))
		mustPass(t, "journal", err)
		if !e.Streams() || !e.Hydration.Stream.Prewarmed || e.Hydration.Stream.Hot >= e.Hydration.Stream.Chunks {
			t.Fatalf("%s: what was prewarmed is not used, or all of it: %+v", mode, e.Hydration)
		}
		check(t, v.device(), data, 0)
		check(t, v.device(), pattern(31, 4*mib), 64*mib)
		late := pattern(32, 2*mib)
		write(t, v.device(), late, 7*mib, true)
		copy(data[7*mib:], late)
		sent := v.a.streams.sent.Load()
		v.wantStreamed()
		sent = v.a.streams.sent.Load() - sent
		s := e.Hydration.Stream
		t.Logf("%s: %d of %d chunks were there, %d were sent", mode, s.Hot, s.Chunks, sent)
		if uint64(sent) != s.Chunks-s.Hot || sent == 0 || sent*int64(e.ChunkSectors)*512 > 12*mib {
			t.Errorf("%s: %d chunks were sent, want the %d that were not there, and few", mode, sent, s.Chunks-s.Hot)
		}
		v.endMoved(data)
	}
}

// TestKernelPrewarmUnused: whatever does not fit makes the move an ordinary one.
func TestKernelPrewarmUnused(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "unused", cached(volume.ModeWritethrough, 64*mib))
	v.stage()
	data := v.warmUp(12)
	v.askFor(otherName)
	mustPass(t, "copy", v.b.prewarm(t.Context(), v.req.ID))
	// The volume is attached anew: the record of writes ends with the device.
	v.unstage()
	v.stage()
	late := pattern(13, mib)
	write(t, v.device(), late, 0, true)
	copy(data, late)
	v.unstage()
	v.publishTo(v.b, otherName)
	v.stage()
	if left := v.left(); left < 15*mib {
		t.Errorf("%d bytes are left to copy: a copy was used that may be stale", left)
	}
	check(t, v.device(), data, 0)
	v.wantHydrated()
	check(t, v.device(), data, 0)
	v.unstage()

	// The volume goes elsewhere: the copy is wiped.
	v.publishTo(v.a, nodeName)
	v.stage()
	v.wantHydrated()
	v.askFor(otherName)
	mustPass(t, "copy", v.b.prewarm(t.Context(), v.req.ID))
	v.unstage()
	v.gen++
	v.publishTo(v.a, nodeName)
	mustPass(t, "repair", v.b.Repair(t.Context()))
	if e, err := v.b.Journal.Load(string(v.req.ID)); err == nil {
		t.Errorf("a copy of a generation that is over is kept: %+v", e)
	}
	v.stage()
	check(t, v.device(), data, 0)
	v.unstage()
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}

// endMoved ends a volume that was moved by warmedMove, after a look at its content.
func (v *movers) endMoved(data []byte) {
	t := v.m.t
	t.Helper()
	check(t, v.device(), data, 0)
	check(t, v.device(), pattern(31, 4*mib), 64*mib)
	v.unstage()
	v.checkUncached(data)
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}

// copied is how much was written to what the other node has made for the copy.
func (v *movers) copied() int64 {
	v.m.t.Helper()
	lvs, err := v.b.LVM.LVs(v.m.t.Context(), pool.VolumeGroup(otherName))
	mustPass(v.m.t, "logical volumes", err)
	for _, lv := range lvs {
		if lv.Name == string(v.req.ID)+".data" && lv.Active {
			w, err := blockdev.WrittenTo("/sys", lv.DevNo())
			mustPass(v.m.t, "statistics", err)
			return int64(w.Sectors) * 512
		}
	}
	return 0
}

// TestKernelPrewarmCutShort: the volume comes while it is still copied; what is there is
// used, and the copy writes no more.
func TestKernelPrewarmCutShort(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "short", cached(volume.ModeWriteback, 64*mib))
	v.stage()
	data := v.warmUp(14)
	v.askFor(otherName)
	v.b.Warm.NodeBandwidth = mib
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { v.b.RunPrewarms(ctx); close(ended) }()
	soon(t, "a part is copied", func() bool { return v.copied() >= 4*mib })
	// However slow the machine, the rest is not copied until the volume is there.
	v.b.Warm.NodeBandwidth = 1
	late := pattern(15, mib)
	write(t, v.device(), late, 0, true)
	copy(data, late)
	v.unstage()
	v.publishTo(v.b, otherName)
	v.stage()
	left := v.left()
	st, _ := v.cache()
	cached := int64(st.CacheUsed*st.ChunkSectors) * 512
	t.Logf("%d of %d KiB are left to copy", left/1024, cached/1024)
	if left < cached/4 || left > cached-2*mib {
		t.Errorf("%d of %d bytes are left to copy: the copy was not cut short, or not used", left, cached)
	}
	v.b.Warm.NodeBandwidth = 0
	check(t, v.device(), data, 0)
	v.wantHydrated()
	check(t, v.device(), data, 0)
	cancel()
	<-ended
	check(t, v.device(), data, 0)
	v.unstage()
	v.checkUncached(data)
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}

// TestKernelKillPrewarm kills the plugins at every step of a prewarm and of the
// move after it: what follows converges, and no byte is wrong (I3, I8).
func TestKernelKillPrewarm(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "killahead", cached(volume.ModeWriteback, 32*mib))
	points := slices.DeleteFunc(faultpoint.List(), func(p string) bool { return !strings.HasPrefix(p, "prewarm.") })
	if len(points) < 14 {
		t.Errorf("a prewarm has %d steps only: %v", len(points), points)
	}
	for _, point := range killedAt(t, points, "prewarm.exported", "prewarm.journaled", "prewarm.synced", "prewarm.taken") {
		v.killedPrewarm(point)
		if t.Failed() {
			t.Fatalf("killed at %s", point)
		}
	}
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}

func (v *movers) killedPrewarm(point string) {
	t := v.m.t
	began := time.Now()
	v.publishTo(v.a, nodeName)
	v.stage()
	v.wantHydrated()
	data := pattern(uint64(v.gen), 4*mib)
	write(t, v.device(), data, 0, true)
	v.heat(4 * mib)
	v.askFor(otherName)
	v.n = v.b
	v.a.streams.lose()
	killed := v.killAt(point, order{Lessor: v.a.dir, Prewarm: true})
	mustPass(t, "sending", v.a.restartStreams(t.Context(), nodeName))
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
	mustPass(t, "copy", v.b.prewarm(t.Context(), v.req.ID))
	v.n = v.a
	late := pattern(uint64(v.gen)+1000, mib/2)
	write(t, v.device(), late, mib, true)
	copy(data[mib:], late)
	if !killed {
		killed = v.killAt(point, order{Unstage: true})
		mustPass(t, "repair", v.a.Repair(t.Context()))
	}
	v.unstage()
	v.publishTo(v.b, otherName)
	if !killed && !v.killAt(point, order{Lessor: v.a.dir}) {
		t.Fatalf("nothing passed %s", point)
	}
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
	v.stage()
	left := v.left()
	check(t, v.device(), data, 0)
	if left == 0 || left > 3*mib {
		t.Errorf("killed at %s: %d bytes were left to copy: the copy was not used, or all of it", point, left)
	}
	v.wantHydrated()
	check(t, v.device(), data, 0)
	v.unstage()
	v.a.releaseAll(t)
	t.Logf("killed at %s: %s, %d KiB left to copy", point, time.Since(began).Round(time.Millisecond), left/1024)
}
