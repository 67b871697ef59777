package attach_test

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// readBy gives the volume to one reader more.
func (w *world) readBy(node string) volume.StageRequest {
	w.t.Helper()
	p, err := w.control.PublishReader(w.ctx, volumeID, node, nil, &account)
	w.must("publish to a reader", err)
	return volume.StageRequest{ID: volumeID, StagingPath: staging, FSType: "ext4", Publication: p, Credentials: &account, ReadOnly: true}
}

// reads has a pod of a node read the volume, which it cannot write to.
func (l *life) reads(h *host, req volume.StageRequest) {
	l.t.Helper()
	l.persist(h, "stage", func(p *plugin) error { return p.Stage(l.ctx, req) })
	for range 3 { // so that some of it is cached
		h.podReads()
	}
	if _, err := h.podDevice().WriteAt([]byte("written"), offset(0)); !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EPERM) {
		l.t.Fatalf("a pod that reads has written: %v (ended: %q)", err, l.ended)
	}
	if obj := l.record(); obj.Status.DirtyState != v1alpha1.DirtyStateClean {
		l.t.Fatalf("the record of a volume that is read says %s (ended: %q)", obj.Status.DirtyState, l.ended)
	}
}

// gone has the volume leave a reader.
func (l *life) gone(h *host) {
	l.t.Helper()
	l.persist(h, "unstage", func(p *plugin) error { return p.Unstage(l.ctx, volumeID, staging) })
	l.unpublish(h.name)
	l.nothingLeft(h)
}

// beRead: one node writes, both read at the same time, one comes back to what it has kept, and what
// was cached of it is stale once somebody has written.
func (l *life) beRead() {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3, 10, 11)
	a, b := l.readBy(l.a.name), l.readBy(l.b.name)
	if a.Publication.Fence.Generation != b.Publication.Fence.Generation {
		l.t.Fatalf("readers have generations %d and %d", a.Publication.Fence.Generation, b.Publication.Fence.Generation)
	}
	l.reads(l.a, a)
	l.reads(l.b, b)
	l.gone(l.a)
	l.b.podReads()
	l.reads(l.a, l.readBy(l.a.name))
	l.gone(l.b)
	l.gone(l.a)
	l.stay(l.b, 2, 1, 12)
	l.reads(l.a, l.readBy(l.a.name))
	l.gone(l.a)
}

// TestReaders: nothing is in the way.
func TestReaders(t *testing.T) {
	for _, mode := range cacheModes {
		t.Run(string(mode), func(t *testing.T) { newLife(t, mode).beRead() })
	}
}

// TestKillReaders ends the plugin of a reader, or its node, before and after everything that it
// changes: nothing is written, and nobody reads what is not the volume's (I1, I3, I4).
func TestKillReaders(t *testing.T) {
	for _, power := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
			t.Parallel()
			killEach(t, volume.ModeWriteback, power, (*life).beRead, nil, "after create nf-pvc-1", "after remove nf-pvc-1")
		})
	}
}

// TestReaderWarm: a reader that comes back finds its cache as it left it, since nobody has written; the
// cache of whoever wrote before is not used.
func TestReaderWarm(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	l.stay(l.a, 1, 0, 1, 2)
	used := func() uint64 {
		t.Helper()
		s, found, err := l.a.kernel.Client(nil).Status(l.ctx, "nf-"+string(volumeID))
		if err != nil || !found {
			t.Fatalf("status: %v, %v", found, err)
		}
		return s.CacheUsed
	}
	req := l.readBy(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	if n := used(); n > 1 { // the mount has read
		t.Errorf("a reader begins with %d blocks of the owner before it", n)
	}
	l.reads(l.a, req)
	before := used()
	l.gone(l.a)
	l.must("stage", l.a.Stage(l.ctx, l.readBy(l.a.name)))
	if n := used(); before < 2 || n < before {
		t.Errorf("a reader comes back to %d blocks, and had %d", n, before)
	}
	l.gone(l.a)
}

// TestReaderShutOut: a node that was taken off the list of readers reads nothing more, and neither
// stages the volume nor shows it to a pod.
func TestReaderShutOut(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	l.stay(l.a, 1, 0, 1, 2)
	req, other := l.readBy(l.a.name), l.readBy(l.b.name)
	l.reads(l.a, req)
	l.reads(l.b, other)
	l.unpublish(l.b.name) // as of a node that is lost
	if err := l.b.Stage(l.ctx, other); !errors.Is(err, volume.ErrFenced) {
		t.Errorf("stage of a node that reads no more: %v", err)
	}
	if err := l.b.Publish(l.ctx, volume.PublishRequest{ID: volumeID, StagingPath: staging, TargetPath: "/pod", FSType: "ext4", ReadOnly: true}); !errors.Is(err, volume.ErrFenced) {
		t.Errorf("publish on a node that reads no more: %v", err)
	}
	if _, admitted := l.admission(l.b.name); admitted {
		t.Error("the storage server admits a node that was shut out")
	}
	l.a.podReads()
	l.must("unstage", l.b.Unstage(l.ctx, volumeID, staging))
	l.gone(l.a)
	l.stay(l.b, 2, 5)
}

// TestReaderPreload: the cache of a reader is filled with all that it has room for, by either method, while
// its pod reads, and none of what serves meanwhile can be written to.
func TestReaderPreload(t *testing.T) {
	for _, method := range []volume.MoveMethod{volume.MethodClone, volume.MethodStream} {
		t.Run(string(method), func(t *testing.T) {
			l := newPreloadLife(t, volume.ModeWriteback, method, "")
			l.stay(l.a, 1, 0, 1, 2, 3, 10)
			l.req = l.readBy(l.b.name)
			l.begin(l.b)
			if e := l.b.entry(); e.Hydration == nil || !e.Hydration.Preload || !e.ReadOnly || e.Mode != volume.ModeWritethrough {
				t.Fatalf("no preload of a reader: %+v", e)
			}
			l.hydration(l.b, l.a, 1)
			l.reads(l.b, l.req)
			l.hydration(l.b, l.a, wholeHydration)
			l.reads(l.b, l.req)
			if e := l.b.entry(); e.Hydration != nil {
				t.Errorf("the preload does not end: %+v", e.Hydration)
			}
			l.gone(l.b)
		})
	}
}
