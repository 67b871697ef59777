//go:build kernel

package kernel

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/volume"
)

// otherName is the second node in this kernel. It has an SSD of its own.
const otherName = "other"

// pair are CacheMigration objects between two nodes of one kernel, without an API
// server: who begins a move calls the source node.
type pair struct {
	lessor    func() volume.Lessor
	initiator string
	// streams has the source node send its caches from then on.
	streams func() (volume.StreamSource, error)

	mu       sync.Mutex
	requests map[string]volume.MoveRequest
	outcomes []volume.MoveOutcome
	from     volume.ServedFrom
	// released tells that the source node has said that it serves no more.
	released bool
	// unchanged makes every lease say that nothing was written to its cache since the
	// record of writes began.
	unchanged bool
}

func (p *pair) Begin(ctx context.Context, r volume.MoveRequest) (volume.MoveID, *volume.Lease, error) {
	m := volume.MoveID{Name: fmt.Sprintf("%s-%d", r.Volume, r.Fence.Generation), UID: rand.Text()}
	p.mu.Lock()
	p.requests[m.UID] = r
	p.mu.Unlock()
	if r.Source == nil {
		return m, nil, nil
	}
	cred := volume.Credentials{Username: m.Name, Password: rand.Text()[:16]}
	request := volume.LeaseRequest{
		Method: r.Method, Move: m, Volume: r.Volume, UID: r.Fence.UID, Generation: r.Source.Generation, Purpose: r.Purpose, Request: r.Request,
		To: r.Fence.Node, Initiator: p.initiator, Credentials: cred,
	}
	if _, err := p.lessor().Export(ctx, request); err != nil {
		return m, nil, err
	}
	// The answer may be lost, and the source node be asked once more.
	lease, err := p.lessor().Export(ctx, request)
	if err != nil {
		return m, nil, err
	}
	if p.unchanged && lease.Tracked != nil {
		clear(lease.Tracked.Changed)
	}
	if r.Method == volume.MethodStream {
		src, err := p.streams()
		lease.Stream = &src
		return m, &lease, err
	}
	lease.Credentials = cred
	return m, &lease, nil
}

func (p *pair) Refuse(_ context.Context, r volume.MoveRequest, why string) error {
	return fmt.Errorf("the move of volume %s cannot be carried out here: %s", r.Volume, why)
}

func (p *pair) Progress(_ context.Context, _ volume.MoveID, s volume.MoveProgress) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from = s.From
	return nil
}

func (p *pair) Finish(ctx context.Context, m volume.MoveID, o volume.MoveOutcome, _ string) error {
	p.mu.Lock()
	p.outcomes = append(p.outcomes, o)
	p.mu.Unlock()
	leases, err := p.lessor().Leases(ctx)
	for id, exported := range leases {
		if exported == m {
			err = errors.Join(err, p.lessor().Release(ctx, id, m))
		}
	}
	return err
}

func (p *pair) Ended(context.Context, volume.MoveRequest) (bool, error) { return false, nil }

func (p *pair) Exported(context.Context, volume.MoveID) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.released, nil
}

// release says for the source node that it serves no more.
func (p *pair) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = true
}

func onOtherSSD() v1alpha1.CachePoolSpec { return v1alpha1.CachePoolSpec{Devices: []string{ssdTwo}} }

// openPair starts the plugins of both nodes; they share records, which are in the
// source node's folder.
func openPair(ctx context.Context, lessor, dir string) (a, b *node, err error) {
	return openPairOn(ctx, lessor, dir, onOneSSD(), onOtherSSD())
}

func openPairOn(ctx context.Context, lessor, dir string, onA, onB v1alpha1.CachePoolSpec) (a, b *node, err error) {
	rec := fileRecords{filepath.Join(lessor, "records")}
	// Each may be the other's source node.
	fromA, fromB := newPair(), newPair()
	if a, err = openNodeAs(ctx, nodeName, lessor, onA, rec, fromB); err != nil {
		return nil, nil, err
	}
	if b, err = openNodeAs(ctx, otherName, dir, onB, rec, fromA); err != nil {
		return nil, nil, err
	}
	fromA.streams = func() (volume.StreamSource, error) { return a.streams.serve(a.Lessor()) }
	fromB.streams = func() (volume.StreamSource, error) { return b.streams.serve(b.Lessor()) }
	fromA.lessor, fromB.lessor = func() volume.Lessor { return a.Lessor() }, func() volume.Lessor { return b.Lessor() }
	return a, b, nil
}

func newPair() *pair {
	return &pair{initiator: guestInitiator(), requests: map[string]volume.MoveRequest{}}
}

// movers are a volume and the two nodes between which it moves.
type movers struct {
	*disk
	a, b *node
	gen  int64
}

func newMovers(t *testing.T, m *machine, name string, spec volume.Spec) *movers {
	t.Helper()
	return newMoversOf(t, m, name, 128*mib, spec)
}

// newMoversOf is newMovers with a volume of that size.
func newMoversOf(t *testing.T, m *machine, name string, size int64, spec volume.Spec) *movers {
	t.Helper()
	a, b := m.pair()
	spec.WarmStart = byPeer(spec.WarmStart.Method)
	v := &movers{disk: m.volume(a, name, size, spec), a: a, b: b, gen: 1}
	v.req.Block = true
	return v
}

// publishTo makes a node the owner, which may begin from the node before it.
func (v *movers) publishTo(n *node, name string) {
	v.m.t.Helper()
	before := v.req.Publication.Fence
	v.gen++
	mustPass(v.m.t, "record", v.rec.update(v.req.ID, func(r *fileRecord) error {
		r.Volume.Fence.Node = name
		r.Volume.WarmSource = &volume.WarmSource{Node: before.Node, Generation: before.Generation}
		return nil
	}))
	v.publish(v.gen)
	v.n = n
}

// hydrateAll leads a hydration to its end.
func (n *node) hydrateAll(ctx context.Context, id volume.ID) error {
	defer n.runHydrations(ctx)()
	return n.hydrated(ctx, id)
}

// hydrated waits until nothing is copied into a cache any more; somebody else sees to that.
func (n *node) hydrated(ctx context.Context, id volume.ID) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		e, err := n.Journal.Load(string(id))
		if err != nil || e.Hydration == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the hydration does not end: %+v", *e.Hydration)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// warmUp writes a pattern through the cache and makes it hot.
func (v *movers) warmUp(seed uint64) []byte {
	data := pattern(seed, 16*mib)
	write(v.m.t, v.device(), data, 0, true)
	v.heat(16 * mib)
	return data
}

func (v *movers) wantHydrated() {
	v.m.t.Helper()
	mustPass(v.m.t, "hydration", v.n.hydrateAll(v.m.t.Context(), v.req.ID))
	t, err := v.n.DM.Table(v.m.t.Context(), layout.Device(v.req.ID, layout.Data))
	mustPass(v.m.t, "table", err)
	if len(t) != 1 || t[0].Target.Type() != "linear" {
		v.m.t.Errorf("the data device is %v", t)
	}
}

// TestKernelMove: the cache follows the volume from node to node.
func TestKernelMove(t *testing.T) {
	m := newMachine(t)
	for _, mode := range cachingModes() {
		v := newMovers(t, m, "move-"+string(mode), cached(mode, 64*mib))
		v.stage()
		data := v.warmUp(1)
		v.unstage()

		v.publishTo(v.b, otherName)
		v.stage()
		if rate := v.hitRate(1000, 16*mib); rate < 0.95 {
			t.Errorf("%s: hit rate of the first 1000 reads on the other node: %.3f", mode, rate)
		}
		check(t, v.device(), data, 0)
		late := pattern(2, 4*mib)
		write(t, v.device(), late, 6*mib, true)
		copy(data[6*mib:], late)
		v.wantHydrated()
		check(t, v.device(), data, 0)
		if e, err := v.a.Journal.Load(string(v.req.ID)); err == nil {
			t.Errorf("%s: the old node still knows the volume: %+v", mode, e)
		}
		v.unstage()

		v.publishTo(v.a, nodeName)
		v.stage()
		if rate := v.hitRate(1000, 16*mib); rate < 0.95 {
			t.Errorf("%s: hit rate of the first 1000 reads after the return: %.3f", mode, rate)
		}
		check(t, v.device(), data, 0)
		v.wantHydrated()
		v.unstage()
		v.checkUncached(data)
		v.remove()
		mustPass(t, "repair", v.b.Repair(t.Context()))
	}
}

// checkUncached reads the origin without any cache.
func (v *movers) checkUncached(data []byte) {
	t := v.m.t
	t.Helper()
	v.ask(mode(volume.ModeNone))
	v.stage()
	check(t, v.device(), data, 0)
	v.unstage()
}

// TestKernelMoveSourceLost: the source node goes away in the middle, under a verified load.
func TestKernelMoveSourceLost(t *testing.T) {
	m := newMachine(t)
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		v := newMovers(t, m, "lost-"+string(mode), cached(mode, 64*mib))
		l := v.movedWarm()
		stop := v.b.runHydrations(t.Context())
		again := resumeLoad(l, v.device())
		again.moving()
		mustPass(t, "loss", v.a.Exporter.Unexport(t.Context(), string(v.req.ID)))
		again.moving()
		again.moving()
		v.wantHydrated()
		again.end()
		again.check(v.device())
		stop()
		v.leaveChecked(again)
	}
}

// TestKernelMoveAgain: a volume that leaves before its cache is whole is right
// wherever it goes next (I5).
func TestKernelMoveAgain(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "again", cached(volume.ModeWriteback, 64*mib))
	v.stage()
	data := v.warmUp(3)
	v.unstage()
	v.publishTo(v.b, otherName)
	v.stage()
	late := pattern(4, 2*mib)
	write(t, v.device(), late, mib, true)
	copy(data[mib:], late)
	v.unstage() // nothing was hydrated but what was written

	v.stage()
	if e, err := v.b.Journal.Load(string(v.req.ID)); err != nil || e.Hydration == nil || e.Hydration.Peer != nil || e.Hydration.From != nil {
		t.Errorf("the hydration does not go on from the origin: %+v, %v", e.Hydration, err)
	}
	check(t, v.device(), data, 0)
	v.wantHydrated()
	check(t, v.device(), data, 0)
	v.unstage()

	// The first node's retained cache is older than what was written since.
	v.publishTo(v.a, nodeName)
	mustPass(t, "record", v.rec.update(v.req.ID, func(r *fileRecord) error { r.Volume.WarmSource = nil; return nil }))
	v.stage()
	check(t, v.device(), data, 0)
	v.unstage()
	v.remove()
	mustPass(t, "repair", v.b.Repair(t.Context()))
}

// TestKernelKillHydration kills both plugins at every step of a move: what follows
// converges, and no byte is wrong (I3, I5, I8).
func TestKernelKillHydration(t *testing.T) {
	m := newMachine(t)
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		v := newMovers(t, m, "killfill-"+string(mode), cached(mode, 32*mib))
		points, phases := movePoints(), []string{"export.exported", "hydration.restored", "hydration.clone", "hydration.swapped", "release.device"}
		if mode == volume.ModeWritethrough {
			points, phases = activePoints, []string{"hydration.swapped"}
		} else if len(points) < 14 {
			t.Errorf("a move has %d steps only: %v", len(points), points)
		}
		for _, point := range killedAt(t, points, phases...) {
			v.killedMove(point, order{})
			if t.Failed() {
				t.Fatalf("%s, killed at %s", mode, point)
			}
		}
		v.remove()
		mustPass(t, "repair", v.b.Repair(t.Context()))
	}
}

// movePoints are the steps of a move.
func movePoints() []string {
	return slices.DeleteFunc(faultpoint.List(), func(point string) bool {
		if point == "hydration.remapped" || point == "hydration.left" {
			return true // TestKernelKillRemap
		}
		return !strings.HasPrefix(point, "hydration.") && !strings.HasPrefix(point, "export.") && !strings.HasPrefix(point, "release.") && point != "stage.taken"
	})
}

// activePoints are tried with writethrough too, where an interrupted cache may be
// wiped; everything else is the same code as with writeback.
var activePoints = []string{"stage.taken", "hydration.clone", "hydration.swapped", "hydration.removed"}

// from sets what caches begin from, without a limit of their rate.
func from(w volume.WarmFrom) func(*volume.Volume) {
	return func(r *volume.Volume) { r.Spec.WarmStart = volume.WarmStart{From: w} }
}

// leaveWarm has a volume leave A with a warm cache for B, and returns what it has.
func (v *movers) leaveWarm() []byte {
	v.publishTo(v.a, nodeName)
	v.ask(from(volume.WarmOff))
	v.stage()
	v.ask(from(volume.WarmPeer))
	data := pattern(uint64(v.gen), 4*mib)
	write(v.m.t, v.device(), data, 0, true)
	v.heat(4 * mib)
	v.unstage()
	v.publishTo(v.b, otherName)
	return data
}

// killedMove moves a volume from A to B with one kill, and back without.
func (v *movers) killedMove(point string, o order) {
	t := v.m.t
	began := time.Now()
	data := v.leaveWarm()
	o.Lessor = v.a.dir
	if !v.killAt(point, o) {
		o.Hydration = true
		if !v.killAt(point, o) {
			t.Fatalf("no move passed %s", point)
		}
	}
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
	v.stage()
	check(t, v.device(), data, 0)
	late := pattern(uint64(v.gen)+1000, mib)
	write(t, v.device(), late, 2*mib, true)
	copy(data[2*mib:], late)
	v.wantHydrated()
	check(t, v.device(), data, 0)
	v.unstage()
	// Whatever the dead left exported, its deadline or its owner ends.
	v.a.releaseAll(t)
	t.Logf("killed at %s: %s", point, time.Since(began).Round(time.Millisecond))
}

// TestKernelKillRemap kills the plugin while it replaces a lost source node.
func TestKernelKillRemap(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "killgather", cached(volume.ModeWriteback, 32*mib))
	for _, point := range []string{"hydration.remapped", "hydration.left"} {
		v.publishTo(v.a, nodeName)
		v.ask(from(volume.WarmOff))
		v.stage()
		v.ask(func(r *volume.Volume) { r.Spec.WarmStart = volume.WarmStart{From: volume.WarmPeer, Bandwidth: mib} })
		data := v.warmUp(uint64(v.gen))
		v.unstage()
		v.publishTo(v.b, otherName)
		v.stage()
		mustPass(t, "loss", v.a.Exporter.Unexport(t.Context(), string(v.req.ID)))
		if !v.killAt(point, order{Lessor: v.a.dir, Hydration: true}) {
			t.Fatalf("no hydration passed %s", point)
		}
		stop := v.b.runHydrations(t.Context())
		check(t, v.device(), data, 0)
		stop()
		v.unstage()
		v.stage()
		check(t, v.device(), data, 0)
		v.unstage()
		mustPass(t, "repair", v.a.Repair(t.Context()))
	}
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}
