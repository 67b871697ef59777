//go:build kernel

package kernel

import (
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// preloadSize is the length of a volume that is preloaded, all of which its cache has room for.
	preloadSize = 48 * mib
	// preloadRate bounds the copy, in bytes per second.
	preloadRate = 4 * mib
)

// preload asks that a new cache be filled from the origin, for which there is no other node's.
func preload(r *volume.Volume) {
	r.WarmSource = nil
	r.Spec.WarmStart.Preload, r.Spec.WarmStart.Bandwidth = true, preloadRate
}

// preloads is a volume with content that has come to a node which never had it. cold is the hit rate
// of the first reads there in an empty cache.
func (m *machine) preloads(name string, spec volume.Spec) (v *movers, data []byte, cold float64) {
	t := m.t
	t.Helper()
	v = newMoversOf(t, m, name, preloadSize, spec)
	v.ask(preload)
	v.stage()
	if e, err := v.a.Journal.Load(string(v.req.ID)); err != nil || e.Hydration != nil {
		t.Fatalf("zeroes of a new volume are copied: %+v, %v", e, err)
	}
	data = pattern(7, preloadSize)
	write(t, v.device(), data, 0, true)
	v.unstage()

	method := spec.WarmStart.Method
	v.publishTo(v.b, otherName)
	v.ask(from(volume.WarmOff))
	v.stage()
	cold = v.hitRate(1000, preloadSize)
	v.unstage()
	v.publishTo(v.a, nodeName)
	v.publishTo(v.b, otherName)
	v.ask(func(r *volume.Volume) { r.Spec.WarmStart = byPeer(method) })
	v.ask(preload)
	v.stage()
	e, err := v.b.Journal.Load(string(v.req.ID))
	mustPass(t, "journal", err)
	if e.Hydration == nil || !e.Hydration.Preload || e.Hydration.Bandwidth != preloadRate {
		t.Fatalf("no preload: %+v", e.Hydration)
	}
	return v, data, cold
}

// cloned is how much of the cache has been copied by clone, and how much it has, in bytes.
func (v *movers) cloned() (done, all int64) {
	t := v.m.t
	t.Helper()
	st, found, err := v.b.DM.CloneStatus(t.Context(), layout.Device(v.req.ID, layout.Data))
	mustPass(t, "status", err)
	if !found || st.Fail {
		t.Fatalf("no clone: %+v", st)
	}
	region := int64(st.RegionSectors) * devmapper.SectorSize
	return int64(st.Hydrated) * region, int64(st.Regions) * region
}

// awaitCopy returns when the clone has copied more.
func (v *movers) awaitCopy() {
	v.m.t.Helper()
	for before, _ := v.cloned(); ; time.Sleep(50 * time.Millisecond) {
		if now, _ := v.cloned(); now > before {
			return
		}
	}
}

// copyRate measures for some seconds how fast the clone copies, in bytes per second.
func (v *movers) copyRate(limit int64) float64 {
	v.m.t.Helper()
	began := time.Now()
	before, _ := v.cloned()
	time.Sleep(4 * time.Second)
	after, _ := v.cloned()
	n, took := after-before, time.Since(began).Seconds()
	v.m.t.Logf("limit %d KiB/s: %.0f KiB/s", limit>>10, float64(n)/took/1024)
	if most := 2 * float64(limit) * took; float64(n) > most {
		v.m.t.Errorf("%d bytes in %.1f s with a limit of %d a second", n, took, limit)
	}
	return float64(n) / took
}

// TestKernelPreload: a cache of a volume that its node never had is filled before anything is read
// twice, within the bandwidth. What is written meanwhile stays, and a process that is killed in the
// middle is followed by one that goes on.
func TestKernelPreload(t *testing.T) {
	v, data, cold := newMachine(t).preloads("preload", cached(volume.ModeWriteback, 64*mib))
	check(t, v.device(), data[:4*mib], 0)
	v.b.Warm.NodeBandwidth = mib
	stop := v.b.runHydrations(t.Context())
	v.awaitCopy() // which does not begin at once, for the pod's start
	time.Sleep(2 * time.Second)
	v.awaitCopy() // it has rested for what it copied before anybody knew how fast it is
	slow := v.copyRate(mib)
	v.b.Warm.NodeBandwidth = 0
	fast := v.copyRate(preloadRate)
	stop()
	if fast < 1.5*slow {
		t.Errorf("%.0f bytes a second with a limit of the node's of 1 MiB/s, %.0f with the volume's of 4 MiB/s", slow, fast)
	}
	late := pattern(8, 2*mib)
	mustPass(t, "write", writePaced(v.device(), late, 40*mib))
	copy(data[40*mib:], late)

	p := v.startChild(order{Lessor: v.a.dir, Hydration: true})
	v.awaitCopy()
	mustPass(t, "kill", p.Kill())
	_, err := p.Wait()
	mustPass(t, "wait", err)
	if done, all := v.cloned(); done >= all {
		t.Errorf("nothing was left to copy when the plugin was killed: %d of %d bytes are copied", done, all)
	}
	mustPass(t, "repair", v.b.Repair(t.Context()))
	v.wantHydrated()
	v.leavePreloaded(data, cold)
}

// TestKernelPreloadStream is TestKernelPreload by the steps of a stream, as where there is no
// dm-clone.
func TestKernelPreloadStream(t *testing.T) {
	v, data, cold := newMachine(t).preloads("preload", streaming(cached(volume.ModeWriteback, 64*mib)))
	late := pattern(8, mib)
	written := make(chan error, 1)
	go func() { written <- writePaced(v.device(), late, 40*mib) }()
	if !v.killAt("stream.serves", order{Lessor: v.a.dir, Hydration: true}) {
		t.Error("the plugin was not killed between the steps of the stream")
	}
	mustPass(t, "write", <-written)
	copy(data[40*mib:], late)
	mustPass(t, "repair", v.b.Repair(t.Context()))
	check(t, v.device(), data, 0)
	v.wantStreamed()
	_, err := v.b.Change(t.Context())
	mustPass(t, "change", err)
	if e, err := v.b.Journal.Load(string(v.req.ID)); err != nil || e.Mode != volume.ModeWriteback {
		t.Errorf("after the stream: %+v, %v", e, err)
	}
	v.leavePreloaded(data, cold)
}

// leavePreloaded wants nearly all first reads to be hits, and takes the volume away.
func (v *movers) leavePreloaded(data []byte, cold float64) {
	t := v.m.t
	t.Helper()
	rate := v.hitRate(1000, preloadSize)
	t.Logf("hit rate of the first reads: %.3f, %.3f in an empty cache", rate, cold)
	if rate < 0.95 || cold > rate-0.3 {
		t.Errorf("hit rate of the first reads after the preload %.3f, in an empty cache %.3f", rate, cold)
	}
	check(t, v.device(), data, 0)
	v.unstage()
	v.publishTo(v.a, nodeName) // without a cache of before, what it reads is the origin's
	v.ask(from(volume.WarmOff))
	v.stage()
	check(t, v.device(), data, 0)
	v.unstage()
	v.remove()
	mustPass(t, "repair", v.a.Repair(t.Context()))
}
