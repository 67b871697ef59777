package attach_test

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestWrittenThrough: what a cache has taken in writeback mode is not forgotten with the mode, nor with a move:
// the SSD may have the only copy of what the origin has lost (states.md, Scrub).
func TestWrittenThrough(t *testing.T) {
	l := newWarmLife(t, volume.ModeWritethrough, "")
	is := func(h *host, want bool, when string) {
		t.Helper()
		if e := h.entry(); e == nil || e.WrittenThrough != want {
			t.Errorf("%s: %+v", when, e)
		}
	}
	wants := func(h *host, mode v1alpha1.CacheMode, change func(*v1alpha1.CachedVolumeSpec)) {
		t.Helper()
		l.mode = volume.CacheMode(mode)
		l.ask(func(s *v1alpha1.CachedVolumeSpec) {
			s.CacheMode, s.AcceptDirtyLoss = mode, ""
			if mode == v1alpha1.CacheModeWriteback {
				s.AcceptDirtyLoss = v1alpha1.DirtyLossNodeLoss
			}
			change(s)
		})
		l.persist(h, "change", func(p *plugin) error { return l.apply(p) })
	}
	same := func(*v1alpha1.CachedVolumeSpec) {}

	l.moved()
	is(l.b, true, "writethrough, moved")
	l.hydration(l.b, l.a, wholeHydration)
	is(l.b, true, "writethrough, moved, whole")
	wants(l.b, v1alpha1.CacheModeWriteback, same)
	is(l.b, false, "writeback")
	l.b.podWrites(2, 1, 12)
	wants(l.b, v1alpha1.CacheModeWritethrough, same)
	is(l.b, false, "writethrough again")
	l.leave(l.b)
	l.givenBack(l.a)
	is(l.b, false, "left")
	l.arrive(l.a)
	if e := l.a.entry(); e.Hydration == nil || e.Hydration.Peer == nil {
		t.Fatalf("the cache has not followed: %+v", e)
	}
	is(l.a, false, "moved")
	l.hydration(l.a, l.b, wholeHydration)
	size := l.record().Spec.CacheSize
	wants(l.a, v1alpha1.CacheModeNone, func(s *v1alpha1.CachedVolumeSpec) { s.CacheSize, s.ChunkSizeBytes = "", nil })
	wants(l.a, v1alpha1.CacheModeWritethrough, func(s *v1alpha1.CachedVolumeSpec) { s.CacheSize = size })
	is(l.a, true, "made anew")
	l.leave(l.a)
	is(l.a, true, "left, as it was made anew")
	l.arrive(l.a)
	is(l.a, true, "used again")
}
