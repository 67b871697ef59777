//go:build kernel

package kernel

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// dirtySample is one look at a cache.
type dirtySample struct {
	at    time.Time
	dirty int64
	mode  string
	// swapped is how many swaps of the table had ended before the look, and begun how many
	// had begun after it.
	swapped, begun int64
}

// countedSwaps counts what the keeper of dirty limits does.
type countedSwaps struct {
	dirtylimit.Host
	begun, ended atomic.Int64
}

func (c *countedSwaps) SwapTo(ctx context.Context, id volume.ID, f volume.Fence, to dirtylimit.Level) (bool, error) {
	c.begun.Add(1)
	defer c.ended.Add(1)
	return c.Host.SwapTo(ctx, id, f, to)
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
	swaps, limited := d.n.DirtyLimits().Host.(*countedSwaps)
	if !limited {
		swaps = &countedSwaps{}
	}
	w.done.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			began, swapped := time.Now(), swaps.ended.Load()
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
			w.samples = append(w.samples, dirtySample{time.Now(), int64(st.DirtyBytes()), string(st.Mode()) + "/" + string(st.Policy), swapped, swaps.begun.Load()})
		}
	})
	return w
}

// end stops the watch and returns the highest sample, how often each table was seen,
// and the fastest growth over at least a second, in bytes per second. Behind a
// writethrough table nothing may become dirty. On a busy machine two swaps may lie between
// two samples with the same table.
func (w *dirtyWatch) end() (most int64, tables map[string]int, growth int64) {
	t := w.d.m.t
	t.Helper()
	w.cancel()
	w.done.Wait()
	mustPass(t, "watch", w.err)
	tables = map[string]int{}
	from, stayed := 0, 0
	for i, s := range w.samples {
		most = max(most, s.dirty)
		tables[s.mode]++
		for from < i && s.at.Sub(w.samples[from+1].at) >= time.Second {
			from++
		}
		if before := w.samples[from]; s.at.Sub(before.at) >= time.Second {
			growth = max(growth, int64(float64(s.dirty-before.dirty)/s.at.Sub(before.at).Seconds()))
		}
		if i == 0 || s.begun != w.samples[i-1].swapped {
			continue
		}
		stayed++
		if s.mode == w.samples[i-1].mode && strings.HasPrefix(s.mode, "writethrough/") && s.dirty > w.samples[i-1].dirty {
			t.Errorf("behind a table %s the dirty bytes went from %d to %d", s.mode, w.samples[i-1].dirty, s.dirty)
		}
	}
	if stayed == 0 && len(w.samples) > 1 {
		t.Errorf("the table was swapped between any two of %d samples", len(w.samples))
	}
	return most, tables, growth
}

// openAbove is the longest series of samples above a limit behind a table that lets
// more become dirty. A sample takes about as long as a step of the limit, however busy
// the machine is.
func (w *dirtyWatch) openAbove(limit int64) (longest int) {
	run := 0
	for _, s := range w.samples {
		if run++; s.dirty <= limit || s.mode != "writeback/smq" {
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
	d.change()
}

// limitsOn keeps the dirty limits until the returned function is called.
func (n *node) limitsOn(t *testing.T) (off func()) {
	ctx, cancel := context.WithCancel(t.Context())
	keeper := n.DirtyLimits()
	keeper.Host = &countedSwaps{Host: keeper.Host}
	var done sync.WaitGroup
	done.Go(func() { keeper.Run(ctx) })
	return func() { cancel(); done.Wait() }
}

func (n *node) limitUse(id volume.ID) dirtylimit.Use {
	for _, b := range n.DirtyLimits().Uses() {
		if b.ID == id {
			return b
		}
	}
	return dirtylimit.Use{}
}

// swapSamples is how many samples a look and a swap may take.
const swapSamples = 10

// TestKernelDirtyLimit: saturating random writes do not make a volume dirtier than
// its limit, they go on, and nothing of them is lost; without the limit they do.
func TestKernelDirtyLimit(t *testing.T) {
	const limit = 64 * mib
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	spec := cached(volume.ModeWriteback, 480*mib)
	spec.ChunkBytes = 32 << 10
	d := m.volume(n, "limit", 512*mib, spec)
	d.req.Block = true
	d.stage()
	d.change()
	d.fillCache("fill")

	// The same load without a limit. The kernel cleans in pauses, of which a busy machine
	// makes some: here it does not.
	d.m.must("dmsetup", "message", "nf-limit", "0", "migration_threshold", "0")
	free, freeAbove := int64(0), 0
	for _, seconds := range []int{20, 40, 80} {
		watch := d.watchDirty()
		d.fio(seconds)
		most, _, _ := watch.end()
		free, freeAbove = max(free, most), max(freeAbove, watch.openAbove(limit))
		if freeAbove > 2*swapSamples {
			break
		}
	}
	d.ask(func(v *volume.Volume) { v.FlushRequest = "first" })
	d.change()

	d.ask(func(v *volume.Volume) { v.Spec.DirtyLimit.Max.Bytes = limit })
	off := n.limitsOn(t)
	l := startLoad(t, d.device(), 16*mib)
	watch := d.watchDirty()
	stopped := d.watchProgress(10 * time.Second) // far more than a busy machine takes
	d.fio(25)
	d.fioVerified()
	l.moving()
	stalls := stopped()
	most, tables, growth := watch.end()
	b := n.limitUse(d.req.ID)
	t.Logf("without a limit %d MiB dirty, with %d MiB at most %d MiB; growth up to %d MiB/s; tables %v; %+v", free/mib, int64(limit/mib), most/mib, growth/mib, tables, b)
	// What becomes dirty in a look and a swap may be above it
	// (docs/reference/storageclass.md).
	if n := watch.openAbove(limit); n > swapSamples {
		t.Errorf("%d samples in a row were above the limit before the limit was active, %d may be", n, swapSamples)
	}
	if freeAbove <= 2*swapSamples {
		t.Errorf("without a limit only %d samples in a row were above it: the load proves nothing", freeAbove)
	}
	if stalls > 0 {
		t.Errorf("for %d spans of ten seconds no write ended", stalls)
	}
	if b.Activations == 0 || b.Draining == 0 || tables["writeback/smq"] == 0 {
		t.Errorf("the limit did not become active and rest: %+v, %v", b, tables)
	}
	l.end()
	// The pause lets everything go back to what was asked for, and the mark stays.
	d.wantOpen(limit)
	off()
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if !rec.Volume.PossiblyDirty {
		t.Error("the limit took the mark away: it is no flush")
	}
	l.check(d.device())
	d.ask(mode(volume.ModeWritethrough))
	d.change()
	l.check(d.originDevice())
	sameDevices(t, d.device(), d.originDevice())
	d.unstage()
	d.remove()
}

// wantOpen waits until the volume is in writeback mode again, or still, and far below
// its limit, so that a load that rests gives the limit no reason.
func (d *disk) wantOpen(limit int64) {
	d.m.t.Helper()
	for range 1800 {
		if st, _ := d.cache(); isOpen(st) && st.CacheUsed > 0 && int64(st.DirtyBytes()) <= limit/2 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	st, _ := d.cache()
	d.m.t.Fatalf("the volume stays in mode %s, policy %s, with %d dirty blocks", st.Mode(), st.Policy, st.Dirty)
}

// isOpen reports whether a volume's live table is what is asked for.
func isOpen(st devmapper.CacheStatus) bool {
	return string(st.Mode()) == "writeback" && st.Policy == "smq"
}

// opened lets the keeper of limits open the volume, whose load rests, and ends it. What
// it had decided before the volume was clean may come into effect until its end.
func (d *disk) opened(limit int64) {
	d.m.t.Helper()
	for range 10 {
		off := d.n.limitsOn(d.m.t)
		d.wantOpen(limit)
		off()
		if st, _ := d.cache(); isOpen(st) {
			return
		}
	}
	d.m.t.Fatal("the limit is active without a load")
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
// long enough, again and again; without the limit it never is.
func TestKernelDirtyAge(t *testing.T) {
	const age = 5 * time.Second
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "age", 256*mib, cached(volume.ModeWriteback, 64*mib))
	d.req.Block = true
	d.stage()
	d.change()
	l := startLoad(t, d.device(), 32*mib)
	l.moving()
	d.becomesDirty()
	// On a busy machine the load may pause. The kernel cleans in pauses: here it does not.
	m.must("dmsetup", "message", "nf-age", "0", "migration_threshold", "0")
	var unlimited time.Duration
	for range 9 {
		watch := d.watchDirty()
		time.Sleep(2 * age)
		watch.end()
		if unlimited = max(unlimited, watch.longestDirty()); unlimited >= 2*age-time.Second {
			break
		}
	}
	if unlimited < 2*age-time.Second {
		t.Errorf("without a limit the volume was dirty for %v at most: the load proves nothing", unlimited)
	}
	d.ask(func(v *volume.Volume) { v.Spec.DirtyLimit.Age = age })
	off := n.limitsOn(t)
	time.Sleep(age + 4*time.Second) // what was dirty before is not limited by what is asked for now
	watch, before := d.watchDirty(), n.limitUse(d.req.ID).Activations
	// A flush may take much longer than the limit, where the machine is busy.
	for range 60 {
		time.Sleep(age)
		if n.limitUse(d.req.ID).Activations > before+2 {
			break
		}
	}
	watch.end()
	span := watch.longestDirty()
	b := n.limitUse(d.req.ID)
	t.Logf("dirty for %v at a time, slowest look %v; %+v", span, watch.slowest, b)
	// A flush takes its time, which the machine and the load decide; and the moment in
	// which a volume is clean may lie between two samples. To see that a flush is due, and
	// to swap the tables, takes some commands such as a look is.
	if allowed := 2*(age+watch.longest("writethrough/cleaner")) + 3*time.Second + 10*watch.slowest; span > allowed || span < age/2 {
		t.Errorf("the volume was dirty for %v, want %v to %v", span, age/2, allowed)
	}
	if cleaned := watch.becameClean(); cleaned < 1 || b.Activations < before+2 || b.Writethrough > 0 {
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

// TestKernelKillDirtyLimit kills the plugin while it swaps tables for the limit; its
// successor finds the volume as it is, and nothing is lost.
func TestKernelKillDirtyLimit(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	spec := cached(volume.ModeWriteback, 64*mib)
	spec.DirtyLimit.Max.Bytes = mib // any load reaches it
	d := m.volume(n, "killlimit", 256*mib, spec)
	d.req.Block = true
	d.stage()
	d.change()
	l := startLoad(t, d.device(), 32*mib)
	l.moving()
	d.becomesDirty()
	for _, point := range []string{"reload.loaded", "dirtylimit.swapped", "reload.loaded"} {
		if !d.killAt(point, order{DirtyLimits: true}) {
			t.Fatalf("the limit did not pass %s", point)
		}
		l.moving()
		mustPass(t, "repair", n.Repair(t.Context()))
		d.change() // which leaves the table to the limit
		// Beside a load its limit could become active just before the limit's keeper is off, and
		// nobody would open it.
		l.rest.Lock()
		d.opened(mib)
		l.rest.Unlock()
		l.fast.Store(20 * loadBurst)
		d.becomesDirty()
	}
	if !d.killAt("dirtylimit.swapped", order{DirtyLimits: true}) {
		t.Fatal("the limit did not pass dirtylimit.swapped")
	}
	if st, _ := d.cache(); string(st.Mode()) != "writethrough" {
		t.Errorf("killed behind its swap, the limit left mode %s", st.Mode())
	}
	// The limit goes away with nobody to end it but the change.
	d.ask(func(v *volume.Volume) { v.Spec.DirtyLimit = volume.DirtyLimit{} })
	d.change()
	if st, _ := d.cache(); string(st.Mode()) != "writeback" {
		t.Errorf("without a limit the volume stays in mode %s", st.Mode())
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
