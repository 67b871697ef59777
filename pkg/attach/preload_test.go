package attach_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// preloadChunks is how many chunks the cache of a newPreloadLife has: the first of the volume, with
// places 0 to 6.
const preloadChunks = 16

// newPreloadLife is a life whose caches are filled from the origin as soon as they are made.
func newPreloadLife(t testing.TB, mode volume.CacheMode, method volume.MoveMethod, victim string, d ...disaster) *life {
	w := newWorldOf(t, mode, 512<<10)
	w.method = method
	obj := w.record()
	obj.Spec.CacheSize = fmt.Sprint(preloadChunks * 512 << 10)
	obj.Spec.WarmStart = v1alpha1.WarmStart{From: v1alpha1.WarmStartOrigin, Preload: v1alpha1.WarmStartPreloadAll}
	w.must("ask for a preload", w.api.Update(w.ctx, obj))
	return newWarmLifeIn(w, mode, victim, false, d...)
}

// preloaded has a volume come to nodes that have no cache of it, with the pod writing at every step,
// and leave one in the middle.
func (l *life) preloaded() {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3, 10)
	l.arrive(l.b)
	if e := l.b.entry(); len(l.ended) == 0 && (e.Hydration == nil || !e.Hydration.Preload) {
		l.t.Fatalf("no preload: %+v", e)
	}
	l.b.podWrites(2, 1, 12)
	l.hydration(l.b, l.a, 1)
	l.podReads(l.b)
	l.b.podWrites(3, 2, 13)
	l.hydration(l.b, l.a, wholeHydration)
	l.podReads(l.b)
	l.leave(l.b)
	l.arrive(l.a)
	l.a.podWrites(4, 3, 14)
	l.hydration(l.a, l.b, 1)
	l.podReads(l.a)
	l.leave(l.a)
	l.arrive(l.a)
	l.a.podWrites(5, 0, 4)
	l.hydration(l.a, l.b, wholeHydration)
	l.podReads(l.a)
	l.leave(l.a)
}

// forMethods has a test for each method and mode of a preload.
func forMethods(t *testing.T, test func(t *testing.T, mode volume.CacheMode, method volume.MoveMethod)) {
	for _, method := range []volume.MoveMethod{volume.MethodClone, volume.MethodStream} {
		for _, mode := range cacheModes[1:] {
			t.Run(fmt.Sprintf("%s/%s", method, mode), func(t *testing.T) { test(t, mode, method) })
		}
	}
}

// TestPreload: a new cache is filled with all that it has room for, and nothing that was written
// meanwhile is lost. A volume to which nothing was written has nothing to fill it with.
func TestPreload(t *testing.T) {
	forMethods(t, func(t *testing.T, mode volume.CacheMode, method volume.MoveMethod) {
		l := newPreloadLife(t, mode, method, "")
		l.arrive(l.a)
		if e := l.a.entry(); e.Hydration != nil || !e.Cached() {
			t.Fatalf("a new volume: %+v", e)
		}
		l.a.podWrites(1, 0, 1, 2, 3)
		l.leave(l.a)
		l.arrive(l.b)
		l.hydration(l.b, l.a, wholeHydration)
		st, found, err := l.b.kernel.Client(nil).Status(l.ctx, "nf-pvc-1")
		if err != nil || !found || st.CacheUsed != preloadChunks || st.Policy != devmapper.PolicySMQ {
			t.Errorf("after the preload: %+v (%v)", st, err)
		}
		if m := l.object(moveID(volume.MoveRequest{Fence: volume.Fence{Generation: 2}}, l.begun)); m.Method != volume.MethodPreload || !m.ended {
			t.Errorf("the move is %+v", m)
		}
		l.podReads(l.b)
		l.leave(l.b)
		newPreloadLife(t, mode, method, "").preloaded()
	})
}

// TestPreloadGoesOn: a volume that leaves in the middle, and comes back, goes on by clone where it
// was. Its object still says that it is a preload.
func TestPreloadGoesOn(t *testing.T) {
	l := newPreloadLife(t, volume.ModeWritethrough, volume.MethodClone, "")
	l.stay(l.a, 1, 0, 1, 2, 3)
	l.arrive(l.b)
	l.leave(l.b)
	if e := l.b.entry(); e.Hydration == nil {
		t.Fatalf("kept: %+v", e)
	}
	l.arrive(l.b)
	if e := l.b.entry(); e.Hydration == nil || !e.Hydration.Preload {
		t.Fatalf("staged again: %+v", e)
	}
	l.hydration(l.b, l.a, wholeHydration)
	l.podReads(l.b)
	l.leave(l.b)
}

// TestPreloadLate: the pod does not wait long for the map of a preload. The cache begins cold.
func TestPreloadLate(t *testing.T) {
	for _, method := range []volume.MoveMethod{volume.MethodClone, volume.MethodStream} {
		t.Run(string(method), func(t *testing.T) {
			l := newPreloadLife(t, volume.ModeWritethrough, method, "")
			l.b.lateLevels.Store(true)
			l.b.start()
			l.stay(l.a, 1, 0, 1, 2, 3)
			l.arrive(l.b)
			if e := l.b.entry(); e.Hydration != nil || !e.Cached() || e.EndedMove == nil || !strings.Contains(e.EndedMove.Message, "not ready") {
				t.Fatalf("got %+v", e)
			}
			l.noMap(l.b)
			l.b.podWrites(2, 1)
			l.podReads(l.b)
			l.leave(l.b)
		})
	}
}

// TestKillPreload ends the plugin, or the node, before and after everything that it changes while a
// cache is preloaded. Without MATRIX=whole each mode and method has one of the two.
func TestKillPreload(t *testing.T) {
	forMethods(t, func(t *testing.T, mode volume.CacheMode, method volume.MoveMethod) {
		for _, power := range []bool{false, true} {
			if os.Getenv("MATRIX") != "whole" && power == (mode == volume.ModeWriteback) == (method == volume.MethodStream) {
				continue
			}
			t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
				t.Parallel()
				begin := func(d ...disaster) *life { return newPreloadLife(t, mode, method, "node-b", d...) }
				killEachOf(t, begin, power, (*life).preloaded, nil, "after begin of a move", "after create nf-pvc-1.data")
			})
		}
	})
}
