//go:build kernel

package kernel

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// witnessBlocks are the blocks that the checker writes, witnessHot those that it
	// writes most: some fit into the cache, and not all.
	witnessBlocks = 4096
	witnessHot    = 768
	witnessCache  = 8 * mib
)

// witness writes to a device and keeps its history.
type witness struct {
	t      *testing.T
	h      *checker.History
	s      *checker.Session
	served chan error
}

func newWitness(t *testing.T, id volume.ID, mode volume.CacheMode) *witness {
	return &witness{t: t, h: checker.NewHistory(string(id), witnessBlocks, checker.Mode(mode))}
}

// open begins to use a device.
func (w *witness) open(path string) {
	in, toServe := io.Pipe()
	fromServe, out := io.Pipe()
	w.served = make(chan error, 1)
	go func() {
		err := checker.Serve(checker.Options{Volume: w.h.Volume(), Path: path}, in, out)
		_ = in.CloseWithError(io.ErrClosedPipe)
		_ = out.CloseWithError(err)
		w.served <- err
	}()
	w.s = checker.Start(w.h, toServe, fromServe)
}

// close ends the use of the device.
func (w *witness) close() {
	w.t.Helper()
	mustPass(w.t, "witness", errors.Join(w.s.Close(), <-w.served))
}

// load is what the witness writes when nothing special is wanted.
func (w *witness) load(r *rand.Rand) checker.Load {
	return checker.Load{Rand: r, Batch: 8, FlushEvery: 1 + r.IntN(8), Hot: witnessHot, Pause: 2 * time.Millisecond}
}

// begin writes in the background until the returned function is called.
func (w *witness) begin(l checker.Load) (end func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.s.Run(ctx, l) }()
	return func() {
		w.t.Helper()
		cancel()
		mustPass(w.t, "load", <-done)
	}
}

// leastWrites is what write writes at least: a busy machine may come to nothing in the time.
const leastWrites = 64

// write writes for a while.
func (w *witness) write(l checker.Load, d time.Duration) {
	w.t.Helper()
	answered := func() int { acked, failed := w.s.Counts(); return acked + failed }
	want := answered() + leastWrites
	end := w.begin(l)
	time.Sleep(d)
	for until := time.Now().Add(2 * time.Minute); answered() < want && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
	}
	end()
}

// judge reads everything and decides.
func (w *witness) judge(l checker.Loss) checker.Report {
	w.t.Helper()
	read, err := w.s.Read()
	mustPass(w.t, "read", err)
	r, err := w.h.Judge(l, read)
	mustPass(w.t, "judge", err)
	return r
}

// watched is a volume of two nodes with a witness.
type watched struct {
	*movers
	*witness
	mode volume.CacheMode
}

func newWatched(t *testing.T, m *machine, name string, mode volume.CacheMode) *watched {
	t.Helper()
	return watch(newMovers(t, m, name, cached(mode, witnessCache)), mode)
}

func watch(v *movers, mode volume.CacheMode) *watched {
	return &watched{movers: v, witness: newWitness(v.m.t, v.req.ID, mode), mode: mode}
}

// owner is the node that has the volume, as something that stops or fails.
func (w *watched) owner() stopping {
	name, _ := w.here()
	return stopping{m: w.m, n: w.n, name: name, id: w.req.ID, sources: []volume.Source{w.req.Publication.Source}, origin: w.origin}
}

// byPeer is a copy of the cache by a method, or by clone, at 4 MiB a second.
func byPeer(method volume.MoveMethod) volume.WarmStart {
	return volume.WarmStart{From: volume.WarmPeer, Method: cmp.Or(method, volume.MethodClone), Bandwidth: 4 * mib}
}

// pair starts the plugins of two nodes.
func (m *machine) pair() (a, b *node) {
	m.t.Helper()
	a, b, err := openPair(m.t.Context(), m.t.TempDir(), m.t.TempDir())
	mustPass(m.t, "nodes", err)
	m.t.Cleanup(func() {
		m.dropPool(onOneSSD())
		m.try("vgremove", "--yes", "--force", pool.VolumeGroup(otherName))
		m.try("pvremove", "--yes", ssdTwo)
	})
	return a, b
}

// use stages the volume and opens it.
func (w *watched) use() {
	w.t.Helper()
	w.stage()
	w.open(w.device())
}

// leave closes and unstages the volume.
func (w *watched) leave() {
	w.t.Helper()
	w.close()
	w.unstage()
	w.h.Drained()
}

// here returns the name of the node that has the volume, and the node that has not.
func (w *watched) here() (name string, other *node) {
	if w.n == w.a {
		return nodeName, w.b
	}
	return otherName, w.a
}

// dirty writes until some of what was flushed is on the SSD alone.
func (w *watched) dirty(l checker.Load) {
	w.t.Helper()
	for range 100 {
		w.write(l, 200*time.Millisecond)
		mustPass(w.t, "flush", w.s.Flush())
		if st, found := w.cache(); found && st.Dirty > 4 {
			return
		}
	}
	w.t.Fatal("no block became dirty")
}

// warm writes and reads until most of the hot blocks are in the cache.
func (w *watched) warm(l checker.Load) {
	w.t.Helper()
	for pass := range uint64(60) {
		w.write(l, 100*time.Millisecond)
		reads(w.t, w.device(), pass, 500, witnessHot*checker.BlockSize)
		if w.hitRate(200, witnessHot*checker.BlockSize) > 0.9 {
			return
		}
	}
	w.t.Fatal("the hot blocks do not get hot")
}

// stop is the owner's unclean stop. Losing the SSD's write cache takes what was
// written shortly before.
func (w *watched) stop(ssdForgets bool, l checker.Load) {
	w.t.Helper()
	s := w.owner()
	if e, err := w.n.Journal.Load(string(w.req.ID)); err == nil && e.Hydration != nil && e.Hydration.Peer != nil {
		s.sources = append(s.sources, volume.Source{ISCSI: *e.Hydration.Peer})
	}
	if l.FlushEvery = 0; ssdForgets {
		// The map is on the SSD; what is written from here on may be not.
		mustPass(w.t, "flush", w.s.Flush())
		s.forgetful()
		w.write(l, 100*time.Millisecond)
		w.s.Dying()
		s.cut()
	} else {
		end := w.begin(l)
		time.Sleep(20 * time.Millisecond)
		w.s.Dying()
		s.cut()
		end()
	}
	w.close()
	s.vanish()
	w.restart()
}

// restart starts the plugins of both nodes anew.
func (w *watched) restart() {
	w.t.Helper()
	onA := w.n == w.a
	a, b, err := openPair(w.t.Context(), w.a.dir, w.b.dir)
	mustPass(w.t, "nodes", err)
	w.a, w.b = a, b
	if w.n = b; onA {
		w.n = a
	}
}

// end removes the volume.
func (w *watched) end() {
	w.t.Helper()
	// The volume is deleted by the records that are in a's folder.
	w.n = w.a
	w.remove()
	mustPass(w.t, "repair", errors.Join(w.a.Repair(w.t.Context()), w.b.Repair(w.t.Context())))
}

// remove deletes the volume everywhere: both nodes are told, whatever they have of it.
func (v *movers) remove() {
	v.m.t.Helper()
	rec, err := v.rec.load(v.req.ID)
	mustPass(v.m.t, "record", err)
	v.disk.remove()
	for _, n := range []*node{v.a, v.b} {
		mustPass(v.m.t, "deleted", n.deleted(v.m.t.Context(), v.req.ID, rec.Volume.Fence))
	}
}
