package attach_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// streamUntil has a cache follow the volume to node b until a step of its stream.
func (l *life) streamUntil(step string) {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3, 4, 5)
	l.arrive(l.b)
	if e := l.b.entry(); !e.Streams() || e.Hydration.Stream.Hot == 0 || e.Hydration.Stream.Hot >= e.Hydration.Stream.Chunks {
		l.t.Fatalf("no stream of two levels: %+v", e)
	}
	l.b.podWrites(2, 1)
	for range wholeHydration {
		if l.streamIs() == step {
			return
		}
		l.step(l.b)
	}
	l.t.Fatalf("the stream never comes to %q", step)
}

// Steps of a stream, by the tables.
const (
	noneServes = "none serves"
	hotServes  = "the first level serves"
	bothServe  = "both levels serve"
	oneMap     = "one map"
)

var streamSteps = []string{noneServes, hotServes, bothServe, oneMap}

// streamIs is where the stream of node b is.
func (l *life) streamIs() string {
	l.t.Helper()
	top, hot := l.b.cacheOf(layout.Top), l.b.cacheOf(layout.Hot)
	switch {
	case top == nil:
		return "no cache"
	case hot == nil || top.Policy != devmapper.PolicyCleaner:
		return oneMap
	case top.Mode == devmapper.Writethrough:
		return bothServe
	case hot.Mode == devmapper.Writethrough:
		return hotServes
	}
	return noneServes
}

// cacheOf is the table of a part, nil if that is no cache.
func (h *host) cacheOf(p layout.Part) *devmapper.CacheTarget {
	t, err := h.kernel.Client(nil).Table(h.w.ctx, layout.Device(volumeID, p))
	if err != nil {
		return nil
	}
	if c, cached := t.Cache(); cached {
		return &c
	}
	return nil
}

// inTheMiddle runs a test at steps of a stream, in either mode.
func inTheMiddle(t *testing.T, steps []string, do func(t *testing.T, l *life, step string)) {
	for _, mode := range cacheModes[1:] {
		for _, step := range steps {
			t.Run(fmt.Sprintf("%s, %s", mode, step), func(t *testing.T) {
				l := newStreamLife(t, mode, "")
				l.streamUntil(step)
				do(t, l, step)
			})
		}
	}
}

// left has the volume leave node b, with nothing left of the stream.
func (l *life) left() {
	l.t.Helper()
	l.podReads(l.b)
	l.leave(l.b)
	l.givenBack(l.a)
	l.prepared = false // there may be nothing to begin from
	l.arrive(l.a)
	l.a.podWrites(900, 4, 6)
	l.podReads(l.a)
	l.leave(l.a)
	l.givenBack(l.b)
}

// TestExpandStream: a volume is expanded while a cache follows it; the stream goes on, and what is
// written behind the old end is there.
func TestExpandStream(t *testing.T) {
	inTheMiddle(t, streamSteps, func(t *testing.T, l *life, step string) {
		const size = 2 * lunBytes
		l.lun.Grow(size)
		_, err := l.control.Expand(l.ctx, volumeID, size)
		l.must("expand the LUN", err)
		grown, err := l.b.Expand(l.ctx, volume.ExpandRequest{ID: volumeID, Path: staging, Block: false})
		if l.must("expand", err); grown != size {
			t.Errorf("%d bytes, want %d", grown, size)
		}
		for _, p := range []layout.Part{layout.Origin, layout.Hot, layout.Top} {
			table, err := l.b.kernel.Client(nil).Table(l.ctx, layout.Device(volumeID, p))
			l.must("table", err)
			if left := p == layout.Hot && step == oneMap; !left && table.Sectors() != size/devmapper.SectorSize {
				t.Errorf("%s has %d sectors", p, table.Sectors())
			}
		}
		word := []byte("behind the old end")
		_, err = l.b.podDevice().WriteAt(word, lunBytes+mib)
		l.must("the pod writes", err)
		l.b.podWrites(3, 2, 7)
		l.hydration(l.b, l.a, wholeHydration)
		if st := l.b.cacheOf(layout.Top); st == nil || st.Policy != devmapper.PolicySMQ {
			t.Errorf("what was streamed does not serve: %+v", st)
		}
		got := make([]byte, len(word))
		if _, err := l.b.podDevice().ReadAt(got, lunBytes+mib); err != nil || string(got) != string(word) {
			t.Errorf("the pod reads %q, %v", got, err)
		}
		l.left()
	})
}

// TestUncacheStream: no cache is asked for while one follows the volume. It is taken away at once,
// and nothing of the stream is left.
func TestUncacheStream(t *testing.T) {
	inTheMiddle(t, streamSteps, func(t *testing.T, l *life, _ string) {
		l.ask(changes[4].change) // none
		l.mode = volume.ModeNone
		l.persist(l.b, "none", l.apply)
		l.wantUncached()
		l.b.podWrites(3, 2, 7)
		l.podReads(l.b)
		l.leave(l.b)
		l.givenBack(l.a)
	})
}

// wantUncached fails if node b has anything of a cache.
func (l *life) wantUncached() {
	l.t.Helper()
	if e := l.b.entry(); e.Cached() || e.Hydration != nil || e.State != state.Staged {
		l.t.Errorf("the journal says %+v", e)
	}
	infos, err := l.b.kernel.Client(nil).Info(l.ctx, "nf-")
	l.must("devices", err)
	for name := range infos {
		if name != layout.Device(volumeID, layout.Top) && name != layout.Device(volumeID, layout.Origin) {
			l.t.Errorf("device %s is left", name)
		}
	}
	lvs, err := l.b.lvmClient(nil).LVs(l.ctx, vgName)
	if l.must("logical volumes", err); len(lvs) > 0 {
		l.t.Errorf("logical volumes are left: %+v", lvs)
	}
	if c := l.b.cacheOf(layout.Top); c != nil {
		l.t.Errorf("the pod has %+v", c)
	}
}

// TestFailOverStream: the SSD fails while a cache follows the volume, which shows in either level.
// The volume goes on with what is on the origin.
func TestFailOverStream(t *testing.T) {
	for p, steps := range map[layout.Part][]string{layout.Top: streamSteps, layout.Hot: {noneServes, hotServes, bothServe}} {
		t.Run(string(p), func(t *testing.T) {
			inTheMiddle(t, steps, func(_ *testing.T, l *life, _ string) {
				l.b.CacheFaults().Devices = &failedLevel{Client: l.b.DM, name: layout.Device(volumeID, p)}
				l.must("pass", l.b.CacheFaults().Pass(l.ctx))
				l.wantUncached()
				l.b.podWrites(3, 2, 7)
				l.left()
			})
		})
	}
}

// failedLevel is a kernel one of whose caches has failed.
type failedLevel struct {
	devmapper.Client
	name string
}

func (f *failedLevel) StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error) {
	all, err := f.Client.StatusAll(ctx)
	if _, there := all[f.name]; there {
		all[f.name] = devmapper.CacheStatus{Fail: true}
	}
	return all, err
}

// TestLeaveStream: a volume leaves while a cache follows it. What serves by then is a retained
// cache like any other, from which the next move begins; without any, none is kept.
func TestLeaveStream(t *testing.T) {
	inTheMiddle(t, streamSteps, func(t *testing.T, l *life, step string) {
		want := l.b.entry().Hydration.Stream.Chunks
		if step == hotServes {
			want = l.b.entry().Hydration.Stream.Hot
		}
		l.leave(l.b)
		l.givenBack(l.a)
		if step == noneServes {
			if e := l.b.entry(); e != nil {
				t.Errorf("nothing served, and %+v is kept", e)
			}
			l.stay(l.a, 900, 4)
			return
		}
		if e := l.b.entry(); e == nil || e.State != state.Retained || !e.Clean || e.Hydration != nil {
			t.Fatalf("%d chunks served, and the journal says %+v", want, e)
		}
		m := l.b.retainedMap()
		// What the pod wrote before its level served is out of it.
		if n := uint64(len(m.Entries)); n == 0 && step != hotServes || n > want {
			t.Errorf("%d chunks are kept, %d served", n, want)
		}
		if len(m.Entries) == 0 {
			return
		}
		l.arrive(l.a)
		e := l.a.entry()
		if !e.Streams() || e.Hydration.Stream.Source == nil || e.Hydration.Stream.Chunks != uint64(len(m.Entries)) {
			t.Fatalf("the next move begins with %+v, want %d chunks of node-b", e.Hydration, len(m.Entries))
		}
		l.a.podWrites(901, 3)
		l.hydration(l.a, l.b, wholeHydration)
		l.podReads(l.a)
		l.leave(l.a)
		l.givenBack(l.b)
	})
}

// retainedMap is the map of the cache that node b keeps.
func (h *host) retainedMap() *cachemap.Map {
	h.w.t.Helper()
	c := h.lvmClient(nil)
	h.w.must("activate", c.Activate(h.w.ctx, vgName, layout.MetaLV(volumeID)))
	lvs, err := c.LVs(h.w.ctx, vgName)
	h.w.must("logical volumes", err)
	m, err := readInUse(devmappertest.Tools{Machine: h.machine})(h.w.ctx, layout.Find(lvs, volumeID).Meta.DevPath(), h.dir+"/retained")
	h.w.must("map", err)
	return &m
}

// TestKillStreamChanged ends the new node's plugin, or the node, before and after everything that it
// changes while the volume is expanded, and loses its cache, in the middle of a stream.
func TestKillStreamChanged(t *testing.T) {
	for i, step := range []string{noneServes, hotServes} {
		for _, power := range []bool{false, true} {
			mode := cacheModes[1+i]
			t.Run(fmt.Sprintf("%s/%s/power=%t", mode, step, power), func(t *testing.T) {
				t.Parallel()
				begin := func(d ...disaster) *life {
					l := newStreamLife(t, mode, "node-b")
					l.streamUntil(step)
					l.next = d
					l.arm()
					return l
				}
				killEachOf(t, begin, power, (*life).streamChanged, nil, "after load nf-pvc-1.hot", "after load nf-pvc-1", "after remove nf-pvc-1.hot")
			})
		}
	}
}

// streamChanged has a volume expanded and its cache taken away in the middle of a stream, with the
// pod writing meanwhile.
func (l *life) streamChanged() {
	l.t.Helper()
	const size = 2 * lunBytes
	staged := func(do func(p *plugin) error) func(p *plugin) error {
		return func(p *plugin) error {
			if _, running := l.b.mounts[staging]; !running { // the node has lost its power
				if err := p.Stage(l.ctx, l.req); err != nil {
					return err
				}
			}
			return do(p)
		}
	}
	l.lun.Grow(size)
	_, err := l.control.Expand(l.ctx, volumeID, size)
	l.must("expand the LUN", err)
	l.persist(l.b, "expand", staged(func(p *plugin) error {
		_, err := p.Expand(l.ctx, volume.ExpandRequest{ID: volumeID, Path: staging, Block: false})
		return err
	}))
	l.podReads(l.b)
	l.b.podWrites(3, 2, 7)
	l.ask(changes[4].change) // none
	l.mode = volume.ModeNone
	l.persist(l.b, "none", staged(l.apply))
	if len(l.ended) == 0 {
		l.wantUncached()
	}
	l.b.podWrites(4, 3, 8)
	l.podReads(l.b)
	l.leave(l.b)
	l.givenBack(l.a)
}
