package attach_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

var errUnderWay = errors.New("the hydration is under way")

// newWarmLife is a life whose cache follows the volume. Disasters end the processes of the
// node with that name.
func newWarmLife(t testing.TB, mode volume.CacheMode, victim string, d ...disaster) *life {
	// The pod touches more chunks than the cache has: some give way to others, or with churn
	// all of them before long.
	churn := mode == volume.ModeWriteback
	chunk := int64(512 << 10)
	if churn {
		chunk = 256 << 10
	}
	return newWarmLifeIn(newWorldOf(t, mode, chunk), mode, victim, churn, d...)
}

func newWarmLifeIn(w *world, mode volume.CacheMode, victim string, churn bool, d ...disaster) *life {
	w.warm, w.churn = true, churn
	l := newLifeIn(w, mode)
	l.died = l.end
	if victim == l.b.name {
		l.victim = l.b
	}
	l.next = d
	l.arm()
	return l
}

// entry is what the journal of a node says, nil if there is nothing.
func (h *host) entry() *state.Entry {
	h.w.t.Helper()
	all, err := h.Journal.List()
	h.w.must("journal", err)
	if len(all) == 0 {
		return nil
	}
	return &all[0]
}

// arrive has the volume attached to a node, where its pod reads everything.
func (l *life) arrive(h *host) {
	l.t.Helper()
	l.req = l.publish(h.name)
	if l.prepared {
		l.once(h, func(p *plugin) { p.Prestage(l.ctx) })
		if e := h.entry(); len(l.ended) == 0 && (e == nil || e.State != state.Staging || e.Hydration == nil || e.Hydration.Peer == nil && !e.Streams()) {
			l.t.Fatalf("nothing was prepared: %+v", e)
		}
	}
	l.podReads(h)
}

// prepare is the part of a move before the pod writes much: its stage begins before kubelet
// asks for it, and the volume leaves in the middle.
func (l *life) prepare() {
	l.t.Helper()
	l.prepared = true
	l.stay(l.a, 1, 0, 1, 2, 3)
	l.arrive(l.b)
	l.b.podWrites(2, 1, 4)
	l.hydration(l.b, l.a, 1)
	l.podReads(l.b)
	l.leave(l.b)
	l.givenBack(l.a)
	l.stay(l.b, 3, 5)
}

// stageUnlessRunning stages the volume for a pod that does not run, as one whose node has lost
// its power.
func (l *life) stageUnlessRunning(h *host, p *plugin, req volume.StageRequest) error {
	if _, running := h.mounts[staging]; running {
		return nil
	}
	return p.Stage(l.ctx, req)
}

// begin stages the volume, again if the node has lost its power meanwhile.
func (l *life) begin(h *host) {
	l.t.Helper()
	l.persist(h, "stage", func(p *plugin) error { return l.stageUnlessRunning(h, p, l.req) })
}

// podReads has the pod read everything, while the hydration, which it may wait for, goes on.
func (l *life) podReads(h *host) {
	l.t.Helper()
	l.begin(h)
	d, done := h.podDevice(), make(chan error, 1)
	go func() { done <- l.differs(d) }()
	hung := time.After(time.Minute) // neither waits for a path nor ends
	for steps := 0; steps < wholeHydration; {
		select {
		case err := <-done:
			l.must("the pod reads", err)
			return
		case <-hung:
			l.t.Fatalf("the pod's read hangs (ended: %q)", l.ended)
		case <-time.After(time.Millisecond):
		}
		source, err := h.kernel.Client(nil).MultipathStatus(l.ctx, "nf-"+string(volumeID)+".source")
		if err != nil || source.HasPath() {
			continue
		}
		steps++
		l.step(h)               // it waits for a peer that is lost
		if len(h.mounts) == 0 { // with the node
			l.podReads(h)
			return
		}
	}
	l.t.Fatalf("the pod waits for ever (ended: %q)", l.ended)
}

// hydration takes steps of a hydration until it has ended, or so many have been taken, beside what
// the other node does.
func (l *life) hydration(h, other *host, steps int) {
	l.t.Helper()
	for range steps {
		if e := h.entry(); e == nil || e.Hydration == nil {
			return
		}
		l.step(h)
		l.begin(h)
		l.source(other)
	}
	if e := h.entry(); steps == wholeHydration && e != nil && e.Hydration != nil {
		l.t.Fatalf("the hydration does not end: %+v (ended: %q)", e.Hydration, l.ended)
	}
}

// wholeHydration are more steps than a hydration takes.
const wholeHydration = 200

// step takes one step of a hydration.
func (l *life) step(h *host) {
	l.t.Helper()
	// The kernel commits the map of a cache once a second.
	l.must("commit", h.kernel.Client(nil).CommitAll(l.ctx))
	l.pass(10 * time.Second)
	l.once(h, func(p *plugin) { p.Hydrations().Turn(l.ctx) })
	l.once(h, func(p *plugin) { l.streams(p) })
}

// once calls a plugin; one that ends by that is followed by another, which repairs.
func (l *life) once(h *host, do func(*plugin)) {
	l.t.Helper()
	p := h.plugin
	ended, _ := p.run(func() error {
		do(p)
		return nil
	})
	if ended != "" {
		l.end(h, ended)
		l.persist(h, "repair", func(p *plugin) error { return p.Repair(l.ctx) })
	}
}

// source has the node that exports look at what it exports.
func (l *life) source(h *host) {
	p := h.plugin
	ended, err := p.run(func() error { return l.serve(l.ctx, h, p) })
	if ended != "" {
		l.end(h, ended)
	} else if err != nil && len(l.ended) == 0 {
		l.t.Errorf("what %s exports: %v", h.name, err)
	}
}

// givenBack fails if a node still exports, or has anything else, once the other one has
// everything.
func (l *life) givenBack(h *host) {
	l.t.Helper()
	l.persist(h, "end of the lease", func(p *plugin) error {
		if err := p.Repair(l.ctx); err != nil {
			return err
		}
		if err := l.serve(l.ctx, h, p); err != nil {
			return err
		}
		if e := h.entry(); e != nil && e.Exported != nil {
			if len(l.ended) > 0 {
				l.pass(time.Hour) // a process that ended before it could say so: the deadline
			}
			return fmt.Errorf("%w: %s exports", errUnderWay, h.name)
		}
		return nil
	})
	devices, err := h.kernel.Client(nil).Info(l.ctx, "nf-")
	l.must("devices", err)
	if len(devices) > 0 || len(h.sessions) > 0 {
		l.t.Fatalf("left on %s: devices %v, sessions %v (ended: %q)", h.name, devices, h.sessions, l.ended)
	}
}

// move is the whole of it: a cache follows the volume to another node and is copied, goes
// back, where it is left in the middle, and is begun there again.
func (l *life) move() {
	l.t.Helper()
	l.moved()
	l.b.podWrites(2, 1, 12)
	l.hydration(l.b, l.a, 1)
	l.podReads(l.b)
	l.b.podWrites(3, 2, 13)
	l.hydration(l.b, l.a, wholeHydration)
	l.podReads(l.b)
	l.leave(l.b)
	l.givenBack(l.a)
	l.arrive(l.a)
	l.a.podWrites(4, 3, 14)
	l.hydration(l.a, l.b, 2)
	l.podReads(l.a)
	l.leave(l.a)
	l.givenBack(l.b)
	l.stay(l.a, 5, 4)
}

// losePeer is a move whose old node loses its power in the middle: the origin takes its place.
func (l *life) losePeer() {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3)
	l.arrive(l.b)
	l.b.podWrites(2, 1)
	l.hydration(l.b, l.a, 1)
	l.a.powerLoss()
	l.a.start()
	l.podReads(l.b)
	l.b.podWrites(3, 2, 4)
	l.hydration(l.b, l.a, wholeHydration)
	l.podReads(l.b)
	l.leave(l.b)
	l.givenBack(l.a)
	l.stay(l.b, 4, 5)
}

// TestMove: a cache follows its volume.
func TestMove(t *testing.T) {
	for _, mode := range cacheModes[1:] {
		t.Run(string(mode), func(t *testing.T) { newWarmLife(t, mode, "").move() })
		t.Run(string(mode)+", the peer is lost", func(t *testing.T) { newWarmLife(t, mode, "").losePeer() })
		t.Run(string(mode)+", prepared", func(t *testing.T) { newWarmLife(t, mode, "").prepare() })
	}
}

// TestKillPrestage ends the plugin of either node, or the node, before and after everything
// that it changes while a stage begins before it is asked for.
func TestKillPrestage(t *testing.T) {
	for i, victim := range []string{"node-a", "node-b"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			begin := func(d ...disaster) *life { return newWarmLife(t, volume.ModeWriteback, victim, d...) }
			killEachOf(t, begin, i == 1, (*life).prepare, nil)
		})
	}
}

// TestKillRemap ends the plugin of the new node, or the node, before and after everything
// that it changes while its peer is lost.
func TestKillRemap(t *testing.T) {
	for _, power := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
			t.Parallel()
			begin := func(d ...disaster) *life { return newWarmLife(t, volume.ModeWritethrough, "node-b", d...) }
			killEachOf(t, begin, power, (*life).losePeer, nil, "after load nf-pvc-1.path", "after resume nf-pvc-1.path")
		})
	}
}

// TestKillMove ends the plugin of either node, or the node, before and after everything that
// it changes while a cache follows its volume. Without MATRIX=whole one mode is tried with
// each.
func TestKillMove(t *testing.T) {
	for i, mode := range cacheModes[1:] {
		for j, victim := range []string{"node-a", "node-b"} {
			for k, power := range []bool{false, true} {
				if os.Getenv("MATRIX") != "whole" && (i+j+k)%2 == 0 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/power=%t", mode, victim, power), func(t *testing.T) {
					t.Parallel()
					killEachOf(t, func(d ...disaster) *life { return newWarmLife(t, mode, victim, d...) }, power, (*life).move, nil,
						"after create nf-pvc-1.data", "after export of pvc-1", "after end of the export of pvc-1", "after end of a move")
				})
			}
		}
	}
}
