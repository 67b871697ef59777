package attach_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// newReaderLife is a life in which a new reader begins from another one.
func newReaderLife(t testing.TB, victim string, d ...disaster) *life {
	return newReaderLifeOf(t, 256<<10, victim, d...)
}

// newReaderLifeOf is one with chunks of a size.
func newReaderLifeOf(t testing.TB, chunk int64, victim string, d ...disaster) *life {
	w := newWorldOf(t, volume.ModeWriteback, chunk)
	w.method = volume.MethodStream
	return newWarmLifeIn(w, volume.ModeWriteback, victim, false, d...)
}

// joins has a node begin to read, beside one that reads and has some of the volume cached.
func (l *life) joins(h, beside *host) {
	l.t.Helper()
	l.reads(beside, l.readBy(beside.name))
	l.req = l.readBy(h.name)
	l.begin(h)
	if e := h.entry(); len(l.ended) == 0 && (!e.Streams() || e.Hydration.Stream.Source == nil || e.Hydration.From.Node != beside.name || !e.ReadOnly) {
		l.t.Fatalf("the new reader does not begin from the other one: %+v", e)
	}
}

// beReadFrom: a new reader begins from another one, and both go on; one leaves in the middle, and who
// writes after that finds nothing of it.
func (l *life) beReadFrom() {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3, 4, 5)
	l.joins(l.b, l.a)
	l.hydration(l.b, l.a, 1)
	l.podReads(l.b)
	l.a.podReads()
	l.hydration(l.b, l.a, wholeHydration)
	l.podReads(l.b)
	l.source(l.a)
	l.a.podReads()
	l.gone(l.b)
	l.gone(l.a)
	l.stay(l.b, 2, 1, 12)
	l.joins(l.b, l.a)
	l.hydration(l.b, l.a, 1)
	l.gone(l.a)
	l.podReads(l.b)
	l.persist(l.b, "unstage", func(p *plugin) error { return p.Unstage(l.ctx, volumeID, staging) })
	l.unpublish(l.b.name)
	l.persist(l.b, "repair", func(p *plugin) error { return p.Repair(l.ctx) }) // of a cache that was denied in the middle of a step
	l.nothingLeft(l.b)
	l.stay(l.a, 3, 4, 13)
}

// TestReaderJoins: nothing is in the way. The one that sends keeps its cache, and tells nobody else's blocks.
func TestReaderJoins(t *testing.T) {
	newReaderLife(t, "").beReadFrom()
	l := newReaderLife(t, "")
	l.stay(l.a, 1, 0, 1, 2, 3, 4, 5)
	l.joins(l.b, l.a)
	l.hydration(l.b, l.a, wholeHydration)
	st, found, err := l.b.kernel.Client(nil).Status(l.ctx, "nf-pvc-1")
	if err != nil || !found || st.CacheUsed < 4 || l.b.got.Load() < 4 {
		t.Errorf("after %d chunks: %+v (%v)", l.b.got.Load(), st, err)
	}
	l.source(l.a)
	if e := l.a.entry(); e.State != state.Staged || !e.Cached() || e.Exported != nil || e.StreamedTo != "" || e.Track != nil {
		t.Errorf("the one that sent: %+v", e)
	}
	if m := l.object(moveID(volume.MoveRequest{Purpose: volume.PurposeRead, Fence: l.b.entry().Fence}, l.begun)); m.Source == nil || m.Source.Node != l.a.name || !m.ended {
		t.Errorf("the move is %+v", m)
	}
	l.gone(l.a)
	l.podReads(l.b)
	l.gone(l.b)
}

// TestReaderJoinsWhileTheCacheChanges: the places of the cache that is read from get other blocks while
// it is, and none of them is taken for what was there before.
func TestReaderJoinsWhileTheCacheChanges(t *testing.T) {
	l := newReaderLifeOf(t, mib, "")
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.CacheSize = fmt.Sprint(4 << 20) })
	for place := range int64(8) { // what is in one place is in no other
		l.stay(l.a, uint64(place)+1, place)
	}
	l.joins(l.b, l.a)
	changed := false
	l.b.meanwhile = func() {
		before := l.demotions(l.a)
		for place := range int64(3) { // all of them again would end with the same map
			if _, err := l.a.podDevice().ReadAt(make([]byte, 8), offset(place)); err != nil {
				t.Error(err)
			}
		}
		changed = l.demotions(l.a) == before+3
	}
	l.hydration(l.b, l.a, wholeHydration)
	if !changed {
		t.Fatal("the map of the cache does not change: nothing is tested")
	}
	for place := int64(7); place >= 4; place-- { // those that came, before others take their places here
		b := make([]byte, 8)
		if _, err := l.b.podDevice().ReadAt(b, offset(place)); err != nil || binary.LittleEndian.Uint64(b) != uint64(place)+1 {
			t.Errorf("place %d has %v (%v)", place, b, err)
		}
	}
	l.podReads(l.b)
	l.gone(l.b)
	l.gone(l.a)
}

// demotions is how often a place of a node's cache was given to another block.
func (l *life) demotions(h *host) uint64 {
	l.t.Helper()
	st, found, err := h.kernel.Client(nil).Status(l.ctx, "nf-"+string(volumeID))
	if err != nil || !found {
		l.t.Fatalf("status: %v, %v", found, err)
	}
	return st.Demotions
}

// TestReaderAsksAnother: one that has no cache to send is not waited for: the next one is asked, and the
// pod runs without if there is none.
func TestReaderAsksAnother(t *testing.T) {
	l := newReaderLife(t, "")
	l.stay(l.a, 1, 0, 1, 2, 3)
	l.host("node-z")
	l.readBy("node-z") // and stages nothing
	a, b := l.readBy(l.a.name), l.readBy(l.b.name)
	l.persist(l.a, "stage", func(p *plugin) error { return p.Stage(l.ctx, a) })
	if e := l.a.entry(); e.Hydration != nil || !e.Cached() {
		t.Errorf("nobody has anything: %+v", e)
	}
	l.reads(l.a, a)
	l.req = b
	l.begin(l.b)
	if e := l.b.entry(); !e.Streams() || e.Hydration.From.Node != l.a.name {
		t.Fatalf("the one that has something is not asked: %+v", e)
	}
	l.hydration(l.b, l.a, wholeHydration)
	l.podReads(l.b)
	l.unpublish("node-z")
	l.gone(l.b)
	l.gone(l.a)
}

// TestKillReaderJoins ends the plugin of either reader, or its node, before and after everything that it
// changes while one begins from the other (I3, I4, I5).
func TestKillReaderJoins(t *testing.T) {
	for _, victim := range []string{"node-a", "node-b"} {
		for _, power := range []bool{false, true} {
			if os.Getenv("MATRIX") != "whole" && victim == "node-a" && power {
				continue
			}
			t.Run(fmt.Sprintf("%s/power=%t", victim, power), func(t *testing.T) {
				t.Parallel()
				begin := func(d ...disaster) *life { return newReaderLife(t, victim, d...) }
				killEachOf(t, begin, power, (*life).beReadFrom, nil)
			})
		}
	}
}
