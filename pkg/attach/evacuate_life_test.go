package attach_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const otherSSD = "/dev/ssd-other"

// leavingPool is a pool of two SSDs, of which some are to leave it.
type leavingPool struct {
	poolOf
	leaving []string
	// all is true if there is no other one.
	all bool
}

func (p leavingPool) View() pool.View {
	v := p.poolOf.View()
	v.Devices = []string{ssdPath, otherSSD}
	v.Leaving = p.leaving
	if p.all {
		v.Devices = p.leaving
	}
	if v.Stripes = len(v.Staying()); v.Stripes == 0 {
		v.Ready, v.Problem = false, "every device of the pool is to be out of it"
	}
	return v
}

// secondSSD gives a node another one, as large as the first.
func (h *host) secondSSD() {
	h.w.t.Helper()
	h.machine.Add("259:1", otherSSD, h.w.disk(64*mib))
	h.w.must("extend", h.lvmClient(nil).ExtendVG(h.w.ctx, vgName, []string{otherSSD}))
	h.ssds = []string{ssdPath, otherSSD}
}

// leave has SSDs be named as to leave the pool.
func (h *host) leave(leaving ...string) {
	h.pool = leavingPool{leaving: leaving}
	h.UsePool(h.pool)
}

var errStillThere = errors.New("something lies on a device that is to leave")

// gone is an error while something lies on an SSD.
func (h *host) gone(ssd string) error {
	h.w.t.Helper()
	on, err := h.lvmClient(nil).OnDevices(h.w.ctx, vgName)
	h.w.must("on devices", err)
	if len(on[ssd]) > 0 {
		return fmt.Errorf("%w: %v", errStillThere, on[ssd])
	}
	return nil
}

// evacuate has an SSD leave below a pod, then the one to which the cache went, with the retained cache;
// and come back.
func (l *life) evacuate() {
	l.t.Helper()
	l.a.ssds, l.a.pool = []string{ssdPath}, poolOf{}
	req := l.publish(l.a.name)
	begin := func(p *plugin) error { return l.stageUnlessRunning(l.a, p, req) }
	l.persist(l.a, "stage", begin)
	l.a.podWrites(1, 1, 2, 3)
	l.a.secondSSD()
	l.a.leave(ssdPath)
	l.persist(l.a, "evacuate", func(p *plugin) error {
		if err := begin(p); err != nil {
			return err
		}
		if err := errors.Join(p.Evacuate(l.ctx), l.apply(p)); err != nil {
			return err
		}
		return l.a.gone(ssdPath)
	})
	l.a.podReads()
	l.wantCache(l.a)
	l.a.podWrites(2, 2, 4)
	l.a.podReads()
	l.leave(l.a)

	l.a.leave(otherSSD)
	l.persist(l.a, "evict", func(p *plugin) error {
		if err := p.Evacuate(l.ctx); err != nil {
			return err
		}
		return l.a.gone(otherSSD)
	})
	req = l.publish(l.a.name)
	l.persist(l.a, "stage again", begin)
	l.a.podReads()
	l.wantCache(l.a)
	if err := l.a.gone(otherSSD); err != nil {
		l.t.Error(err)
	}
	l.a.podWrites(3, 1, 5)
	l.a.leave()
	l.a.podReads()
	l.leave(l.a)
}

// TestLeavingHolds: what the SSDs of a pool hold that is to be dissolved counts as in any other.
func TestLeavingHolds(t *testing.T) {
	for _, lost := range []bool{false, true} {
		l := newLife(t, volume.ModeWriteback)
		l.req = l.publish(l.a.name)
		l.must("stage", l.a.Stage(l.ctx, l.req))
		l.a.podWrites(1, 0, 1, 2, 3)
		l.a.powerLoss()
		if lost {
			l.a.forgetJournal()
		}
		l.a.pool = leavingPool{leaving: []string{ssdPath}, all: true}
		l.a.start()
		l.persist(l.a, "stage", func(p *plugin) error { return p.Stage(l.ctx, l.req) })
		l.a.podReads()
		l.persist(l.a, "evacuate", func(p *plugin) error {
			if err := errors.Join(p.Evacuate(l.ctx), changeOnce(l, p)); err != nil {
				return err
			}
			return l.a.gone(ssdPath)
		})
		l.a.podReads()
		l.a.podWrites(2, 2, 4)
		l.leave(l.a)
	}
}

// TestKillEvacuate ends the plugin, or its node, before and after everything that it changes while SSDs
// leave the pool.
func TestKillEvacuate(t *testing.T) {
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		for _, power := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/power=%t", mode, power), func(t *testing.T) {
				t.Parallel()
				killEach(t, mode, power, (*life).evacuate, nil)
			})
		}
	}
}

// TestEvacuate: what is clean and nobody's goes, and what may have unflushed writes, or is somebody's,
// stays and is named. A pool of which all devices leave takes no cache.
func TestEvacuate(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	l.a.secondSSD()
	for _, n := range []neighbour{{"kept", "", state.Retained, time.Hour}, {"dirty", "", state.Flushed, time.Hour}, {"used", "", state.Staged, 0}} {
		l.a.keep(n)
	}
	on := func(ssd string) []string {
		t.Helper()
		on, err := l.a.lvmClient(nil).OnDevices(l.ctx, vgName)
		l.must("on devices", err)
		return on[ssd]
	}
	all := slices.Concat(on(ssdPath), on(otherSSD))
	l.a.leave(ssdPath, otherSSD)
	waits := map[string]bool{}
	for _, left := range l.a.Left(l.ctx, append(all, "swap")) {
		waits[left.Name] = left.Waits
		if left.Why == "" {
			t.Errorf("nobody knows why %s is there", left.Name)
		}
	}
	if want := map[string]bool{"kept": false, "dirty": true, "used": false, "swap": true}; fmt.Sprint(waits) != fmt.Sprint(want) {
		t.Errorf("waiting: %v, want %v", waits, want)
	}
	l.must("evacuate", l.a.Evacuate(l.ctx))
	if keeps := l.a.keeps(); keeps != "dirty used" {
		t.Errorf("the SSDs have caches of %q", keeps)
	}
	l.must("stage", l.a.Stage(l.ctx, l.publish(l.a.name)))
	if _, reason, message := l.conditionOf("Cached"); reason != "PoolMissing" || !strings.Contains(message, "is to be out of it") {
		t.Errorf("a cache on SSDs that all leave: %s: %s", reason, message)
	}
	l.a.podWrites(1, 0, 1)
	l.a.podReads()
}

// changeOnce takes steps below pods, whatever is asked for and cannot be had.
func changeOnce(l *life, p *plugin) error {
	_, err := p.Change(l.ctx)
	return err
}
