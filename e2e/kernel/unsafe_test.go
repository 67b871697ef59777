//go:build kernel

package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/volume"
)

func unsafeMode(v *volume.Volume) {
	v.Spec.SetMode(volume.ModeWritebackUnsafe)
	v.Spec.AcceptNodeLoss = true
}

// drops reports whether the kernel ends flushes at the volume's top device.
func (d *disk) drops() bool {
	d.m.t.Helper()
	passes, err := blockdev.PassesFlushes(d.devno())
	mustPass(d.m.t, "flushes", err)
	return !passes
}

func (d *disk) devno() string {
	d.m.t.Helper()
	no, err := blockdev.DevNo(d.device())
	mustPass(d.m.t, "number", err)
	return no
}

// flushed is how many flushes SSD and storage server get from a pod that writes and flushes n times.
func (d *disk) flushed(n int) (ssd, storage int64) {
	t := d.m.t
	t.Helper()
	ssd, storage = flushes(t, ssdOne), flushes(t, storageDisk)
	f := openDirect(t, d.device())
	buf := aligned(4096)
	for i := range n {
		fill(buf, int64(i), 1)
		_, err := f.WriteAt(buf, int64(i)*4096)
		mustPass(t, "write", err)
		mustPass(t, "flush", f.Sync())
	}
	mustPass(t, "close", f.Close())
	return flushes(t, ssdOne) - ssd, flushes(t, storageDisk) - storage
}

// TestKernelUnsafe: in mode writeback-unsafe neither the SSD nor the storage server is told of a flush.
// What has to be durable is made so all the same, and the mode is left as it is entered.
func TestKernelUnsafe(t *testing.T) {
	const n = 60
	m := newMachine(t)
	node := m.node(t.TempDir(), onOneSSD())
	d := m.volume(node, "unsafe", 128*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	d.writeDirty(d.device(), pattern(1, 4*mib)) // what is written below is cached
	wantPassed := func(what string) {
		t.Helper()
		ssd, storage := d.flushed(n)
		t.Logf("%s: %d flushes: the SSD got %d, the storage server %d", what, n, ssd, storage)
		if d.drops() || ssd < n || storage < n {
			t.Errorf("%s: of %d flushes the SSD got %d and the storage server %d", what, n, ssd, storage)
		}
	}
	wantDropped := func(what string) {
		t.Helper()
		ssd, storage := d.flushed(n)
		t.Logf("%s: %d flushes: the SSD got %d, the storage server %d", what, n, ssd, storage)
		if !d.drops() || ssd > n/2 || storage > n/2 {
			t.Errorf("%s: dropped %t; of %d flushes the SSD got %d and the storage server %d", what, d.drops(), n, ssd, storage)
		}
	}
	wantPassed("writeback")
	d.ask(unsafeMode)
	d.change()
	d.wantReport(v1alpha1.ReasonFlushesDropped)
	wantDropped("unsafe")
	d.reopen() // the plugin ends, and another one begins
	mustPass(t, "repair", d.n.Repair(t.Context()))
	d.change()
	wantDropped("with another plugin")
	m.must("dmsetup", "suspend", "nf-unsafe")
	m.must("dmsetup", "resume", "nf-unsafe")
	wantDropped("suspended in between")
	d.ask(cacheBytes(48 * mib))
	d.change()
	wantDropped("with another table")
	server := flushes(t, storageDisk)
	d.ask(func(v *volume.Volume) { v.FlushRequest = "now" })
	d.change()
	if st, _ := d.cache(); st.Dirty != 0 || flushes(t, storageDisk) == server {
		t.Errorf("a flush that was asked for leaves %d blocks dirty, and the storage server was told to flush: %t", st.Dirty, flushes(t, storageDisk) != server)
	}
	sameDevices(t, d.device(), d.originDevice())
	wantDropped("after a flush that was asked for")
	ssd := flushes(t, ssdOne)
	d.ask(mode(volume.ModeWriteback))
	d.change()
	if flushes(t, ssdOne) == ssd {
		t.Error("the SSD was not flushed before flushes counted again")
	}
	d.wantReport(v1alpha1.ReasonCacheActive)
	wantPassed("writeback again")
	mustPass(t, "drop flushes", blockdev.SetFlushes(d.devno(), false)) // somebody else does
	d.change()
	wantPassed("after somebody had them dropped")
	d.ask(unsafeMode)
	d.change()
	d.ask(mode(volume.ModeWritethrough))
	d.change()
	wantPassed("writethrough")
	d.ask(unsafeMode)
	d.change()
	wantDropped("unsafe at the end")
	want := content(t, d.device(), 8*mib)
	ssd, server = flushes(t, ssdOne), flushes(t, storageDisk)
	d.unstage()
	if flushes(t, ssdOne) == ssd || flushes(t, storageDisk) == server {
		t.Error("a cache was kept, and its volume flushed, without a flush of SSD and storage server")
	}
	d.wantOrigin("unstaged", want)
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if len(rec.Torn) > 0 || rec.Volume.PossiblyDirty {
		t.Errorf("nothing stopped, and the record says %q, possibly dirty %t", rec.Torn, rec.Volume.PossiblyDirty)
	}
	d.remove()
}

// stopUnsafe has the volume's flushes dropped, and its owner and the write cache of the SSD stop, with
// writes that the pod has flushed.
func (w *watched) stopUnsafe(l checker.Load) {
	w.t.Helper()
	w.ask(unsafeMode)
	w.change()
	w.h.SetMode(checker.WritebackUnsafe)
	s := w.owner()
	s.forgetful() // its write cache takes everything from here on, and nobody has it flushed
	w.write(l, 0)
	mustPass(w.t, "flush", w.s.Flush())
	w.s.Dying()
	s.cut()
	w.close()
	s.vanish()
	w.restart()
}

// stopUnsafe: the node stops while the volume's flushes are dropped, which then are passed on again.
func (c *campaign) stopUnsafe() {
	c.watched.stopUnsafe(c.load(c.r))
	c.repairSometimes()
	c.again(checker.LossNode)
	c.ask(mode(c.mode))
	c.change()
	if c.mode == volume.ModeWritethrough {
		c.h.Drained()
	}
	c.h.SetMode(checker.Mode(c.mode))
	c.must(checker.LossNothing)
}

// TestKernelUnsafeStop: what a loss of power takes of a volume whose flushes were dropped is what its
// contract allows, is said, and is not taken once the mode was left. An SSD that forgets what was
// written before a flush is what tells the two modes apart.
func TestKernelUnsafeStop(t *testing.T) {
	m := newMachine(t)
	w := newWatched(t, m, "unsafe-stop", volume.ModeWriteback)
	w.use()
	l := w.load(rand.New(rand.NewPCG(1, 2)))
	w.dirty(l)
	w.stopUnsafe(l)
	mustPass(t, "repair", w.n.Repair(t.Context()))
	w.use()
	r := w.judge(checker.LossNode)
	mustPass(t, "judge", r.Err())
	t.Logf("after a loss of power: %s", r)
	if r.Verdicts[checker.LostByContract] == 0 {
		t.Error("nothing was lost: this test proves nothing")
	}
	rec, err := w.rec.load(w.req.ID)
	mustPass(t, "record", err)
	if len(rec.Torn) == 0 {
		t.Error("nobody was told that writes may be missing")
	}
	w.ask(mode(volume.ModeWriteback))
	w.change()
	w.h.SetMode(checker.Writeback)
	w.dirty(l)
	w.stop(true, l)
	w.use()
	r = w.judge(checker.LossNode)
	mustPass(t, "judge", r.Err())
	w.leave()
	w.end()
}
