package attach_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// requested are the records that ask to prewarm a node.
type requested struct{ h *host }

// List implements attach.OwnedRecords.
func (r requested) List(ctx context.Context) ([]volume.Volume, error) {
	obj, err := records.Load(ctx, r.h.w.api, volumeID)
	if err != nil || obj.Spec.PrewarmNode != r.h.name {
		return nil, err
	}
	v, err := records.Volume(obj)
	return []volume.Volume{v}, err
}

// Changed implements attach.OwnedRecords.
func (requested) Changed() <-chan struct{} { return nil }

// askPrewarm asks node b to copy the cache.
func (l *life) askPrewarm() {
	l.t.Helper()
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.PrewarmNode, s.PrewarmRequest = l.b.name, "r" })
}

// prewarm has node b copy the cache of node a until that has ended.
func (l *life) prewarm() {
	l.t.Helper()
	generation := l.req.Publication.Fence.Generation
	l.persist(l.b, "prewarm", func(p *plugin) error {
		p.StepPrewarms(l.ctx)
		// The end of a copy clears away after it, under the volume's lock.
		free := func() bool {
			unlock, ok := p.Locks.TryLock(string(l.req.ID))
			if ok {
				unlock()
			}
			return ok
		}
		for p.Prewarming() > 0 || !free() {
			time.Sleep(100 * time.Microsecond)
		}
		e := l.b.entry()
		l.mu.Lock()
		obj := l.objects[fmt.Sprintf("move-%d-prewarm", generation)]
		ended := obj != nil && obj.ended
		l.mu.Unlock()
		if !ended || e != nil && e.Prewarm != nil && e.Prewarm.Copying {
			return errUnderWay
		}
		return nil
	})
	l.source(l.a)
}

// inUse has a pod of node a fill the cache, and go on.
func (l *life) inUse() {
	l.t.Helper()
	l.req = l.publish(l.a.name)
	l.podReads(l.a)
	l.a.podWrites(1, 0, 1, 2, 3, 4, 5)
	l.podReads(l.a)
	l.must("commit", l.a.kernel.Client(nil).CommitAll(l.ctx))
}

// prewarmed copies a cache to the other node while its pod writes, and then the volume goes there.
func (l *life) prewarmed() {
	l.t.Helper()
	l.inUse()
	l.askPrewarm()
	l.b.meanwhile = func() {
		if len(l.ended) == 0 {
			l.a.podWrites(2, 1)
		}
	}
	l.prewarm()
	l.begin(l.a)
	l.a.podWrites(3, 2)
	l.podReads(l.a)
	l.leave(l.a)
	got := l.b.got.Load()
	l.arrive(l.b)
	e := l.b.entry()
	if len(l.ended) == 0 && (e.Hydration == nil || e.Streams() && !e.Hydration.Stream.Prewarmed || e.Prewarm != nil) {
		l.t.Fatalf("what was prewarmed is not used: %+v", e.Hydration)
	}
	l.b.podWrites(4, 3, 12)
	for i := range wholeHydration {
		if e := l.b.entry(); e == nil || e.Hydration == nil {
			break
		}
		l.hydration(l.b, l.a, 1)
		l.podReads(l.b)
		l.b.podWrites(uint64(5+i), int64(2+i%3), 13)
		l.podReads(l.b)
	}
	l.podReads(l.b)
	if sent := uint64(l.b.got.Load() - got); len(l.ended) == 0 && e.Streams() && sent+e.Hydration.Stream.Hot != e.Hydration.Stream.Chunks {
		l.t.Errorf("%d chunks were sent, %d of %d were there", sent, e.Hydration.Stream.Hot, e.Hydration.Stream.Chunks)
	}
	l.leave(l.b)
	l.givenBack(l.a)
	l.arrive(l.a)
	l.a.podWrites(500, 4)
	l.hydration(l.a, l.b, 2)
	l.podReads(l.a)
	l.leave(l.a)
	l.givenBack(l.b)
}

// newPrewarmLife is a life whose cache is copied before it follows its volume by a method.
func newPrewarmLife(t testing.TB, method volume.MoveMethod, mode volume.CacheMode, victim string, d ...disaster) *life {
	w := newWorldOf(t, mode, 64<<10) // what ended lives hold is kept until the last one
	w.method = method
	return newWarmLifeIn(w, mode, victim, mode == volume.ModeWriteback, d...)
}

var fillMethods = []volume.MoveMethod{volume.MethodClone, volume.MethodStream}

// TestPrewarm: what was copied beforehand is used by either method, and nothing that was written
// since comes from it.
func TestPrewarm(t *testing.T) {
	for _, method := range fillMethods {
		for _, mode := range cacheModes[1:] {
			t.Run(fmt.Sprintf("%s, %s", method, mode), func(t *testing.T) { newPrewarmLife(t, method, mode, "").prewarmed() })
		}
	}
}

// TestKillPrewarm ends the plugin of either node, or the node, before and after everything that it
// changes while a cache is copied and then follows its volume.
func TestKillPrewarm(t *testing.T) {
	for i, method := range fillMethods {
		for j, victim := range []string{"node-a", "node-b"} {
			for k, power := range []bool{false, true} {
				if os.Getenv("MATRIX") != "whole" && (j == 0 && (power || i == 0) || j == 1 && power == (i == 0)) {
					continue
				}
				mode := cacheModes[1:][(i+j+k)%2]
				t.Run(fmt.Sprintf("%s/%s/%s/power=%t", method, mode, victim, power), func(t *testing.T) {
					t.Parallel()
					begin := func(d ...disaster) *life { return newPrewarmLife(t, method, mode, victim, d...) }
					var matter []string
					if victim == "node-a" {
						matter = []string{"after track writes to nf-pvc-1.data"}
					}
					killEachOf(t, begin, power, (*life).prewarmed, nil, matter...)
				})
			}
		}
	}
}

// TestPrewarmRefused: a node that streams nothing says so, once, and keeps nothing; so does one
// whose owner sends nothing.
func TestPrewarmRefused(t *testing.T) {
	for name, change := range map[string]func(l *life){
		"here":      func(l *life) { l.b.Stream = nil },
		"the owner": func(l *life) { l.a.Lessor().Streams = nil },
		// What was copied of it is nothing.
		"nothing comes": func(l *life) { l.b.Stream = nothingComes{} },
	} {
		t.Run(name, func(t *testing.T) {
			l := newPrewarmLife(t, volume.MethodStream, volume.ModeWritethrough, "")
			l.inUse()
			l.askPrewarm()
			change(l)
			l.prewarm()
			l.b.StepPrewarms(l.ctx)
			if e := l.b.entry(); e != nil || l.objects["move-1-prewarm"].Method != volume.MethodStream || l.begun != 1 {
				t.Errorf("journal %+v, %d objects", e, l.begun)
			}
			if e := l.a.entry(); e.Exported != nil || e.Track != nil && name != "nothing comes" {
				t.Errorf("the owner has %+v", e)
			}
			l.leave(l.a)
		})
	}
}

// nothingComes is an owner that does not serve any more.
type nothingComes struct{ attach.Puller }

func (nothingComes) Map(context.Context, volume.StreamSource, volume.ID, volume.MoveID) (volume.ChunkList, error) {
	return volume.ChunkList{}, volume.ErrNotFound
}

// TestPrewarmUnused: what was copied under a record of writes that has ended is not used.
func TestPrewarmUnused(t *testing.T) {
	for _, method := range fillMethods {
		t.Run(string(method), func(t *testing.T) {
			l := newPrewarmLife(t, method, volume.ModeWritethrough, "")
			l.inUse()
			l.askPrewarm()
			l.prewarm()
			l.leave(l.a)
			l.req = l.publish(l.a.name) // anew: the record of writes went with the devices
			l.podReads(l.a)
			l.a.podWrites(7, 0, 2)
			l.leave(l.a)
			l.arrive(l.b)
			if e := l.b.entry(); e.State != state.Staged || e.Streams() && e.Hydration.Stream.Prewarmed {
				t.Errorf("a copy was used that may be stale: %+v", e.Hydration)
			}
			l.hydration(l.b, l.a, wholeHydration)
			l.podReads(l.b)
			l.leave(l.b)
			l.givenBack(l.a)
		})
	}
}
