//go:build kernel

package kernel

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// frail is an SSD that can be made to fail: a device over the guest's first one.
const (
	frail     = "frail"
	frailPath = "/dev/mapper/" + frail
)

// onFrailSSD makes that device, which outlives the pool on it.
func onFrailSSD(m *machine) v1alpha1.CachePoolSpec {
	m.must("dmsetup", "create", frail, "--table", frailTable(m, "linear %s 0"))
	m.t.Cleanup(func() { m.try("dmsetup", "remove", "--retry", frail) })
	return v1alpha1.CachePoolSpec{Devices: []string{frailPath}}
}

// frailTable is a table of one target over the SSD.
func frailTable(m *machine, target string) string { return tableOver(m, ssdOne, target) }

func tableOver(m *machine, ssd, target string) string {
	sectors := strings.TrimSpace(m.must("blockdev", "--getsz", ssd))
	if strings.Contains(target, "%s") {
		target = fmt.Sprintf(target, ssd)
	}
	return "0 " + sectors + " " + target
}

// swapTable puts another table into a device, whatever its I/O does.
func (m *machine) swapTable(device, table string) {
	m.t.Helper()
	m.must("dmsetup", "suspend", "--noflush", "--nolockfs", device)
	m.must("dmsetup", "load", device, "--table", table)
	m.must("dmsetup", "resume", device)
}

// failVolume makes a logical volume of a node's pool answer with errors, and
// returns what takes that back.
func (d *disk) failVolume(node, part string) (restore func()) {
	m := d.m
	m.t.Helper()
	lvs, err := d.n.LVM.LVs(m.t.Context(), pool.VolumeGroup(node))
	mustPass(m.t, "lvs", err)
	for _, lv := range lvs {
		if lv.Name != string(d.req.ID)+"."+part {
			continue
		}
		number := []string{"--major", fmt.Sprint(lv.Major), "--minor", fmt.Sprint(lv.Minor)}
		name := strings.TrimSpace(m.must("dmsetup", append([]string{"info", "--columns", "--noheadings", "--options", "name"}, number...)...))
		before := strings.TrimSpace(m.must("dmsetup", "table", name))
		m.swapTable(name, fmt.Sprintf("0 %d error", lv.SizeBytes/512))
		return func() { m.swapTable(name, before) }
	}
	m.t.Fatalf("no logical volume %s.%s", d.req.ID, part)
	return nil
}

// later moves a node's clock.
func (n *node) later(by time.Duration) { n.Now = func() time.Time { return time.Now().Add(by) } }

// awaitFailedOver lets the node look until the volume runs past its cache.
func (d *disk) awaitFailedOver() {
	t := d.m.t
	t.Helper()
	defer d.n.later(0)
	var err error
	for i := range 150 {
		d.n.later(time.Duration(i+2) * time.Minute) // a write to the SSD is due each time
		err = d.n.CacheFaults().Pass(t.Context())
		if _, found := d.cache(); !found && err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	st, found := d.cache()
	t.Fatalf("the volume still runs through its cache: %t, %+v, %v", found, st, err)
}

// wantFailedOver: the volume runs on the origin alone, its owner was told, and
// nothing of the cache is left but logical volumes on an SSD that refuses.
func (d *disk) wantFailedOver() {
	t := d.m.t
	t.Helper()
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if r := rec.Report; r.Cached || r.Reason != v1alpha1.ReasonCacheDeviceError || !r.Warning {
		t.Errorf("the record says %+v", r)
	}
	infos, err := d.n.DM.Info(t.Context(), "nf-"+string(d.req.ID))
	mustPass(t, "devices", err)
	for name := range infos {
		if name != "nf-"+string(d.req.ID) && !strings.HasSuffix(name, ".origin") {
			t.Errorf("device %s is left", name)
		}
	}
	e, err := d.n.Journal.Load(string(d.req.ID))
	mustPass(t, "journal", err)
	if e.Cached() || e.FailoverCause != "" || e.Hydration != nil {
		t.Errorf("the journal says mode %s, failover %q, hydration %v", e.Mode, e.FailoverCause, e.Hydration)
	}
}

// cacheAgain passes the time after which the node makes another cache.
func (d *disk) cacheAgain(bytes int64) {
	t := d.m.t
	t.Helper()
	mustPass(t, "pool", d.n.pool.Reconcile(t.Context()))
	if _, err := d.n.Change(t.Context()); err != nil {
		t.Error(err)
	}
	if _, found := d.cache(); found {
		t.Error("there is another cache at once")
	}
	if v := d.n.pool.View(); !v.Ready {
		t.Fatalf("the pool is not ready: %s", v.Problem)
	}
	d.n.later(24 * time.Hour)
	d.change()
	d.n.later(0)
	d.wantCache("cached again", volume.ModeWritethrough, bytes)
	d.wantReport(v1alpha1.ReasonCacheActive)
}

// TestKernelFailover makes the SSD of a writethrough cache fail in several ways
// below a verified load. With the map alone no access fails; else those that were
// sent to the SSD before the swap do, and no other. Nothing is lost or stale.
func TestKernelFailover(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onFrailSSD(m))
	d := m.volume(n, "failover", 128*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	failovers := 0
	n.FailedOver = func() { failovers++ }
	l := startLoad(t, d.device(), 64*mib)
	mend := func() { m.swapTable(frail, frailTable(m, "linear %s 0")) }
	ways := []struct {
		name  string
		fail  func() (restore func())
		hurts bool
	}{
		{"the map fails", func() func() { d.failVolume(nodeName, "meta"); return func() {} }, false},
		{"the SSD is gone", func() func() { m.swapTable(frail, frailTable(m, "error")); return mend }, true},
		{"the SSD takes no writes", func() func() { m.swapTable(frail, frailTable(m, "flakey %s 0 0 3600 1 error_writes")); return mend }, true},
		{"the data fail", func() func() { d.failVolume(nodeName, "data"); return func() {} }, true},
	}
	for i, way := range ways {
		l.until(d, func(st devmapper.CacheStatus) bool { return st.CacheUsed > 20 })
		l.tolerant.Store(way.hurts)
		restore := way.fail()
		d.awaitFailedOver()
		l.tolerant.Store(false)
		l.moving()
		t.Logf("%s: %d accesses failed so far, of %d", way.name, l.failures.Load(), l.rounds.Load())
		if failovers != i+1 {
			t.Errorf("%s: %d failovers are counted, want %d", way.name, failovers, i+1)
		}
		d.wantFailedOver()
		restore()
		mustPass(t, "pool", n.pool.Reconcile(t.Context()))
		mustPass(t, "repair", n.Repair(t.Context()))
		d.cacheAgain(32 * mib)
		if t.Failed() {
			break
		}
	}
	l.end()
	l.check(d.device())
	l.check(d.originDevice())
	d.unstage()
	d.stage()
	l.check(d.device())
	d.unstage()
	d.remove()
}

// TestKernelKillFailover kills the node plugin at every step of a failover; a
// successor completes it, and the pod sees nothing of it.
func TestKernelKillFailover(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "killfailover", 128*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	l := startLoad(t, d.device(), 32*mib)
	points := slices.DeleteFunc(faultpoint.List(), func(p string) bool { return !strings.HasPrefix(p, "failover.") })
	if len(points) < 4 {
		t.Fatalf("fault points: %v", points)
	}
	points = append(points, "reload.loaded", "change.data-removed")
	for _, point := range killedAt(t, points, "failover.unmarked", "reload.loaded", "failover.swapped", "change.data-removed") {
		l.moving()
		d.failVolume(nodeName, "meta")
		if !d.killAt(point, order{FailOver: true}) {
			t.Fatalf("the failover did not pass %s", point)
		}
		l.moving()
		// What a restarted plugin does besides.
		mustPass(t, "repair", n.Repair(t.Context()))
		if _, err := n.Change(t.Context()); err != nil {
			t.Error(err)
		}
		d.awaitFailedOver()
		mustPass(t, "failover", n.CacheFaults().Pass(t.Context()))
		_, err := n.Change(t.Context())
		mustPass(t, "change", err)
		d.wantFailedOver()
		d.cacheAgain(32 * mib)
		t.Logf("killed at %s: %d accesses so far", point, l.rounds.Load())
		if t.Failed() {
			break
		}
	}
	l.end()
	l.check(d.device())
	l.check(d.originDevice())
	// The pod goes away right after the kill, and comes back.
	for _, point := range []string{"failover.denied", "failover.swapped"} {
		d.failVolume(nodeName, "meta")
		d.killAt(point, order{FailOver: true})
		d.unstage()
		mustPass(t, "repair", n.Repair(t.Context()))
		d.stage()
		d.wantReport(v1alpha1.ReasonCacheActive)
		l.check(d.device())
	}
	d.unstage()
	d.remove()
}

// TestKernelFailoverAtRisk: a writeback cache is not left while it may hold the only
// copy of a write, and what is at risk is said.
func TestKernelFailoverAtRisk(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "atrisk", 128*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	n.FailedOver = func() { t.Error("a failover was counted") }
	data := pattern(9, 4*mib)
	d.writeDirty(d.device(), data)
	restore := d.failVolume(nodeName, "data")
	d.awaitReport(v1alpha1.ReasonCacheDeviceError)
	for range 2 {
		mustPass(t, "failover", n.CacheFaults().Pass(t.Context()))
		if _, err := n.Change(t.Context()); err != nil {
			t.Error(err)
		}
	}
	d.wantCache("failing", volume.ModeWriteback, 32*mib)
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if r := rec.Report; !r.Cached || r.Reason != v1alpha1.ReasonCacheDeviceError || !r.Warning || !strings.Contains(r.Message, "bytes of its writes") {
		t.Errorf("the record says %+v", r)
	}
	if n := len(slices.DeleteFunc(rec.Reasons, func(s string) bool { return s != v1alpha1.ReasonCacheDeviceError })); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	if rec.Applied.Reason != v1alpha1.ReasonCacheDeviceError {
		t.Errorf("the change of mode says %+v", rec.Applied)
	}
	restore()
	d.awaitReport(v1alpha1.ReasonCacheActive)
	check(t, d.device(), data, 0)
	d.unstage()
	d.stage()
	check(t, d.device(), data, 0)
	d.unstage()
	d.remove()
}

// awaitReport lets the node look at its SSDs until the record says so: one that does not
// answer in time says nothing.
func (d *disk) awaitReport(reason string) {
	t := d.m.t
	t.Helper()
	soon(t, "the record says "+reason, func() bool {
		mustPass(t, "failover", d.n.CacheFaults().Pass(t.Context()))
		rec, err := d.rec.load(d.req.ID)
		mustPass(t, "record", err)
		return rec.Report.Reason == reason
	})
}

// TestKernelFailoverHydration: the SSD of the new node fails while its cache is being
// filled from the node before it.
func TestKernelFailoverHydration(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "failoverfill", cached(volume.ModeWritethrough, 64*mib))
	v.stage()
	data := v.warmUp(5)
	v.unstage()
	v.publishTo(v.b, otherName)
	v.stage()
	if _, found := v.cache(); !found {
		t.Fatal("no cache on the new node")
	}
	e, err := v.b.Journal.Load(string(v.req.ID))
	mustPass(t, "journal", err)
	if e.Hydration == nil {
		t.Fatal("no hydration is under way")
	}
	v.failVolume(otherName, "meta")
	v.awaitFailedOver()
	v.wantFailedOver()
	check(t, v.device(), data, 0)
	if p := v.b.Moves.(*pair); len(p.outcomes) != 1 || p.outcomes[0] != volume.MoveFailed {
		t.Errorf("the move ended as %v", p.outcomes)
	}
	v.unstage()
	mustPass(t, "repair", v.b.Repair(t.Context()))
	v.n = v.a
	v.remove()
}

// TestKernelMirrorDegraded: one SSD of a mirror, which the pool is or which the volume has asked for, fails
// below a writeback cache under a verified load. No access fails; the volume is flushed and written
// through until the mirror is whole.
func TestKernelMirrorDegraded(t *testing.T) {
	for name, redundancy := range redundancies {
		t.Run(name, func(t *testing.T) { mirrorDegraded(t, redundancy) })
	}
}

func mirrorDegraded(t *testing.T, redundancy v1alpha1.Redundancy) {
	m := newMachine(t)
	spec := onFrailSSD(m)
	spec.Devices, spec.Redundancy = append(spec.Devices, ssdTwo), redundancy
	n := m.node(t.TempDir(), spec)
	asks := cached(volume.ModeWriteback, 32*mib)
	asks.Mirror = redundancy == v1alpha1.RedundancyNone
	d := m.volume(n, "degraded", 128*mib, asks)
	d.req.Block = true
	d.stage()
	d.change()
	l := startLoad(t, d.device(), 64*mib)
	l.until(d, func(st devmapper.CacheStatus) bool { return st.Dirty > 0 })
	m.swapTable(frail, frailTable(m, "error"))
	l.moving()
	d.awaitMirror(func() bool { return n.pool.View().Degraded != "" })
	d.awaitMode(volume.ModeWritethrough)
	l.moving()
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if r := rec.Report; !r.Cached || r.Reason != v1alpha1.ReasonMirrorDegraded || rec.Volume.PossiblyDirty || rec.Applied.Reason != v1alpha1.ReasonMirrorDegraded {
		t.Errorf("the record says %+v, %+v, possibly dirty %t", r, rec.Applied, rec.Volume.PossiblyDirty)
	}
	if st, _ := d.cache(); st.Dirty > 0 {
		t.Errorf("%d blocks are dirty on half a mirror", st.Dirty)
	}
	mustPass(t, "failover", n.CacheFaults().Pass(t.Context()))

	m.swapTable(frail, frailTable(m, "linear %s 0"))
	d.awaitMirror(func() bool { v := n.pool.View(); return v.Ready && v.Degraded == "" })
	d.change()
	d.wantCache("whole again", volume.ModeWriteback, 32*mib)
	d.wantReport(v1alpha1.ReasonCacheActive)
	l.moving()
	l.end()
	l.check(d.device())
	// The copy that was taken in again has everything.
	m.swapTable(frail, frailTable(m, "linear %s 0"))
	d.unstage()
	d.stage()
	l.check(d.device())
	d.unstage()
	d.remove()
}

// awaitMirror lets the node look at its pool until something is so.
func (d *disk) awaitMirror(is func() bool) {
	t := d.m.t
	t.Helper()
	for range 600 {
		mustPass(t, "pool", d.n.pool.Reconcile(t.Context()))
		if is() {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Fatalf("the pool is %+v", d.n.pool.View())
}

// awaitMode lets the node change the volume until its cache has a mode.
func (d *disk) awaitMode(mode volume.CacheMode) {
	t := d.m.t
	t.Helper()
	for range 600 {
		_, err := d.n.Change(t.Context())
		mustPass(t, "change", err)
		e, err := d.n.Journal.Load(string(d.req.ID))
		mustPass(t, "journal", err)
		if st, _ := d.cache(); string(st.Mode()) == string(mode) && e.Mode == mode && !e.Marked {
			// Once more, so that the report is that of the end.
			_, err := d.n.Change(t.Context())
			mustPass(t, "change", err)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	st, _ := d.cache()
	t.Fatalf("the cache is %+v", st)
}

// TestKernelFailoverExported: a cache that is sent to a node which is prewarmed
// fails: the lease ends with it.
func TestKernelFailoverExported(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "failoverexp", cached(volume.ModeWritethrough, 64*mib))
	v.stage()
	data := v.warmUp(6)
	v.askFor(otherName)
	fence := v.req.Publication.Fence
	_, err := v.a.Lessor().Export(t.Context(), volume.LeaseRequest{
		Move: volume.MoveID{Name: "failoverexp-1-prewarm", UID: "one"}, Volume: v.req.ID, UID: fence.UID, Generation: fence.Generation,
		Purpose: volume.PurposePrewarm, Request: fmt.Sprintf("request-%d", v.gen), To: otherName, Method: volume.MethodStream,
	})
	mustPass(t, "export", err)
	v.failVolume(nodeName, "meta")
	v.awaitFailedOver()
	v.wantFailedOver()
	check(t, v.device(), data, 0)
	leases, err := v.a.Lessor().Leases(t.Context())
	mustPass(t, "leases", err)
	if len(leases) > 0 {
		t.Errorf("leases are left: %v", leases)
	}
	v.unstage()
	v.remove()
}
