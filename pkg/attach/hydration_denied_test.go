package attach_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// otherHydration is a hydration of another volume, which has no devices.
const otherHydration = volume.ID("pvc-2")

// hydrationBeside makes the plugin know of another volume's hydration before it looks for any.
func (h *host) hydrationBeside() (end func()) {
	h.w.t.Helper()
	e := state.Entry{ID: otherHydration, State: state.Staged, Mode: volume.ModeWritethrough, Activated: true, Hydration: &state.Hydration{RegionSectors: 64}}
	h.w.must("journal", h.Journal.Save(string(otherHydration), e))
	h.Hydrations().Begin(otherHydration, time.Time{})
	return func() { h.w.must("journal", h.Journal.Delete(string(otherHydration))) }
}

// moved has a cache follow its volume, of which nothing was copied yet.
func (l *life) moved() {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3, 10, 11)
	l.arrive(l.b)
	if e := l.b.entry(); len(l.ended) == 0 && (e == nil || e.Hydration == nil || e.Hydration.Peer == nil) {
		l.t.Fatalf("the cache has not followed: %+v", e)
	}
}

// killedUncache has a plugin killed at a step of taking the cache away in the middle of a hydration;
// ended is "" if it has fewer steps.
func killedUncache(t *testing.T, n int) (l *life, ended string) {
	t.Helper()
	l = newWarmLife(t, volume.ModeWritethrough, "")
	l.moved()
	l.ask(changes[4].change) // none
	l.b.killAfter(n)
	p := l.b.plugin
	ended, err := p.run(func() error { return l.apply(p) })
	if ended == "" {
		l.must("change", err)
	}
	return l, ended
}

// TestHydrationDenied: a plugin that is killed when the journal denies the cache below a hydration, and
// has not taken it from the pod yet, is followed by one that replaces a peer which is lost.
func TestHydrationDenied(t *testing.T) {
	denied := 0
	for n := 1; ; n++ {
		l, ended := killedUncache(t, n)
		if ended == "" {
			break
		}
		l.b.start()
		l.b.killAfter(0)
		_, live, err := l.b.kernel.Client(nil).Status(l.ctx, "nf-"+string(volumeID))
		l.must("status", err)
		if e := l.b.entry(); !live || e.Cached() || e.Hydration == nil {
			continue
		}
		denied++
		if from := l.b.entry().Hydration.From; from != nil {
			t.Errorf("the journal denies the cache, and has it begin from %+v", from)
		}
		l.denied()
	}
	if denied == 0 {
		t.Error("the plugin was never killed between the journal and the table")
	}
}

// denied is what comes after the kill: the source node loses its power, and the pod reads.
func (l *life) denied() {
	l.t.Helper()
	l.a.powerLoss()
	endOther := l.b.hydrationBeside()
	d, read, done := l.b.podDevice(), make(chan error, 1), make(chan struct{})
	go func() {
		read <- l.differs(d)
		close(done)
	}()
	l.b.UseDM(&draining{Client: l.b.DM, top: "nf-" + string(volumeID), done: done})
	ctx, cancel := context.WithTimeout(l.ctx, time.Minute)
	ran := make(chan struct{})
	go func() {
		l.b.Hydrations().Run(ctx)
		close(ran)
	}()
	changed := make(chan error, 1)
	go func() { changed <- l.apply(l.b.plugin) }()
	select {
	case err := <-read:
		l.must("the pod reads", err)
	case <-time.After(hydrationSoon):
		l.t.Fatal("the pod waits for a source node that is lost")
	}
	l.must("change", <-changed)
	cancel()
	<-ran
	endOther()
	if e := l.b.entry(); e.Hydration != nil || e.Cached() {
		l.t.Errorf("after the change the journal says %+v", e)
	}
	l.podReads(l.b)
	l.leave(l.b)
	l.a.start()
	l.givenBack(l.a)
}

// draining is a kernel that swaps the table of a device when what the pod reads has ended.
type draining struct {
	devmapper.Client
	top  string
	done <-chan struct{}
}

func (c *draining) Resume(ctx context.Context, name string) error {
	if name == c.top {
		select {
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return c.Client.Resume(ctx, name)
}

// TestWrittenPastAHydration: what the pod has written past its cache is read, if the node is lost
// while the cache is taken away in the middle of a hydration, and the volume gets another one.
func TestWrittenPastAHydration(t *testing.T) {
	for n := 1; ; n++ {
		l, ended := killedUncache(t, n)
		if ended == "" {
			return
		}
		l.b.podWrites(9, 1, 2)
		l.b.powerLoss()
		l.ask(func(s *v1alpha1.CachedVolumeSpec) {
			s.CacheMode, s.CacheSize = v1alpha1.CacheModeWritethrough, "4Mi"
		})
		l.b.start()
		l.b.killAfter(0)
		asked := l.begun
		l.must("stage", l.b.Stage(l.ctx, l.req))
		for name, m := range l.objects {
			if l.begun > asked && m.Source != nil {
				t.Errorf("%s begins from %+v again (ended: %s)", name, m.Source, ended)
			}
		}
		l.podReads(l.b)
		l.leave(l.b)
	}
}

// TestFailOverForgetsRetainedCache: a failover whose table cannot be swapped yet has the journal
// forget what the hydration began with, as it denies the cache.
func TestFailOverForgetsRetainedCache(t *testing.T) {
	l := newWarmLife(t, volume.ModeWritethrough, "")
	l.moved()
	l.b.UseDM(&failed{Client: l.b.DM, top: "nf-" + string(volumeID)})
	l.b.CacheFaults().Devices = l.b.DM
	if err := l.b.CacheFaults().Pass(l.ctx); !errors.Is(err, errSwap) {
		t.Fatalf("got %v, want %v", err, errSwap)
	}
	if e := l.b.entry(); e.Cached() || e.Hydration == nil || e.Hydration.From != nil {
		t.Errorf("the journal has mode %s, hydration %+v", e.Mode, e.Hydration)
	}
}

var errSwap = errors.New("the table cannot be loaded")

// failed is a kernel whose cache has failed, and that takes no other table.
type failed struct {
	devmapper.Client
	top string
}

func (f *failed) StatusAll(context.Context) (map[string]devmapper.CacheStatus, error) {
	return map[string]devmapper.CacheStatus{f.top: {Fail: true}}, nil
}

func (f *failed) Load(ctx context.Context, name string, t devmapper.Table) error {
	if name == f.top {
		return errSwap
	}
	return f.Client.Load(ctx, name, t)
}

// TestDeniedHydrationRests: a hydration that is left in the journal of a volume without a cache costs a
// look now and then, and no more.
func TestDeniedHydrationRests(t *testing.T) {
	l := newWarmLife(t, volume.ModeNone, "")
	l.req = l.publish(l.a.name)
	l.begin(l.a)
	e := l.a.entry()
	e.Hydration = &state.Hydration{RegionSectors: 64}
	l.must("journal", l.a.Journal.Save(string(volumeID), *e))
	dm := &counting{Client: l.a.DM}
	l.a.UseDM(dm)
	for range 100 {
		l.a.Hydrations().Turn(l.ctx)
		l.pass(time.Second)
	}
	if n := dm.looks.Load(); n == 0 || n > 7 {
		t.Errorf("%d looks in 100 s, want one in 15 s", n)
	}
}

// counting counts the looks at clones.
type counting struct {
	devmapper.Client
	looks atomic.Int32
}

func (c *counting) CloneStatusAll(ctx context.Context) (map[string]devmapper.CloneStatus, error) {
	c.looks.Add(1)
	return c.Client.CloneStatusAll(ctx)
}

// uncached has the cache taken away in the middle of a hydration, and everything of the hydration with it.
func (l *life) uncached() {
	l.t.Helper()
	l.ask(changes[4].change) // none
	l.persist(l.b, "none", func(p *plugin) error {
		if _, running := l.b.mounts[staging]; !running {
			if err := p.Stage(l.ctx, l.req); err != nil {
				return err
			}
		}
		return l.apply(p)
	})
	l.podReads(l.b)
	if e := l.b.entry(); e.Hydration != nil || len(l.b.sessions) > 1 {
		l.t.Errorf("without a cache, hydration %+v, sessions %v (ended: %q)", e.Hydration, l.b.sessions, l.ended)
	}
	for name, m := range l.objects {
		if !m.ended {
			l.t.Errorf("%s has not ended (ended: %q)", name, l.ended)
		}
	}
	l.b.podWrites(7, 1, 12)
	l.leave(l.b)
	l.givenBack(l.a)
}

// TestKillUncacheHydration ends the plugin, or its node, before and after everything that it
// changes when a volume is to be without its cache in the middle of a hydration.
func TestKillUncacheHydration(t *testing.T) {
	for i, mode := range cacheModes[1:] {
		for j, power := range []bool{false, true} {
			if os.Getenv("MATRIX") != "whole" && i+j == 2 {
				continue
			}
			t.Run(fmt.Sprintf("%s/power=%t", mode, power), func(t *testing.T) {
				t.Parallel()
				begin := func(d ...disaster) *life {
					l := newWarmLife(t, mode, "")
					l.moved()
					l.hydration(l.b, l.a, 1)
					l.victim, l.next = l.b, d
					l.arm()
					return l
				}
				killEachOf(t, begin, power, (*life).uncached, nil)
			})
		}
	}
}
