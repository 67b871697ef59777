//go:build kernel

package kernel

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// dirtySample is one look at a cache.
type dirtySample struct {
	at    time.Time
	dirty int64
	mode  string
}

// dirtyWatch samples the dirty bytes of a volume's cache every 100 ms.
type dirtyWatch struct {
	d       *disk
	cancel  context.CancelFunc
	done    sync.WaitGroup
	samples []dirtySample
	// slowest is how long the slowest look took.
	slowest time.Duration
	err     error
}

func (d *disk) watchDirty() *dirtyWatch {
	ctx, cancel := context.WithCancel(d.m.t.Context())
	w := &dirtyWatch{d: d, cancel: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			began := time.Now()
			all, err := d.n.DM.StatusAll(context.WithoutCancel(ctx))
			if err != nil {
				w.err = err
				return
			}
			w.slowest = max(w.slowest, time.Since(began))
			st := all["nf-"+string(d.req.ID)]
			if st.CacheUsed == 0 {
				continue // the map is not read yet, the table being swapped
			}
			w.samples = append(w.samples, dirtySample{time.Now(), int64(st.DirtyBytes()), string(st.Mode()) + "/" + string(st.Policy)})
		}
	})
	return w
}

// end stops the watch and returns the highest sample, how often each table was seen,
// and the fastest growth over at least a second, in bytes per second. Behind a
// writethrough table nothing may become dirty.
func (w *dirtyWatch) end() (most int64, tables map[string]int, growth int64) {
	t := w.d.m.t
	t.Helper()
	w.cancel()
	w.done.Wait()
	mustPass(t, "watch", w.err)
	tables = map[string]int{}
	from := 0
	for i, s := range w.samples {
		most = max(most, s.dirty)
		tables[s.mode]++
		for from < i && s.at.Sub(w.samples[from+1].at) >= time.Second {
			from++
		}
		if before := w.samples[from]; s.at.Sub(before.at) >= time.Second {
			growth = max(growth, int64(float64(s.dirty-before.dirty)/s.at.Sub(before.at).Seconds()))
		}
		if i > 0 && s.mode == w.samples[i-1].mode && strings.HasPrefix(s.mode, "writethrough/") && s.dirty > w.samples[i-1].dirty {
			t.Errorf("behind a table %s the dirty bytes went from %d to %d", s.mode, w.samples[i-1].dirty, s.dirty)
		}
	}
	return most, tables, growth
}

// openAbove is the longest series of samples above a bound behind a table that lets
// more become dirty. A sample takes about as long as a step of the brake, however busy
// the machine is.
func (w *dirtyWatch) openAbove(bound int64) (longest int) {
	run := 0
	for _, s := range w.samples {
		if run++; s.dirty <= bound || s.mode != "writeback/smq" {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

// fio runs random writes without a pause.
func (d *disk) fio(seconds int) {
	d.m.t.Helper()
	d.m.must("fio", "--name=load", "--filename="+d.device(), "--rw=randwrite", "--bs=4k", "--offset=32m", "--size=416m", "--direct=1", "--ioengine=libaio", "--iodepth=16",
		"--time_based", fmt.Sprintf("--runtime=%d", seconds), "--randrepeat=0", "--minimal")
}

// fioVerified writes a part of it, and compares all that it wrote.
func (d *disk) fioVerified() {
	d.m.t.Helper()
	d.m.must("fio", "--name=verified", "--filename="+d.device(), "--rw=randwrite", "--bs=4k", "--offset=32m", "--size=16m", "--direct=1", "--ioengine=libaio", "--iodepth=16",
		"--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_state_save=0", "--minimal")
}

// written is how many write requests a device has completed.
func written(devno string) (n int64, err error) {
	w, err := blockdev.WrittenTo("/sys", devno)
	return int64(w.Requests), err
}

// fillCache writes whole chunks, which a writeback cache with free room takes in at
// once, and flushes them.
func (d *disk) fillCache(request string) {
	d.m.t.Helper()
	for range 8 {
		d.m.must("fio", "--name=fill", "--filename="+d.device(), "--rw=write", "--bs=128k", "--offset=32m", "--size=416m", "--direct=1", "--ioengine=libaio", "--iodepth=4", "--minimal")
		if st, _ := d.cache(); st.CacheUsed*st.ChunkSectors*512 > 350<<20 {
			break
		}
	}
	d.ask(func(v *volume.Volume) { v.FlushRequest = request })
	d.tune()
}

// brakesOn keeps the dirty limits until the returned function is called.
func (n *node) brakesOn(t *testing.T) (off func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { n.RunBrakes(ctx) })
	return func() { cancel(); done.Wait() }
}

func (n *node) braking(id volume.ID) attach.Braking {
	for _, b := range n.Brakings() {
		if b.ID == id {
			return b
		}
	}
	return attach.Braking{}
}

// brakeSamples is how many samples a look and a swap may take.
const brakeSamples = 10

// TestKernelDirtyBound: saturating random writes do not make a volume dirtier than
// its bound, they go on, and nothing of them is lost; without the bound they do.
func TestKernelDirtyBound(t *testing.T) {
	const bound = 64 * mib
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	spec := cached(volume.ModeWriteback, 480*mib)
	spec.ChunkBytes = 32 << 10
	d := m.volume(n, "bound", 512*mib, spec)
	d.req.Block = true
	d.stage()
	d.tune()
	d.fillCache("fill")

	// The same load without a bound. The kernel cleans in pauses, of which a busy machine
	// makes some: here it does not.
	d.m.must("dmsetup", "message", "nf-bound", "0", "migration_threshold", "0")
	free, freeAbove := int64(0), 0
	for _, seconds := range []int{20, 40, 80} {
		watch := d.watchDirty()
		d.fio(seconds)
		most, _, _ := watch.end()
		free, freeAbove = max(free, most), max(freeAbove, watch.openAbove(bound))
		if freeAbove > 2*brakeSamples {
			break
		}
	}
	d.ask(func(v *volume.Volume) { v.FlushRequest = "first" })
	d.tune()

	d.ask(func(v *volume.Volume) { v.Spec.DirtyBound.Max.Bytes = bound })
	off := n.brakesOn(t)
	l := startLoad(t, d.device(), 16*mib)
	watch := d.watchDirty()
	stopped := d.watchProgress(10 * time.Second) // far more than a busy machine takes
	d.fio(25)
	d.fioVerified()
	l.moving()
	stalls := stopped()
	most, tables, growth := watch.end()
	b := n.braking(d.req.ID)
	t.Logf("without a bound %d MiB dirty, with %d MiB at most %d MiB; growth up to %d MiB/s; tables %v; %+v", free/mib, int64(bound/mib), most/mib, growth/mib, tables, b)
	// What becomes dirty in a look and a swap may be above it
	// (docs/reference/storageclass.md).
	if n := watch.openAbove(bound); n > brakeSamples {
		t.Errorf("%d samples in a row were above the bound before the brake was on, %d may be", n, brakeSamples)
	}
	if freeAbove <= 2*brakeSamples {
		t.Errorf("without a bound only %d samples in a row were above it: the load proves nothing", freeAbove)
	}
	if stalls > 0 {
		t.Errorf("for %d spans of ten seconds no write ended", stalls)
	}
	if b.Brakes == 0 || b.Drained == 0 || tables["writeback/smq"] == 0 {
		t.Errorf("the brake did not work and rest: %+v, %v", b, tables)
	}
	l.end()
	// The pause lets everything go back to what was asked for, and the mark stays.
	d.wantOpen(bound)
	off()
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if !rec.Volume.PossiblyDirty {
		t.Error("the brake took the mark away: it is no flush")
	}
	l.check(d.device())
	d.ask(mode(volume.ModeWritethrough))
	d.tune()
	l.check(d.originDevice())
	sameDevices(t, d.device(), d.originDevice())
	d.unstage()
	d.remove()
}

// wantOpen waits until the volume is in writeback mode again, or still, and far below
// its bound, so that a load that rests gives no reason to brake.
func (d *disk) wantOpen(bound int64) {
	d.m.t.Helper()
	for range 1800 {
		if st, _ := d.cache(); isOpen(st) && st.CacheUsed > 0 && int64(st.DirtyBytes()) <= bound/2 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	st, _ := d.cache()
	d.m.t.Fatalf("the volume stays in mode %s, policy %s, with %d dirty blocks", st.Mode(), st.Policy, st.Dirty)
}

// isOpen tells whether a volume's live table is what is asked for.
func isOpen(st devmapper.CacheStatus) bool {
	return string(st.Mode()) == "writeback" && st.Policy == "smq"
}

// opened lets the keeper of bounds open the volume, whose load rests, and ends it. What
// it had decided before the volume was clean may come into effect until its end.
func (d *disk) opened(bound int64) {
	d.m.t.Helper()
	for range 10 {
		off := d.n.brakesOn(d.m.t)
		d.wantOpen(bound)
		off()
		if st, _ := d.cache(); isOpen(st) {
			return
		}
	}
	d.m.t.Fatal("the volume is braked without a load")
}

// watchProgress counts spans in which the volume completed no write.
func (d *disk) watchProgress(span time.Duration) (stop func() int) {
	d.m.t.Helper()
	infos, err := d.n.DM.Info(d.m.t.Context(), "nf-"+string(d.req.ID))
	mustPass(d.m.t, "info", err)
	devno := infos["nf-"+string(d.req.ID)].DevNo()
	before, err := written(devno)
	mustPass(d.m.t, "stat", err)
	ctx, cancel := context.WithCancel(d.m.t.Context())
	var done sync.WaitGroup
	stalls := 0
	done.Go(func() {
		tick := time.NewTicker(span)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now, err := written(devno)
			if err != nil || now == before {
				stalls++
			}
			before = now
		}
	})
	return func() int { cancel(); done.Wait(); return stalls }
}

// TestKernelDirtyAge: a volume that never rests is flushed when it has been dirty for
// long enough, again and again; without the bound it never is.
func TestKernelDirtyAge(t *testing.T) {
	const age = 5 * time.Second
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "age", 256*mib, cached(volume.ModeWriteback, 64*mib))
	d.req.Block = true
	d.stage()
	d.tune()
	l := startLoad(t, d.device(), 32*mib)
	l.moving()
	d.becomesDirty()
	// On a busy machine the load may pause. The kernel cleans in pauses: here it does not.
	m.must("dmsetup", "message", "nf-age", "0", "migration_threshold", "0")
	var unbounded time.Duration
	for range 9 {
		watch := d.watchDirty()
		time.Sleep(2 * age)
		watch.end()
		if unbounded = max(unbounded, watch.longestDirty()); unbounded >= 2*age-time.Second {
			break
		}
	}
	if unbounded < 2*age-time.Second {
		t.Errorf("without a bound the volume was dirty for %v at most: the load proves nothing", unbounded)
	}
	d.ask(func(v *volume.Volume) { v.Spec.DirtyBound.Age = age })
	off := n.brakesOn(t)
	time.Sleep(age + 4*time.Second) // what was dirty before is not bounded by what is asked for now
	watch, before := d.watchDirty(), n.braking(d.req.ID).Brakes
	// A flush may take much longer than the bound, where the machine is busy.
	for range 60 {
		time.Sleep(age)
		if n.braking(d.req.ID).Brakes > before+2 {
			break
		}
	}
	watch.end()
	span := watch.longestDirty()
	b := n.braking(d.req.ID)
	t.Logf("dirty for %v at a time, slowest look %v; %+v", span, watch.slowest, b)
	// A flush takes its time, which the machine and the load decide; and the moment in
	// which a volume is clean may lie between two samples. To see that a flush is due, and
	// to swap the tables, takes some commands such as a look is.
	if allowed := 2*(age+watch.longest("writethrough/cleaner")) + 3*time.Second + 10*watch.slowest; span > allowed || span < age/2 {
		t.Errorf("the volume was dirty for %v, want %v to %v", span, age/2, allowed)
	}
	if cleaned := watch.becameClean(); cleaned < 1 || b.Brakes < before+2 || b.Held > 0 {
		t.Errorf("%+v, clean %d times, want more than one flush and no hold", b, cleaned)
	}
	off()
	l.end()
	l.check(d.device())
	d.unstage()
	d.stage()
	l.check(d.device())
	d.unstage()
	d.remove()
}

// becomesDirty waits until something is.
func (d *disk) becomesDirty() {
	d.m.t.Helper()
	for range 600 {
		if st, _ := d.cache(); st.Dirty > 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	st, _ := d.cache()
	d.m.t.Fatalf("no block became dirty in mode %s, policy %s, with %d chunks cached", st.Mode(), st.Policy, st.CacheUsed)
}

// longestDirty is the longest time for which no sample was clean.
func (w *dirtyWatch) longestDirty() time.Duration {
	return w.longestWith(func(s dirtySample) bool { return s.dirty > 0 })
}

// longest is the longest time for which every sample had a table.
func (w *dirtyWatch) longest(table string) time.Duration {
	return w.longestWith(func(s dirtySample) bool { return s.mode == table })
}

func (w *dirtyWatch) longestWith(has func(dirtySample) bool) time.Duration {
	var longest time.Duration
	var since time.Time
	for _, s := range w.samples {
		switch {
		case !has(s):
			since = time.Time{}
		case since.IsZero():
			since = s.at
		default:
			longest = max(longest, s.at.Sub(since))
		}
	}
	return longest
}

// TestKernelKillBrake kills the plugin while it swaps tables for the bound; its
// successor finds the volume as it is, and nothing is lost.
func TestKernelKillBrake(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	spec := cached(volume.ModeWriteback, 64*mib)
	spec.DirtyBound.Max.Bytes = mib // any load reaches it
	d := m.volume(n, "killbrake", 256*mib, spec)
	d.req.Block = true
	d.stage()
	d.tune()
	l := startLoad(t, d.device(), 32*mib)
	l.moving()
	d.becomesDirty()
	for _, point := range []string{"reload.loaded", "brake.swapped", "reload.loaded"} {
		if !d.killAt(point, order{Brake: true}) {
			t.Fatalf("the brake did not pass %s", point)
		}
		l.moving()
		mustPass(t, "repair", n.Repair(t.Context()))
		d.tune() // which leaves the table to the bound
		// Beside a load it could be braked just before the bound's keeper is off, and
		// nobody would open it.
		l.rest.Lock()
		d.opened(mib)
		l.rest.Unlock()
		l.fast.Store(20 * loadBurst)
		d.becomesDirty()
	}
	if !d.killAt("brake.swapped", order{Brake: true}) {
		t.Fatal("the brake did not pass brake.swapped")
	}
	if st, _ := d.cache(); string(st.Mode()) != "writethrough" {
		t.Errorf("killed behind its swap, the brake left mode %s", st.Mode())
	}
	// The bound goes away with nobody to release the brake but the tune.
	d.ask(func(v *volume.Volume) { v.Spec.DirtyBound = volume.DirtyBound{} })
	d.tune()
	if st, _ := d.cache(); string(st.Mode()) != "writeback" {
		t.Errorf("without a bound the volume stays in mode %s", st.Mode())
	}
	l.end()
	l.check(d.device())
	d.unstage()
	d.stage()
	l.check(d.device())
	d.unstage()
	d.remove()
}

// becameClean counts the moments at which the last dirty block went.
func (w *dirtyWatch) becameClean() (n int) {
	for i, s := range w.samples {
		if i > 0 && s.dirty == 0 && w.samples[i-1].dirty > 0 {
			n++
		}
	}
	return n
}
