package attach_test

import (
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/volume"
)

// asksPreload asks for a preload, or with "" takes it back.
func (l *life) asksPreload(request string, bandwidth int64) {
	l.t.Helper()
	obj := l.record()
	obj.Spec.Preload = nil
	if request != "" {
		obj.Spec.Preload = &v1alpha1.PreloadRequest{Request: request, BandwidthBytesPerSecond: &bandwidth}
	}
	l.must("ask", l.api.Update(l.ctx, obj))
}

// awaitPreload has node h look until the record says so of a request.
func (l *life) awaitPreload(h *host, request string, s v1alpha1.PreloadState) v1alpha1.PreloadStatus {
	l.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, err := h.Preloads(l.ctx)
		l.must("look", err)
		said := l.record().Status.Preload
		if said.Request == request && said.State == s {
			return said
		}
		if time.Now().After(end) {
			l.t.Fatalf("the record says %+v, want %s", said, s)
		}
	}
}

// TestPreloadOnDemand: a preload of a volume in use fills its cache, goes on behind the end of its plugin, ends
// when it is taken back, and holds up no unstage.
func TestPreloadOnDemand(t *testing.T) {
	l := newStreamLife(t, volume.ModeWritethrough, "")
	l.req = l.publish(l.a.name)
	l.req.Block = true
	l.begin(l.a)
	l.asksPreload("1", 0)
	said := l.awaitPreload(l.a, "1", v1alpha1.PreloadEnded) // the cache is smaller than the volume
	st, _, err := l.a.DM.Status(l.ctx, layout.Device(volumeID, layout.Top))
	l.must("status", err)
	if st.CacheUsed != st.CacheTotal || *said.CachedBytes != *said.TotalBytes || uint64(*said.TotalBytes) != st.CacheTotal*st.ChunkSectors*512 {
		t.Errorf("%d of %d chunks are cached: %+v", st.CacheUsed, st.CacheTotal, said)
	}

	l.asksPreload("2", 1<<20)
	l.a.start() // another process
	l.awaitPreload(l.a, "2", v1alpha1.PreloadEnded)
	l.asksPreload("", 0)
	_, err = l.a.Preloads(l.ctx)
	l.must("look", err)
	if said := l.record().Status.Preload; said.State != v1alpha1.PreloadEnded {
		t.Errorf("one that was over was taken back: %+v", said)
	}

	l.asksPreload("3", 1<<20)
	_, err = l.a.Preloads(l.ctx)
	l.must("look", err)
	l.leave(l.a)
	if busy, err := l.a.Preloads(l.ctx); err != nil || busy {
		t.Errorf("the volume has left, and its preload goes on: %t, %v", busy, err)
	}
}
