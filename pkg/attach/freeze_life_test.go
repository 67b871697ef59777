package attach_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/freeze"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ice is the filesystem of a node that is frozen: its guard outlives the plugin.
type ice struct {
	mu    sync.Mutex
	token string
	// freezes counts how often it was frozen, and froze and melted are closed with it.
	freezes int
	melted  chan struct{}
}

// melt thaws, and reports whether there was anything to thaw.
func (i *ice) melt() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.token != ""
	if was {
		i.token = ""
		close(i.melted)
	}
	return was
}

// now is which freeze lasts, 0 if none does.
func (i *ice) now() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.token == "" {
		return 0
	}
	return i.freezes
}

// freezer is what a process of the plugin has for that.
type freezer struct {
	h    *host
	step blockdevtest.Step
}

type frozen struct {
	freezer
	melted <-chan struct{}
}

func (f freezer) Mounted(context.Context, string) (string, bool, error) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	_, found := f.h.mounts[staging]
	return staging, found, nil
}

func (f freezer) Freeze(ctx context.Context, o freeze.Order) (freeze.Frozen, error) {
	var melted chan struct{}
	err := f.step.Change(ctx, "freeze "+staging, func() error {
		i := &f.h.ice
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.token != "" {
			return errors.New("frozen twice")
		}
		i.token, i.melted = o.Token, make(chan struct{})
		i.freezes++
		melted = i.melted
		return nil
	})
	return frozen{f, melted}, err
}

func (f frozen) Done() <-chan struct{} { return f.melted }

func (f frozen) Thaw(ctx context.Context) error {
	return f.step.Change(ctx, "thaw "+staging, func() error {
		select {
		case <-f.melted:
			return errors.New("thawed before")
		default:
		}
		f.h.ice.melt()
		return nil
	})
}

func (f freezer) Left(context.Context) ([]volume.ID, error) {
	if f.h.ice.now() == 0 {
		return nil, nil
	}
	return []volume.ID{volumeID}, nil
}

func (f freezer) Recover(ctx context.Context, _ volume.ID) error {
	return f.step.Change(ctx, "thaw what is left", func() error { f.h.ice.melt(); return nil })
}

// frozenSnapshot has the volume cut while its filesystem is frozen, and fails if something was
// accepted that was cut when it was not.
func (l *life) frozenSnapshot(name volume.SnapshotID, begin func(*plugin) error) {
	l.t.Helper()
	began, cut := 0, 0
	l.storage.Step = func(op string, done bool) error {
		switch now := l.a.ice.now(); {
		case op == "cut" && !done:
			began, cut = now, 0
		case op == "cut" && now == began:
			cut = now
		case op == "accept" && !done && cut == 0:
			l.t.Errorf("accepted, and the filesystem was not frozen when it was cut (ended: %q)", l.ended)
		}
		return nil
	}
	const tries = 100
	for i := range tries {
		answer := make(chan error, 1)
		go func() {
			_, err := l.control.CreateSnapshot(l.ctx, name, volumeID, volume.SnapshotClass{Freeze: true})
			answer <- err
		}()
		err := l.answers(answer, begin)
		if err == nil {
			break
		}
		if !errors.Is(err, volume.ErrBusy) || i == tries-1 {
			l.t.Fatalf("snapshot %s: %v (ended: %q)", name, err, l.ended)
		}
	}
	if l.a.ice.now() != 0 {
		l.t.Errorf("the filesystem is left frozen (ended: %q)", l.ended)
	}
	if l.record().Spec.Hold != nil {
		l.t.Errorf("the volume is held for a snapshot that there is (ended: %q)", l.ended)
	}
}

// answers is the node while the controller has a request, whose answer it returns.
func (l *life) answers(answer <-chan error, begin func(*plugin) error) error {
	l.t.Helper()
	for range 10_000 {
		l.freezes(begin)
		select {
		case err := <-answer:
			return err
		case <-time.After(100 * time.Microsecond):
		}
	}
	return errors.New("the controller does not answer")
}

// freezes has the node do once what the record asks for. A plugin that ended is followed by one
// that thaws first.
func (l *life) freezes(begin func(*plugin) error) {
	l.t.Helper()
	p := l.a.plugin
	ended, err := p.run(func() error {
		p.ThawLeft(l.ctx)
		if l.a.ice.now() != 0 {
			l.t.Errorf("a plugin that began has not thawed (ended: %q)", l.ended)
		}
		if err := begin(p); err != nil {
			return err
		}
		if _, err := p.Change(l.ctx); err != nil {
			return err
		}
		return p.Freeze(l.ctx, volumeID)
	})
	if ended != "" {
		l.end(l.a, ended)
	} else if err != nil && !errors.Is(err, volume.ErrBusy) && !errors.Is(err, volume.ErrUnavailable) {
		l.t.Logf("node: %v", err)
	}
}

// beFrozen has a volume cut below its pod, its filesystem frozen.
func (l *life) beFrozen() {
	l.t.Helper()
	req := l.publish(l.a.name)
	begin := func(p *plugin) error { return l.stageUnlessRunning(l.a, p, req) }
	l.a.killAfter(0) // TestKillAnywhere
	l.must("stage", begin(l.a.plugin))
	l.a.podWrites(1, 1, 2)
	if len(l.next) > 0 {
		l.a.killAfter(l.next[0].steps)
	}
	l.frozenSnapshot("s-1", begin)
	l.a.killAfter(0)
	l.persist(l.a, "stage", begin)
	l.a.podWrites(2, 2, 3)
	l.a.podReads()
	l.leave(l.a)
}

// TestFrozenCut: a volume is cut in each mode while its filesystem is frozen.
func TestFrozenCut(t *testing.T) {
	for _, mode := range cacheModes {
		t.Run(string(mode), func(t *testing.T) {
			l := newLife(t, mode)
			l.beFrozen()
			if l.a.ice.freezes != 1 {
				t.Errorf("frozen %d times, want once", l.a.ice.freezes)
			}
		})
	}
}

// TestKillFrozenCut ends the plugin, or its node, at everything that it changes while a volume
// is cut with its filesystem frozen. How many looks there are in between is chance, so that the
// steps of the freeze itself are named.
func TestKillFrozenCut(t *testing.T) {
	t.Run("each", func(t *testing.T) {
		t.Parallel()
		killEach(t, volume.ModeWritethrough, false, (*life).beFrozen, nil)
	})
	for _, power := range []bool{false, true} {
		for _, step := range []string{"before freeze", "after freeze", "before thaw", "after thaw"} {
			t.Run(fmt.Sprintf("%s/power=%t", step, power), func(t *testing.T) {
				l := newLife(t, volume.ModeWritethrough, disaster{at: step + " " + staging, power: power})
				l.beFrozen()
				if len(l.ended) != 1 {
					t.Errorf("ended: %q, want at %q alone", l.ended, step)
				}
				l.forget()
			})
		}
	}
}

// TestFreezeKeepsLock: nobody changes what is below a frozen filesystem; who would waits, and
// comes after its end.
func TestFreezeKeepsLock(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	l.hold("t")
	obj := l.record()
	obj.Spec.Hold.Freeze = "Freeze"
	l.must("ask", l.api.Update(l.ctx, obj))
	done := make(chan error, 1)
	go func() { done <- l.a.Freeze(l.ctx, volumeID) }()
	for l.record().Status.Freeze.State != "Frozen" {
		time.Sleep(time.Millisecond)
	}
	if unlock, ok := l.a.Locks.TryLock(string(volumeID)); ok {
		unlock()
		t.Error("the volume is not locked while its filesystem is frozen")
	}
	if busy, err := l.a.Change(l.ctx); !busy || err != nil {
		t.Errorf("a change of %s: busy %t, %v", layout.Device(volumeID, layout.Top), busy, err)
	}
	l.a.ice.melt() // its time is over
	l.must("freeze", <-done)
	if s := l.record().Status.Freeze; s.State != "Failed" || s.Token != "t" {
		t.Errorf("a freeze that ended by itself is reported as %+v", s)
	}
	l.hold("")
	l.leave(l.a)
}

// TestFreezeOnce: the API server answers no report of a freeze. A report of Frozen may arrive late,
// so that the filesystem is not frozen again for the same hold.
func TestFreezeOnce(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	api, silent := l.api, true
	l.api = interceptor.NewClient(api, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if o, record := obj.(*v1alpha1.CachedVolume); record && o.Status.Freeze.State != "" && silent {
				return errNoAnswer
			}
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	})
	l.a.start()
	l.api = api
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	ask := func(token string) {
		l.hold(token)
		obj := l.record()
		obj.Spec.Hold.Freeze = "Freeze"
		l.must("ask", l.api.Update(l.ctx, obj))
	}
	ask("t")
	if err := l.a.Freeze(l.ctx, volumeID); !errors.Is(err, errNoAnswer) {
		t.Fatalf("a freeze that nobody hears of: %v", err)
	}
	silent = false
	l.must("freeze", l.a.Freeze(l.ctx, volumeID))
	if s := l.record().Status.Freeze; s.State != "Failed" || s.Token != "t" || l.a.ice.freezes != 1 {
		t.Errorf("frozen %d times, reported is %+v", l.a.ice.freezes, s)
	}
	ask("u")
	done := make(chan error, 1)
	go func() { done <- l.a.Freeze(l.ctx, volumeID) }()
	for l.record().Status.Freeze.State != "Frozen" {
		time.Sleep(time.Millisecond)
	}
	l.a.ice.melt() // its time is over
	l.must("freeze for another hold", <-done)
	l.hold("")
	l.leave(l.a)
}
