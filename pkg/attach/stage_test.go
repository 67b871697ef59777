package attach_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// disaster ends a process of the plugin.
type disaster struct {
	// steps is how many steps the process does.
	steps int
	// at is the step that it ends at instead.
	at string
	// power takes the node with it.
	power bool
}

func (d disaster) String() string {
	at := d.at
	if at == "" {
		at = fmt.Sprintf("at step %d", d.steps)
	}
	if d.power {
		return "power lost " + at
	}
	return "killed " + at
}

// life is a volume on two nodes. Disasters end the processes of one of them, each the next.
type life struct {
	*world
	a, b *host
	mode volume.CacheMode
	// victim is the first one without.
	victim *host
	next   []disaster
	// req is what kubelet asks of the node that the volume is given to.
	req volume.StageRequest
	// prestaged tells that the node knows of it before kubelet asks.
	prepared bool
	// ended are the steps that processes ended at.
	ended []string
}

func newLife(t testing.TB, mode volume.CacheMode, d ...disaster) *life {
	l := newLifeIn(newWorld(t, mode), mode)
	l.next = d
	l.arm()
	return l
}

func newLifeIn(w *world, mode volume.CacheMode) *life {
	l := &life{world: w, a: w.host("node-a"), b: w.host("node-b"), mode: mode}
	l.victim = l.a
	return l
}

func (l *life) arm() {
	if len(l.next) > 0 {
		l.victim.killAfter(l.next[0].steps)
		l.victim.killAt(l.next[0].at)
	}
}

// persist calls a plugin until it has succeeded, as kubelet does, and begins the next
// process where one has ended, which repairs first.
func (l *life) persist(h *host, what string, do func(*plugin) error) {
	l.t.Helper()
	const tries = 200
	var last error
	for range tries {
		p := h.plugin
		ended, err := p.run(func() error { return do(p) })
		if ended == "" && err == nil {
			return
		}
		if last = err; ended != "" {
			l.end(h, ended)
		}
		p = h.plugin
		if ended, err = p.run(func() error { return p.Repair(l.ctx) }); ended != "" {
			l.end(h, ended)
		} else if err != nil {
			last = errors.Join(last, fmt.Errorf("repair: %w", err))
		}
	}
	l.t.Fatalf("%s on %s does not succeed: %v (ended: %q)", what, h.name, last, l.ended)
}

func (l *life) end(h *host, at string) {
	l.ended = append(l.ended, at)
	if l.next[0].power {
		h.powerLoss()
	}
	l.next = l.next[1:]
	h.start()
	l.arm()
}

// stay has a pod of a node use the volume once.
func (l *life) stay(h *host, value uint64, at ...int64) {
	l.t.Helper()
	req := l.publish(h.name)
	l.persist(h, "stage", func(p *plugin) error { return p.Stage(l.ctx, req) })
	h.podReads()
	h.podWrites(value, at...)
	h.podReads()
	if obj := l.record(); l.mode == volume.ModeWriteback && obj.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
		l.t.Fatalf("a writeback volume is attached, and its record says %s (I2)", obj.Status.DirtyState)
	}
	l.leave(h)
}

// leave has the volume leave a node in order.
func (l *life) leave(h *host) {
	l.t.Helper()
	l.persist(h, "unstage", func(p *plugin) error { return p.Unstage(l.ctx, volumeID, staging) })
	if obj := l.record(); obj.Status.DirtyState != v1alpha1.DirtyStateClean {
		l.t.Fatalf("after unstage the record says %s (ended: %q)", obj.Status.DirtyState, l.ended)
	}
	l.unpublish(h.name)
	l.compare("the storage server", l.lun)
	l.nothingLeft(h)
}

// nothingLeft fails if an unstage has left more than a retained cache.
func (l *life) nothingLeft(h *host) {
	l.t.Helper()
	devices, err := h.kernel.Client(nil).Info(l.ctx, "nf-")
	l.must("devices", err)
	if len(devices) > 0 || len(h.mounts) > 0 || len(h.sessions) > 0 {
		l.t.Fatalf("left on %s: devices %v, mounts %v, sessions %v (ended: %q)", h.name, devices, h.mounts, h.sessions, l.ended)
	}
	listed := func() bool {
		return slices.ContainsFunc(l.record().Status.RetainedCaches, func(r v1alpha1.RetainedCache) bool { return r.NodeName == h.name })
	}
	entries, err := h.Journal.List()
	l.must("journal", err)
	if !listed() && len(l.ended) > 0 && len(entries) > 0 && entries[0].RetainedCacheDue {
		// The process ended before the record was told: the next repair does it.
		l.persist(h, "repair", func(p *plugin) error { return p.Repair(l.ctx) })
		entries, err = h.Journal.List()
		l.must("journal", err)
	}
	lvs, err := h.lvmClient(nil).LVs(l.ctx, vgName)
	l.must("logical volumes", err)
	// What the record lists may be gone, what it does not list may not be there.
	if !listed() && len(entries) > 0 {
		l.t.Fatalf("the record does not list %s, whose entries are %+v (ended: %q)", h.name, entries, l.ended)
	}
	if (len(entries) == 0) != (len(lvs) == 0) {
		l.t.Fatalf("left on %s: entries %+v, logical volumes %v (ended: %q)", h.name, entries, lvs, l.ended)
	}
}

// live is the whole of it: a cache is made, used again, and stale once another node has
// had the volume.
func (l *life) live() {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3, 10, 11)
	l.stay(l.a, 2, 1, 2, 12)
	l.stay(l.b, 3, 2, 3, 13)
	l.stay(l.a, 4, 0, 14)
}

var cacheModes = []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback}

// TestStage: a volume is staged and unstaged on two nodes, with nothing in the way.
func TestStage(t *testing.T) {
	for _, mode := range cacheModes {
		t.Run(string(mode), func(t *testing.T) { newLife(t, mode).live() })
	}
}

// TestKillAnywhere ends the plugin, or its node, before and after everything that it
// changes. Nothing that was acknowledged is lost, and every life goes on (I1, I2, I8).
func TestKillAnywhere(t *testing.T) {
	for _, mode := range cacheModes {
		for _, power := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/power=%t", mode, power), func(t *testing.T) {
				t.Parallel()
				killEach(t, mode, power, (*life).live, nil,
					"before login to iqn.2026-11.io.nearflash:test:pvc-1", "after create nf-pvc-1", "after remove nf-pvc-1", "after a change of the record's status")
			})
		}
	}
}

// killEach has a life for each step that the plugin can end at, with what comes after it.
// Those of the steps that matter most are ended at in any case.
func killEach(t *testing.T, mode volume.CacheMode, power bool, live func(*life), after func(n int) []disaster, matter ...string) {
	t.Helper()
	killEachOf(t, func(d ...disaster) *life { return newLife(t, mode, d...) }, power, live, after, matter...)
}

// killEachOf is killEach with lives of another kind.
func killEachOf(t *testing.T, begin func(...disaster) *life, power bool, live func(*life), after func(n int) []disaster, matter ...string) {
	t.Helper()
	ended := killByNumber(t, begin, power, live, after)
	t.Logf("ended at %d steps", len(ended))
	for _, at := range matter {
		if slices.Contains(ended, at) || t.Failed() {
			continue
		}
		// Of two things that are done beside each other, chance says which is the n-th.
		l := begin(disaster{at: at, power: power})
		t.Run(at, func(t *testing.T) {
			l.t = t
			live(l)
		})
		l.forget()
		if !slices.Contains(l.ended, at) {
			t.Errorf("it was never ended %s", at)
		}
	}
}

func killByNumber(t *testing.T, begin func(...disaster) *life, power bool, live func(*life), after func(n int) []disaster) (ended []string) {
	t.Helper()
	for n := 1; ; n++ {
		all := []disaster{{steps: n, power: power}}
		if after != nil {
			all = append(all, after(n)...)
		}
		l := begin(all...)
		t.Run(fmt.Sprint(all), func(t *testing.T) {
			l.t = t
			live(l)
		})
		l.forget()
		if len(l.ended) == 0 || t.Failed() {
			return ended // all of its steps are before the n-th
		}
		ended = append(ended, l.ended...)
	}
}

// secondKills bounds where a process that follows one that was ended is ended too.
const secondKills = 120

// TestKillTwice ends the process that goes on after the first one, too. All pairs of steps
// are thousands of lives; without MATRIX=whole each first step has one second, another one
// for each, and a mode either a process or its node that ends first.
func TestKillTwice(t *testing.T) {
	for i, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		for j, power := range []bool{false, true} {
			if os.Getenv("MATRIX") != "whole" && i != j {
				continue
			}
			t.Run(fmt.Sprintf("%s/power=%t", mode, power), func(t *testing.T) {
				t.Parallel()
				if os.Getenv("MATRIX") != "whole" {
					killEach(t, mode, power, (*life).live, func(n int) []disaster {
						return []disaster{{steps: 1 + (n*47+i*13)%secondKills, power: (n+j)%2 == 0}}
					})
					return
				}
				for second := range secondKills {
					killEach(t, mode, power, (*life).live, func(n int) []disaster {
						return []disaster{{steps: 1 + second, power: (n+second+j)%2 == 0}}
					})
				}
			})
		}
	}
}
