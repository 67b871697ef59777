package attach_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// wantGivenUp wants the stream to end soon, and the pod to go on past its cache.
func (l *life) wantGivenUp() {
	l.t.Helper()
	for range 60 {
		l.step(l.b)
		if e := l.b.entry(); e != nil && !e.Streams() {
			break
		}
	}
	if e := l.b.entry(); e == nil || e.Hydration != nil || e.Cached() {
		l.t.Fatalf("the stream does not end: %+v", e)
	}
	done := make(chan error, 1)
	go func() { done <- l.differs(l.b.podDevice()) }()
	select {
	case err := <-done:
		l.must("the pod reads", err)
	case <-time.After(time.Minute):
		l.t.Fatal("the pod's reads hang")
	}
	l.b.podWrites(700, 2)
	l.left()
}

// TestStreamSwapFails: a level whose tables could not be swapped is suspended, with the pod's I/O
// in it. The volume goes on without the cache.
func TestStreamSwapFails(t *testing.T) {
	for _, step := range []string{noneServes, hotServes} {
		t.Run(step, func(t *testing.T) {
			l := newStreamLife(t, volume.ModeWritethrough, "")
			l.streamUntil(step)
			device := "nf-" + string(volumeID) + ".hot"
			if step != noneServes {
				// As the expansion of a volume does.
				table, err := l.b.kernel.Client(nil).Table(l.ctx, device)
				l.must("table", err)
				l.must("load", l.b.kernel.Client(nil).Load(l.ctx, device, table))
			}
			l.b.kernel.FailSwap(device)
			if step != noneServes {
				if err := l.b.kernel.Client(nil).Resume(l.ctx, device); err == nil {
					t.Fatal("the swap was to fail")
				}
			}
			l.wantGivenUp()
		})
	}
}

// TestStreamMapLost: what cannot be copied or merged is given up after a while.
func TestStreamMapLost(t *testing.T) {
	for _, step := range []string{noneServes, bothServe} {
		t.Run(step, func(t *testing.T) {
			l := newStreamLife(t, volume.ModeWritethrough, "")
			l.streamUntil(step)
			l.b.start()
			l.must("remove the map", os.Remove(filepath.Join(l.b.files(), string(volumeID)+".xml")))
			l.wantGivenUp()
		})
	}
}

// TestStreamPromoted: a level that has taken something in while it served has another map than the
// one that was read. It is never merged.
func TestStreamPromoted(t *testing.T) {
	for _, level := range []string{".hot", ""} {
		t.Run("level "+level, func(t *testing.T) {
			l := newStreamLife(t, volume.ModeWritethrough, "")
			l.streamUntil(bothServe)
			l.b.UseDM(devmappertest.Seen{
				Client: l.b.DM, Device: "nf-" + string(volumeID) + level,
				Change: func(st *devmapper.CacheStatus) { st.Promotions++ },
			})
			l.wantGivenUp()
		})
	}
}

// TestStreamMergeLate: maps that cannot be merged in the time of a request do not keep the volume
// on the node.
func TestStreamMergeLate(t *testing.T) {
	l := newStreamLife(t, volume.ModeWritethrough, "")
	l.streamUntil(bothServe)
	l.b.lateMaps.Store(true)
	ctx, cancel := context.WithTimeout(l.ctx, 4*time.Second)
	defer cancel()
	l.must("unstage", l.b.plugin.Unstage(ctx, volumeID, staging))
	devices, err := l.b.kernel.Client(nil).Info(l.ctx, "nf-")
	l.must("devices", err)
	if e := l.b.entry(); e != nil && (e.Streams() || e.Cached()) || len(devices) > 0 {
		t.Errorf("left: %+v, %v", e, devices)
	}
}

// TestStreamShutOut: the ownership is over and the session gone. Nothing is on this node alone, and
// the volume leaves it.
func TestStreamShutOut(t *testing.T) {
	for _, step := range []string{noneServes, hotServes, bothServe} {
		t.Run(step, func(t *testing.T) {
			l := newStreamLife(t, volume.ModeWritethrough, "")
			l.streamUntil(step)
			l.unpublish(l.b.name)
			l.b.mu.Lock()
			clear(l.b.sessions)
			l.b.mu.Unlock()
			l.persist(l.b, "unstage", func(p *plugin) error { return p.Unstage(l.ctx, volumeID, staging) })
			l.persist(l.b, "repair", func(p *plugin) error { return p.Repair(l.ctx) })
			devices, err := l.b.kernel.Client(nil).Info(l.ctx, "nf-")
			l.must("devices", err)
			if e := l.b.entry(); e != nil && e.Streams() || len(devices) > 0 {
				t.Errorf("left: %+v, %v", e, devices)
			}
		})
	}
}
