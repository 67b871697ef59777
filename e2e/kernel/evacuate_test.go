//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/volume"
)

func onBothSSDs() v1alpha1.CachePoolSpec {
	return v1alpha1.CachePoolSpec{Devices: []string{ssdOne, ssdTwo}}
}

// names has the pool's object name devices that are to be out, and returns what it says.
func (n *node) names(ctx context.Context, evacuate ...string) (*v1alpha1.CachePool, error) {
	obj := &v1alpha1.CachePool{}
	if err := n.objects.Get(ctx, client.ObjectKey{Name: n.Node}, obj); err != nil {
		return nil, err
	}
	obj.Labels, obj.Spec.Evacuate = nil, evacuate // an administrator's object
	if err := n.objects.Update(ctx, obj); err != nil {
		return nil, err
	}
	if err := n.pool.Reconcile(ctx); err != nil {
		return nil, err
	}
	return obj, n.objects.Get(ctx, client.ObjectKey{Name: n.Node}, obj)
}

// evacuated leads devices out of the pool that are named, as the loops of the plugin do.
func (n *node) evacuated(ctx context.Context, evacuate []string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		obj, err := n.names(ctx, evacuate...)
		if err != nil {
			return err
		}
		out := 0
		var said []string
		for _, d := range obj.Status.Devices {
			if d.Evacuation != nil {
				said = append(said, fmt.Sprintf("%s: %+v", d.Path, *d.Evacuation))
			}
			if d.Evacuation != nil && d.Evacuation.State == v1alpha1.EvacuationEvacuated {
				out++
			}
		}
		if out == len(evacuate) {
			return nil
		}
		_, err = n.Change(ctx)
		if err = errors.Join(err, n.Evacuate(ctx)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not out: %v", said)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// moved lets the node go on until the cache of an attached volume is on these SSDs, in the mode that is
// asked for.
func (d *disk) moved(to ...string) {
	t := d.m.t
	t.Helper()
	soon(t, fmt.Sprintf("%s on %v", d.req.ID, to), func() bool {
		if _, err := d.n.Change(t.Context()); err != nil && !errors.Is(err, volume.ErrBusy) { // it goes on, and the next call has its end
			t.Fatal(err)
		}
		mustPass(t, "evacuate", d.n.Evacuate(t.Context()))
		rec, err := d.rec.load(d.req.ID)
		mustPass(t, "record", err)
		st, found := d.cache()
		return found && string(st.Mode()) == string(rec.Volume.Spec.Mode) && st.Policy == devmapper.PolicySMQ &&
			slices.Equal(d.m.onDevices(string(d.req.ID)+".data"), to)
	})
	d.change()
	if on := d.wantTogether("moved"); !slices.Equal(on, to) {
		t.Errorf("%s is on %v, want %v", d.req.ID, on, to)
	}
}

// evacuation is what the pool says of a device that is to be out.
func (n *node) evacuation(t *testing.T, device string) v1alpha1.DeviceEvacuation {
	t.Helper()
	obj := &v1alpha1.CachePool{}
	mustPass(t, "pool", n.objects.Get(t.Context(), client.ObjectKey{Name: n.Node}, obj))
	for _, d := range obj.Status.Devices {
		if d.Path == device && d.Evacuation != nil {
			return *d.Evacuation
		}
	}
	t.Fatalf("%s is not said to leave: %+v", device, obj.Status.Devices)
	return v1alpha1.DeviceEvacuation{}
}

// wantOut: a device is in no group, and blank to everybody.
func (m *machine) wantOut(device string) {
	m.t.Helper()
	if got := strings.TrimSpace(m.must("wipefs", "--no-act", "--noheadings", device)); got != "" {
		m.t.Errorf("%s is out of the pool, and has %s", device, got)
	}
	if got := m.must("pvs", "--noheadings", "--options", "pv_name"); strings.Contains(got, device) {
		m.t.Errorf("%s is out of the pool, and LVM has %s", device, got)
	}
}

// TestKernelEvacuate takes one of two SSDs out of a pool below two pods that write and verify, in both
// modes, and puts it in again. What has unflushed writes and is not attached keeps it in; a clean retained
// cache goes. No access fails, and no block is lost or stale.
func TestKernelEvacuate(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onBothSSDs())
	lost := m.stopDirty(n, "lost")
	n, err := openNode(t.Context(), n.dir, onBothSSDs(), n.rec)
	mustPass(t, "node", err)
	lost.n = n
	kept := m.volume(n, "kept", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	kept.req.Block = true
	kept.stage()
	kept.unstage()
	var disks []*disk
	var loads []*load
	for _, mode := range cachingModesAlways() {
		d := m.volume(n, "evac-"+string(mode), 128*mib, cached(mode, 32*mib))
		d.req.Block = true
		d.stage()
		d.change()
		if on := d.wantTogether("made"); len(on) != 2 {
			t.Errorf("%s is on %v", d.req.ID, on)
		}
		l := startLoad(t, d.device(), 64*mib)
		l.until(d, func(st devmapper.CacheStatus) bool { return st.CacheUsed > 20 })
		disks, loads = append(disks, d), append(loads, l)
	}
	capacity := n.pool.View().CapacityBytes

	// All that can leaves; the writes that are nowhere else stay, and are named.
	_, err = n.names(t.Context(), ssdOne)
	mustPass(t, "name", err)
	for i, d := range disks {
		d.moved(ssdTwo)
		loads[i].moving()
		d.wantBegan(map[volume.CacheMode]string{volume.ModeWritethrough: beganEmpty, volume.ModeWriteback: "the cache, now in mode writeback"}[cachingModesAlways()[i]])
	}
	for range 2 { // nobody takes out what is in use, however often it looks
		mustPass(t, "pool", n.pool.Reconcile(t.Context()))
	}
	if on := m.onDevices("kept.data"); len(on) != 0 {
		t.Errorf("the retained cache is still on %v", on)
	}
	if e := n.evacuation(t, ssdOne); e.State != v1alpha1.EvacuationWaiting || e.BytesLeft == nil || *e.BytesLeft == 0 || !strings.HasPrefix(e.Message, "lost: ") {
		t.Errorf("a cache with unflushed writes: %+v", e)
	}
	if on := m.onDevices("lost.data"); len(on) != 2 {
		t.Errorf("unflushed writes are on %v", on)
	}
	if v := n.pool.View(); !v.Ready || v.CapacityBytes != capacity/2 {
		t.Errorf("while a device leaves: ready %t, capacity %d of %d", v.Ready, v.CapacityBytes, capacity)
	}

	// They are flushed as the node does it after a stop, and then nothing is in the way.
	lost.repair()
	began := time.Now()
	mustPass(t, "evacuate", n.evacuated(t.Context(), []string{ssdOne}))
	t.Logf("out after %s", time.Since(began))
	m.wantOut(ssdOne)
	if err := lost.onServer(); err != nil {
		t.Errorf("the unflushed writes of a device that is out: %v", err)
	}
	for _, l := range loads {
		l.moving()
	}

	// It is put in: a new cache is over both.
	_, err = n.names(t.Context())
	mustPass(t, "put in", err)
	if v := n.pool.View(); v.CapacityBytes != capacity || len(v.Leaving) > 0 {
		t.Errorf("put in: %+v", v)
	}
	for i, d := range disks {
		d.ask(cacheBytes(24 * mib))
		d.change()
		if on := d.wantTogether("made anew"); len(on) != 2 {
			t.Errorf("%s, made anew, is on %v", d.req.ID, on)
		}
		loads[i].moving()
		loads[i].end()
		loads[i].check(d.device())
		d.unstage()
		d.stage()
		loads[i].check(d.device())
		t.Logf("%s: %d accesses, the slowest took %s", d.req.ID, loads[i].rounds.Load(), time.Duration(loads[i].longest.Load()))
	}

	// The last ones leave too: the group goes, and the volumes work without a cache.
	mustPass(t, "evacuate all", n.evacuated(t.Context(), []string{ssdOne, ssdTwo}))
	m.wantOut(ssdOne)
	m.wantOut(ssdTwo)
	if v := n.pool.View(); v.Ready || v.VG != "" {
		t.Errorf("a pool of which all is out: %+v", v)
	}
	for i, d := range disks {
		if _, found := d.cache(); found {
			t.Errorf("%s has a cache", d.req.ID)
		}
		loads[i].check(d.device())
	}
	_, err = n.names(t.Context())
	mustPass(t, "put in", err)
	for i, d := range disks {
		d.ask(cacheBytes(32 * mib))
		d.change()
		d.wantCache("put in", cachingModesAlways()[i], 32*mib)
		loads[i].check(d.device())
		d.unstage()
		d.remove()
	}
	kept.remove()
	lost.remove()
}

func cachingModesAlways() []volume.CacheMode {
	return []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback}
}

// TestKernelEvacuateMirror takes one of three SSDs out of a mirror: caches keep two copies. With one of
// two that is left, they go, and nothing is lost.
func TestKernelEvacuateMirror(t *testing.T) {
	m := newMachine(t)
	ssds := smallSSDs(m, 3)
	n := m.node(t.TempDir(), v1alpha1.CachePoolSpec{Devices: ssds, Redundancy: v1alpha1.RedundancyMirror})
	d := m.volume(n, "evacmirror", 128*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	data := pattern(3, 8*mib)
	d.writeDirty(d.device(), data)
	first := d.wantTogether("made")
	if len(first) != 2 {
		t.Fatalf("made on %v", first)
	}
	leaves := canonicalOf(t, first[0])
	mustPass(t, "evacuate", n.evacuated(t.Context(), []string{leaves}))
	m.wantOut(leaves)
	check(t, d.device(), data, 0)
	d.change()
	soon(t, "mirrored again", func() bool {
		_, err := n.Change(t.Context())
		mustPass(t, "change", err)
		st, found := d.cache()
		return found && st.Mode() == devmapper.Writeback && st.Policy == devmapper.PolicySMQ
	})
	if on := d.wantTogether("moved"); len(on) != 2 || slices.Contains(on, first[0]) {
		t.Errorf("moved to %v, from %v", on, first)
	}
	d.wantCache("moved", volume.ModeWriteback, 32*mib)
	d.writeDirty(d.device(), data)

	second := canonicalOf(t, d.wantTogether("moved")[0])
	mustPass(t, "evacuate another", n.evacuated(t.Context(), []string{leaves, second}))
	if _, found := d.cache(); found || n.pool.View().Ready {
		t.Errorf("with one device: cached %t, pool %+v", found, n.pool.View())
	}
	check(t, d.device(), data, 0)
	check(t, d.originDevice(), data, 0)
	_, err := n.names(t.Context())
	mustPass(t, "put in", err)
	d.ask(cacheBytes(40 * mib))
	d.change()
	if on := d.wantTogether("put in"); len(on) != 2 {
		t.Errorf("put in: on %v", on)
	}
	check(t, d.device(), data, 0)
	d.unstage()
	d.remove()
}

// leavePoints are the steps that a device's way out passes, of a pool with a writeback volume in use and
// a retained cache.
var leavePoints = []string{
	"change.cleaner", "change.cleaned", "change.denied", "change.uncached", "change.data-removed", "change.journaled", "change.allocated", "change.cached", "change.recorded", "change.tagged", "change.writeback",
	"wipe.journaled", "wipe.removed", "leave.noted", "leave.reduced", "leave.blank",
}

// TestKernelKillEvacuate kills the node plugin at every step of a device's way out; a successor leads it
// out, and the pod, which runs all the time, sees nothing of it.
func TestKernelKillEvacuate(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onBothSSDs())
	d := m.volume(n, "killevac", 128*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	l := startLoad(t, d.device(), 32*mib)
	passed := map[string]bool{}
	ssds := []string{ssdOne, ssdTwo}
	for i, point := range killedAt(t, leavePoints, "change.cleaned", "change.uncached", "change.allocated", "wipe.journaled", "leave.noted", "leave.reduced") {
		kept := m.volume(n, fmt.Sprintf("kept-%d", i), 64*mib, cached(volume.ModeWritethrough, 16*mib))
		kept.req.Block = true
		kept.stage()
		kept.unstage()
		l.moving()
		out := ssds[i%2] // the cache is on the other one after that, and on both only at first
		if !d.killAt(point, order{Devices: ssds, Evacuate: []string{out}}) {
			t.Fatalf("%s did not pass %s", out, point)
		}
		passed[point] = true
		l.moving()
		mustPass(t, "repair", n.Repair(t.Context()))
		mustPass(t, "evacuate", n.evacuated(t.Context(), []string{out}))
		m.wantOut(out)
		l.moving()
		// This process reported the volume as asked for before the other one began, and reports what is news.
		d.ask(func(*volume.Volume) {})
		d.moved(ssds[(i+1)%2])
		d.wantCache(point, volume.ModeWriteback, 32*mib)
		_, err := n.names(t.Context())
		mustPass(t, "put in", err)
		if v := n.pool.View(); len(v.Devices) != 2 {
			t.Fatalf("killed at %s, put in: %+v", point, v)
		}
		kept.remove()
		t.Logf("killed at %s: %d accesses so far", point, l.rounds.Load())
	}
	for _, p := range faultpoint.List() {
		if wholeMatrix() && strings.HasPrefix(p, "leave.") && !passed[p] {
			t.Errorf("no device left with a kill at %s", p)
		}
	}
	l.end()
	l.check(d.device())
	d.ask(mode(volume.ModeWritethrough))
	d.change()
	l.check(d.originDevice())
	d.unstage()
	d.remove()
}

// canonicalOf is the path of a device that LVM names by a link.
func canonicalOf(t *testing.T, device string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(device)
	mustPass(t, "device", err)
	return real
}
