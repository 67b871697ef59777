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
	// preloadRate bounds the copy of which the time is measured, in bytes per second.
	preloadRate = mib
)

// preload asks that a new cache be filled from the origin at so many bytes a second, for which there is
// no other node's.
func preload(rate int64) func(*volume.Volume) {
	return func(r *volume.Volume) {
		r.WarmSource = nil
		r.Spec.WarmStart.Preload, r.Spec.WarmStart.Bandwidth = true, rate
	}
}

// preloads is a volume with content that has come to a node which never had it. cold is the hit rate
// of the first reads there in an empty cache.
func (m *machine) preloads(name string, spec volume.Spec, rate int64) (v *movers, data []byte, cold float64) {
	t := m.t
	t.Helper()
	v = newMoversOf(t, m, name, preloadSize, spec)
	v.ask(preload(rate))
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
	v.ask(func(r *volume.Volume) { r.Spec.WarmStart = byPeer(method) })
	v.ask(preload(rate))
	v.comeNew()
	e, err := v.b.Journal.Load(string(v.req.ID))
	mustPass(t, "journal", err)
	if e.Hydration == nil || !e.Hydration.Preload || e.Hydration.Bandwidth != rate {
		t.Fatalf("no preload: %+v", e.Hydration)
	}
	return v, data, cold
}

// comeNew has the volume come to node B as if it had never been there.
func (v *movers) comeNew() {
	v.publishTo(v.a, nodeName)
	v.publishTo(v.b, otherName)
	v.ask(func(r *volume.Volume) { r.WarmSource = nil })
	v.stage()
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

// TestKernelPreload: a cache of a volume that its node never had is filled before anything is read
// twice, within the bandwidth. What is written meanwhile stays, and a process that is killed in the
// middle is followed by one that goes on.
func TestKernelPreload(t *testing.T) {
	v, data, cold := newMachine(t).preloads("preload", cached(volume.ModeWriteback, 64*mib), preloadRate)
	check(t, v.device(), data[:4*mib], 0)
	began := time.Now()
	p := v.startChild(order{Lessor: v.a.dir, Hydration: true})
	v.awaitCopy()
	late := pattern(8, 2*mib)
	mustPass(t, "write", writePaced(v.device(), late, 40*mib))
	copy(data[40*mib:], late)
	mustPass(t, "kill", p.Kill())
	_, err := p.Wait()
	mustPass(t, "wait", err)
	if done, all := v.cloned(); done == 0 || done >= all {
		t.Errorf("%d of %d bytes were copied when the plugin was killed, which is not in the middle", done, all)
	}
	mustPass(t, "repair", v.b.Repair(t.Context()))
	v.wantHydrated()
	limited := time.Since(began)
	v.wantPreloaded(data, cold)
	v.unstage()

	v.ask(func(r *volume.Volume) { r.Spec.WarmStart.Bandwidth = 0 })
	v.comeNew()
	began = time.Now()
	v.wantHydrated()
	free := time.Since(began)
	t.Logf("all copied in %s with a limit of %d KiB/s, in %s without", limited, preloadRate>>10, free)
	if limited < 2*free || limited.Seconds() < float64(preloadSize/preloadRate)/2 {
		t.Error("the limit was not kept")
	}
	v.leavePreloaded(data)
}

// TestKernelPreloadStream is TestKernelPreload by the steps of a stream, as where there is no
// dm-clone.
func TestKernelPreloadStream(t *testing.T) {
	v, data, cold := newMachine(t).preloads("preload", streaming(cached(volume.ModeWriteback, 64*mib)), 8*mib)
	late := pattern(8, mib)
	written := make(chan error, 1)
	go func() { written <- writePaced(v.device(), late, 40*mib) }()
	if !v.killAt("stream.serves", order{Lessor: v.a.dir, Hydration: true}) {
		t.Error("the plugin was not killed between the steps of the stream")
	}
	mustPass(t, "write", <-written)
	copy(data[40*mib:], late)
	v.endStream(data)
	v.wantPreloaded(data, cold)
	v.leavePreloaded(data)
}

// wantPreloaded wants nearly all first reads to be hits.
func (v *movers) wantPreloaded(data []byte, cold float64) {
	t := v.m.t
	t.Helper()
	rate := v.hitRate(1000, preloadSize)
	t.Logf("hit rate of the first reads: %.3f, %.3f in an empty cache", rate, cold)
	if rate < 0.95 || cold > rate-0.3 {
		t.Errorf("hit rate of the first reads after the preload %.3f, in an empty cache %.3f", rate, cold)
	}
	check(t, v.device(), data, 0)
}

// leavePreloaded takes the volume away, and wants the origin to have everything.
func (v *movers) leavePreloaded(data []byte) {
	t := v.m.t
	t.Helper()
	v.unstage()
	v.publishTo(v.a, nodeName) // without a cache of before, what it reads is the origin's
	v.ask(from(volume.WarmOff))
	v.stage()
	check(t, v.device(), data, 0)
	v.unstage()
	v.remove()
	mustPass(t, "repair", v.a.Repair(t.Context()))
}
