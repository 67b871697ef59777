package attach_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// newLateLife is a life whose stages find no list of blocks, however long they take.
func newLateLife(t testing.TB, mode volume.CacheMode, victim string, d ...disaster) *life {
	l := newStreamLife(t, mode, victim, d...)
	l.prepared, l.b.silent = false, make(chan struct{}, 1)
	return l
}

// told reports whether the source node of every move knows that it has ended.
func (l *life) told() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.objects {
		if !m.ended {
			return false
		}
	}
	return len(l.objects) > 0
}

// TestStreamNotReady: a stage does not wait for a map that has not come by the time at which it
// would be over without, nor until somebody is told. The volume starts cold, and what it asks for
// comes after that. The end of the move is told later, whatever comes next.
func TestStreamNotReady(t *testing.T) {
	next := map[string]func(l *life, mode volume.CacheMode){
		"a look for changes": func(l *life, mode volume.CacheMode) {
			_, err := l.b.Change(l.ctx)
			l.must("change", err)
			if e := l.b.entry(); e.Mode != mode {
				l.t.Errorf("mode %s, want %s", e.Mode, mode)
			}
		},
		"the next process": func(l *life, _ volume.CacheMode) {
			l.b.start()
			l.must("repair", l.b.Repair(l.ctx))
		},
		"the end of the stay": func(l *life, _ volume.CacheMode) { l.leave(l.b) },
	}
	for _, mode := range cacheModes[1:] {
		for name, do := range next {
			t.Run(fmt.Sprintf("%s, %s", mode, name), func(t *testing.T) {
				l := newLateLife(t, mode, "")
				l.stay(l.a, 1, 0, 1, 2, 3)
				l.arrive(l.b)
				e := l.b.entry()
				if e.Hydration != nil || e.Mode != volume.ModeWritethrough || e.EndedMove == nil || e.EndedMove.Outcome != volume.MoveFailed {
					t.Fatalf("got %+v", e)
				}
				if l.told() {
					t.Error("the pod has waited until the old node was told")
				}
				l.b.podWrites(2, 1)
				l.podReads(l.b)
				do(l, mode)
				if e := l.b.entry(); !l.told() || e != nil && e.EndedMove != nil {
					t.Errorf("nobody was told: %+v", e)
				}
				if len(l.b.mounts) > 0 {
					l.leave(l.b)
				}
				l.givenBack(l.a)
			})
		}
	}
}

// TestStreamMapsLate: nor does a stage wait for maps that take long to be written.
func TestStreamMapsLate(t *testing.T) {
	l := newStreamLife(t, volume.ModeWritethrough, "")
	l.prepared, l.b.listed = false, make(chan struct{})
	l.b.lateLevels.Store(true)
	l.b.start()
	l.stay(l.a, 1, 0, 1, 2, 3)
	l.arrive(l.b)
	if e := l.b.entry(); e.Hydration != nil || !e.Cached() || e.EndedMove == nil || !strings.Contains(e.EndedMove.Message, "not ready") {
		t.Fatalf("got %+v", e)
	}
	if l.told() {
		t.Error("the pod has waited until the old node was told")
	}
	l.noMap(l.b)
	l.b.podWrites(2, 1)
	l.podReads(l.b)
	l.leave(l.b)
	l.givenBack(l.a)
}

// noMap checks that nothing of a stream's map is left.
func (l *life) noMap(h *host) {
	l.t.Helper()
	if _, err := os.Stat(filepath.Join(h.files(), string(volumeID)+".xml")); !errors.Is(err, os.ErrNotExist) {
		l.t.Errorf("the map of the stream was left: %v", err)
	}
}

// TestStreamPreparedNotReady: a stage was prepared in vain, since its maps took too long to be
// written after kubelet had asked for it. The stage does not try that again; the next process does not
// know of it, and then the list does not come in time.
func TestStreamPreparedNotReady(t *testing.T) {
	for name, restart := range map[string]bool{"the stage knows": false, "another process": true} {
		t.Run(name, func(t *testing.T) {
			l := newStreamLife(t, volume.ModeWritethrough, "")
			l.b.lateLevels.Store(true)
			l.b.start()
			l.stay(l.a, 1, 0, 1, 2, 3)
			l.req = l.publish(l.b.name)
			l.b.listed = make(chan struct{})
			l.prepareAsked(l.b)
			l.b.lateLevels.Store(false)
			l.b.listed, l.b.silent = nil, make(chan struct{}, 1)
			if restart {
				l.b.start()
			}
			began := l.b.asked.Load()
			l.podReads(l.b)
			if e := l.b.entry(); e.Hydration != nil || e.EndedMove == nil {
				t.Fatalf("got %+v", e)
			}
			if asked := l.b.asked.Load() > began; asked != restart {
				t.Errorf("the other node was asked for its list again: %t", asked)
			}
			l.noMap(l.b)
			l.leave(l.b)
			l.givenBack(l.a)
		})
	}
}

// prepareAsked prepares the stage of a volume for which kubelet asks meanwhile.
func (l *life) prepareAsked(h *host) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Prestage(l.ctx)
	}()
	for {
		h.Announce(l.req)
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// TestKillStreamNotReady ends the plugin of the new node, or the node, before and after everything
// that it changes meanwhile: the old node is told all the same.
func TestKillStreamNotReady(t *testing.T) {
	for i, power := range []bool{false, true} {
		mode := cacheModes[1:][i%2]
		t.Run(fmt.Sprintf("%s/power=%t", mode, power), func(t *testing.T) {
			t.Parallel()
			begin := func(d ...disaster) *life { return newLateLife(t, mode, "node-b", d...) }
			killEachOf(t, begin, power, (*life).late, nil, "after end of a move")
		})
	}
}

func (l *life) late() {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3)
	l.arrive(l.b)
	l.b.podWrites(2, 1)
	l.once(l.b, func(p *plugin) { _, _ = p.Change(l.ctx) })
	l.podReads(l.b)
	l.leave(l.b)
	l.persist(l.b, "repair", func(p *plugin) error { return p.Repair(l.ctx) })
	if !l.told() {
		l.t.Errorf("the old node was not told (ended: %q)", l.ended)
	}
	l.givenBack(l.a)
}
