package preload

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// node is a host with one raw block volume, whose record the reports go to.
type node struct {
	*kernel

	lock   sync.Mutex
	rec    volume.Volume
	entry  *state.Entry
	locked bool
	cached bool
	// hangs keeps reads from ending.
	hangs chan struct{}
	fails error
}

func (n *node) Entry(volume.ID) (*state.Entry, error) { return n.entry, nil }

func (n *node) Lock(context.Context, volume.ID) (*state.Entry, func(), error) {
	if n.locked {
		return nil, func() {}, nil
	}
	n.locked = true
	return n.entry, func() { n.locked = false }, nil
}

func (n *node) Live(ctx context.Context, _ volume.ID) (devmapper.CacheStatus, bool, string, error) {
	st, err := n.kernel.filling(10).status(ctx)
	return st, n.cached, "", err
}

func (n *node) Mounted(context.Context, volume.ID) (string, bool, error) { return "", false, nil }

func (n *node) ReadPreloadMap(ctx context.Context, _ volume.ID) (cachemap.Map, error) {
	return n.kernel.filling(10).read(ctx)
}

func (n *node) OpenTop(context.Context, volume.ID) (Source, error) { return hanging{n}, nil }

func (n *node) Bandwidth(volume.Volume) int64 { return 0 }

func (n *node) ReportPreload(_ context.Context, _ volume.ID, f volume.Fence, r volume.PreloadReport) error {
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.fails != nil || f != n.rec.Fence {
		return errors.Join(n.fails, volume.ErrFenced)
	}
	n.rec.Preloaded = r
	return nil
}

func (n *node) record() volume.Volume {
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.rec
}

// hanging is a device that may not answer.
type hanging struct{ n *node }

func (h hanging) ReadAt(b []byte, at int64) (int, error) {
	if h.n.hangs != nil {
		<-h.n.hangs
	}
	return h.n.kernel.ReadAt(b, at)
}

func (h hanging) Close() error { return nil }

func newNode(after int) (*node, *Runner) {
	n := &node{kernel: newKernel(after, 1<<20), cached: true, rec: asked().Record, entry: asked().Entry}
	n.rec.Preload.Path, n.entry.Raw = "", true
	return n, &Runner{Host: n, Now: time.Now}
}

// looks looks for as long, once in a second.
func looks(t *testing.T, n *node, r *Runner, d time.Duration) (busy bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		busy = r.Look(t.Context(), []volume.Volume{n.record()})
	}
	return busy
}

func wantState(t *testing.T, n *node, s volume.PreloadState, why string) {
	t.Helper()
	if got := n.record().Preloaded; got.State != s || !strings.Contains(got.Message, why) {
		t.Errorf("the record says %+v, want %s (%s)", got, s, why)
	}
}

// TestRunner: a request is carried out, told and not repeated; the next one is another one.
func TestRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNode(9)
		looks(t, n, r, 2*time.Second)
		wantState(t, n, volume.PreloadRunning, "")
		if busy := looks(t, n, r, time.Minute); busy {
			t.Error("something goes on when all is over")
		}
		wantState(t, n, volume.PreloadCompleted, "everything")
		if got := n.record().Preloaded; got.CachedBytes != 10*testChunk || got.Started.IsZero() {
			t.Errorf("%+v", got)
		}
		reads := n.reads[0]
		looks(t, n, r, time.Minute)
		if n.reads[0] != reads {
			t.Error("a request was carried out twice")
		}
		n.rec.Preload = &volume.Preload{Request: "s"}
		looks(t, n, r, time.Minute)
		if got := n.record().Preloaded; got.Request != "s" || got.State != volume.PreloadCompleted {
			t.Errorf("another request: %+v", got)
		}
	})
}

// TestRunnerCancels: a request that is taken back ends, also one that a process before has begun.
func TestRunnerCancels(t *testing.T) {
	for name, restarted := range map[string]bool{"the same process": false, "another one": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, r := newNode(1 << 30)
				looks(t, n, r, 10*time.Second)
				wantState(t, n, volume.PreloadRunning, "")
				if restarted {
					r.Close(t.Context())
					r = &Runner{Host: n, Now: time.Now}
				}
				n.rec.Preload = nil
				looks(t, n, r, 5*time.Second)
				wantState(t, n, volume.PreloadCancelled, "taken back")
				if len(r.jobs) != 0 {
					t.Error("it is read still")
				}
				r.Close(t.Context())
			})
		})
	}
}

// TestRunnerWaits: what cannot be done yet is told, once, and done when it can be.
func TestRunnerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNode(2)
		n.cached = false
		looks(t, n, r, 5*time.Second)
		wantState(t, n, volume.PreloadPending, "no cache")
		n.cached = true
		looks(t, n, r, time.Minute)
		wantState(t, n, volume.PreloadCompleted, "everything")

		n.rec.Preload = &volume.Preload{Request: "s", Path: "x"}
		looks(t, n, r, 5*time.Second)
		wantState(t, n, volume.PreloadFailed, "path x")

		n.rec.Preload = &volume.Preload{Request: "t"}
		n.locked = true // a request works on the volume
		looks(t, n, r, 5*time.Second)
		if n.record().Preloaded.Request != "s" {
			t.Errorf("without the lock: %+v", n.record().Preloaded)
		}
		n.locked = false
		looks(t, n, r, time.Minute)
		wantState(t, n, volume.PreloadCompleted, "everything")
	})
}

// TestRunnerTells: an end that could not be told is told later.
func TestRunnerTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNode(2)
		n.fails = volume.ErrUnavailable
		if !looks(t, n, r, time.Minute) {
			t.Error("nothing goes on although nobody was told")
		}
		n.fails = nil
		looks(t, n, r, 5*time.Second)
		wantState(t, n, volume.PreloadCompleted, "everything")
	})
}

// TestRunnerStops: Stop returns when nothing is read any more, and says so if that does not come. It holds up
// no look.
func TestRunnerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNode(1 << 30)
		n.hangs = make(chan struct{})
		looks(t, n, r, 3*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := r.Stop(ctx, "v"); !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("a device that does not answer: %v", err)
		}
		n.entry = nil // as far as that goes
		if !looks(t, n, r, 3*time.Second) {
			t.Error("what hangs is forgotten")
		}
		close(n.hangs)
		if err := r.Stop(t.Context(), "v"); err != nil || len(r.jobs) != 0 {
			t.Errorf("%v, %d left", err, len(r.jobs))
		}
		if err := r.Stop(t.Context(), "v"); err != nil {
			t.Errorf("nothing to stop: %v", err)
		}
		if r.Look(t.Context(), nil) {
			t.Error("something goes on")
		}
	})
}

// twoVolumes is a node that has another volume beside.
type twoVolumes struct {
	*node
	second volume.Volume
}

func (n *twoVolumes) ReportPreload(ctx context.Context, id volume.ID, f volume.Fence, r volume.PreloadReport) error {
	if id != n.second.ID {
		return n.node.ReportPreload(ctx, id, f, r)
	}
	n.second.Preloaded = r
	return nil
}

// TestRunnerOneAtATime: a second volume waits, says for which one, and is read when that is stopped, also if
// its device never answers again, or when that has cached nothing for minutes.
func TestRunnerOneAtATime(t *testing.T) {
	t.Run("stopped", func(t *testing.T) { testOneAtATime(t, true) })
	t.Run("hangs", func(t *testing.T) { testOneAtATime(t, false) })
}

func testOneAtATime(t *testing.T, stopped bool) {
	synctest.Test(t, func(t *testing.T) {
		n, r := newNode(1 << 30)
		two := &twoVolumes{node: n, second: n.record()}
		two.second.ID = "w"
		r.Host = two
		look := func(seconds int) {
			for range seconds {
				r.Look(t.Context(), []volume.Volume{n.record(), two.second})
				time.Sleep(time.Second)
			}
		}
		n.hangs = make(chan struct{})
		look(5)
		wantState(t, n, volume.PreloadRunning, "")
		if got := two.second.Preloaded; got.State != volume.PreloadPending || !strings.Contains(got.Message, "volume v first") {
			t.Errorf("the second volume: %+v", got)
		}
		if stopped {
			n.rec.Preload = nil
			look(5)
		} else {
			look(int(holdsUp / time.Second))
		}
		if got := two.second.Preloaded; got.State != volume.PreloadRunning {
			t.Errorf("the second volume, stopped %t: %+v", stopped, got)
		}
		close(n.hangs)
		r.Close(t.Context())
	})
}
