//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// prepare begins the stages that are due. With announced, req is known to wait for the
// end of it.
func (n *node) prepare(ctx context.Context, req volume.StageRequest, announced bool) {
	over := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(over)
	if announced {
		wg.Go(func() {
			// It is heard of once the volume is locked, which nobody outside can see.
			for {
				select {
				case <-over:
					return
				case <-time.After(20 * time.Millisecond):
					n.Announce(req)
				}
			}
		})
	}
	n.Prestage(ctx)
}

// prestaged moves a warm volume from A to B, whose plugin begins before it is asked to,
// or while the request waits.
func (v *movers) prestaged(seed uint64, announced bool) []byte {
	t := v.m.t
	t.Helper()
	v.publishTo(v.a, nodeName)
	v.stage()
	data := v.warmUp(seed)
	v.unstage()
	v.publishTo(v.b, otherName)
	v.b.prepare(t.Context(), v.req, announced)
	e, err := v.b.Journal.Load(string(v.req.ID))
	mustPass(t, "journal", err)
	if e.State != state.Staging || e.Activated || e.Fence != v.req.Publication.Fence || e.Hydration == nil || e.Hydration.Peer == nil {
		t.Fatalf("prepared: %+v", e)
	}
	if known, connected := e.Source.IQN != "", v.hasOrigin(); known != announced || connected != announced {
		t.Errorf("announced: %t; the journal has the origin's address: %t; it is connected: %t", announced, known, connected)
	}
	return data
}

// hasOrigin reports whether the origin is there as the request names it.
func (v *movers) hasOrigin() bool {
	v.m.t.Helper()
	_, found, err := v.b.Transport.Lookup(v.m.t.Context(), v.target())
	mustPass(v.m.t, "look for the origin", err)
	return found
}

// asked is how often B has asked for a lease of the volume's present ownership.
func (v *movers) asked() int {
	p := v.b.Moves.(*pair)
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, r := range p.requests {
		if r.Fence == v.req.Publication.Fence && r.Source != nil {
			n++
		}
	}
	return n
}

// gone wants nothing of the volume on B, nor exported by A.
func (v *movers) gone() {
	t := v.m.t
	t.Helper()
	if e, err := v.b.Journal.Load(string(v.req.ID)); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("the journal has %+v, %v", e, err)
	}
	infos, err := v.b.DM.Info(t.Context(), "nf-"+string(v.req.ID))
	mustPass(t, "devices", err)
	if len(infos) > 0 {
		t.Errorf("devices are left: %v", infos)
	}
	lvs, err := v.b.LVM.LVs(t.Context(), v.b.pool.View().VG)
	mustPass(t, "logical volumes", err)
	if len(lvs) > 0 {
		t.Errorf("logical volumes are left: %v", lvs)
	}
	if v.hasOrigin() {
		t.Error("the origin is still connected")
	}
	leases, err := v.a.Lessor().Leases(t.Context())
	mustPass(t, "leases", err)
	if len(leases) > 0 {
		t.Errorf("A still exports %v", leases)
	}
}

// TestKernelPrestage: a stage that was begun before it was asked for ends like any other.
func TestKernelPrestage(t *testing.T) {
	m := newMachine(t)
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		v := newMovers(t, m, "prepare-"+string(mode), cached(mode, 64*mib))
		data := v.prestaged(1, mode == volume.ModeWriteback)
		v.b.Prestage(t.Context()) // nothing is done twice
		v.stage()
		if n := v.asked(); n != 1 {
			t.Errorf("%s: the lease was asked for %d times", mode, n)
		}
		v.wantOriginNoted()
		if rate := v.hitRate(1000, 16*mib); rate < 0.95 {
			t.Errorf("%s: hit rate of the first 1000 reads: %.3f", mode, rate)
		}
		late := pattern(2, 4*mib)
		write(t, v.device(), late, 6*mib, true)
		copy(data[6*mib:], late)
		v.wantHydrated()
		check(t, v.device(), data, 0)
		v.b.Prestage(t.Context()) // an attached volume is left alone
		check(t, v.device(), data, 0)
		v.unstage()
		v.checkUncached(data)
		v.remove()
		mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
		v.gone()
	}
}

// wantOriginNoted: the SSD alone tells how large the origin is, from which a rescue knows
// whether it is given the right one.
func (v *movers) wantOriginNoted() {
	v.m.t.Helper()
	want, noted := fmt.Sprintf("nearflash.origin=%d", v.size), 0
	for line := range strings.Lines(v.m.must("lvs", "--noheadings", "--options", "lv_name,lv_tags", pool.VolumeGroup(otherName))) {
		name, tags, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(name, string(v.req.ID)+".") {
			continue
		}
		if noted++; !slices.Contains(strings.Split(strings.TrimSpace(tags), ","), want) {
			v.m.t.Errorf("%s has tags %s, want %s", name, tags, want)
		}
	}
	if noted < 2 {
		v.m.t.Errorf("%d logical volumes of volume %s", noted, v.req.ID)
	}
}

// TestKernelPrestageInVain: what was prestaged is of no use to the stage, or none comes.
func TestKernelPrestageInVain(t *testing.T) {
	m := newMachine(t)
	cases := map[string]func(v *movers, data []byte){
		"the origin has another size": func(v *movers, data []byte) {
			v.ask(func(r *volume.Volume) { r.Spec.CapacityBytes = v.size })
			v.stage()
			check(t, v.device(), data, 0)
			v.wantHydrated()
			check(t, v.device(), data, 0)
			v.unstage()
		},
		"the plugin was started anew": func(v *movers, data []byte) {
			a, b, err := openPair(t.Context(), v.a.dir, v.b.dir)
			mustPass(t, "nodes", err)
			v.a, v.b, v.n = a, b, b
			b.Prestage(t.Context())
			v.stage()
			if rate := v.hitRate(1000, 16*mib); rate < 0.95 {
				t.Errorf("hit rate of the first 1000 reads: %.3f", rate)
			}
			v.wantHydrated()
			check(t, v.device(), data, 0)
			v.unstage()
		},
		"the mode is another one": func(v *movers, data []byte) { v.checkUncached(data) },
		"the volume goes elsewhere": func(v *movers, data []byte) {
			v.publishTo(v.a, nodeName)
			mustPass(t, "repair", v.b.Repair(t.Context()))
			v.gone()
			v.stage()
			check(t, v.device(), data, 0)
			v.unstage()
		},
		"the pod does not come": func(v *movers, data []byte) {
			v.ask(func(r *volume.Volume) { r.Published = false })
			mustPass(t, "repair", v.b.Repair(t.Context()))
			v.gone()
			v.ask(func(r *volume.Volume) { r.Published = true })
			v.stage()
			check(t, v.device(), data, 0)
			v.unstage()
		},
	}
	for name, then := range cases {
		v := newMovers(t, m, "vain", cached(volume.ModeWriteback, 64*mib))
		if name == "the origin has another size" {
			v.ask(func(r *volume.Volume) { r.Spec.CapacityBytes = 96 * mib })
		}
		// Where no stage follows there is more to bring down if one was announced.
		then(v, v.prestaged(3, name != "the plugin was started anew"))
		if t.Failed() {
			t.Fatal(name)
		}
		v.remove()
		mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
		v.gone()
	}
}

// TestKernelKillPrestage kills the plugin at every step that it takes before it is asked to.
func TestKernelKillPrestage(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "killprepare", cached(volume.ModeWriteback, 32*mib))
	points := []string{"stage.journaled", "prestage.announced", "prestage.connected", "hydration.exported", "hydration.connected", "hydration.restored", "hydration.path", "hydration.source", "hydration.clone", "prestage.done"}
	for _, point := range killedAt(t, points, "prestage.announced", "hydration.restored", "prestage.done") {
		if !slices.Contains(faultpoint.List(), point) {
			t.Fatalf("there is no fault point %s", point)
		}
		v.killedMove(point, order{Prepare: true, Announce: strings.HasPrefix(point, "prestage.")})
		if t.Failed() {
			t.Fatalf("killed at %s", point)
		}
	}
	v.remove()
	mustPass(t, "repair", v.b.Repair(t.Context()))
}
