//go:build kernel

package kernel

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/volume"
)

// change lets the node do what the record asks, until it says that it has; of a volume that is held,
// the flush.
func (n *node) change(ctx context.Context, id volume.ID) error {
	rec := n.rec.(fileRecords)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		if _, err := n.Change(ctx); err != nil {
			return err
		}
		now, err := rec.load(id)
		if err != nil {
			return err
		}
		if now.Volume.Hold != nil && !now.Volume.FlushPending() {
			return nil // what it asks for comes when it is not held any more
		}
		if a := now.Applied; a.State == volume.AppliedDone && a.SpecGeneration == now.Volume.SpecGeneration && !now.Volume.FlushPending() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not applied: %+v", now.Applied)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ask changes what the record asks for.
func (d *disk) ask(change func(*volume.Volume)) {
	d.m.t.Helper()
	mustPass(d.m.t, "ask", d.rec.update(d.req.ID, func(r *fileRecord) error {
		change(&r.Volume)
		r.Volume.SpecGeneration++
		return nil
	}))
}

func (d *disk) change() {
	d.m.t.Helper()
	mustPass(d.m.t, "change", d.n.change(d.m.t.Context(), d.req.ID))
}

func mode(m volume.CacheMode) func(*volume.Volume) {
	return func(v *volume.Volume) { v.Spec.SetMode(string(m)) }
}

func cacheBytes(n int64) func(*volume.Volume) {
	return func(v *volume.Volume) { v.Spec.Cache = volume.Size{Bytes: n} }
}

func both(a, b func(*volume.Volume)) func(*volume.Volume) {
	return func(v *volume.Volume) { a(v); b(v) }
}

// load writes and verifies random blocks of a device until it is stopped. Each
// block holds its number and a version, so that a stale or foreign block shows.
type load struct {
	t        *testing.T
	path     string
	blocks   int64
	versions []uint64
	stop     atomic.Bool
	done     chan error
	rounds   atomic.Int64
	// fast is how many accesses are still to be made without a pause. A guest has
	// one CPU, which the commands need too.
	fast atomic.Int64
	// longest is how long the slowest access took, in nanoseconds.
	longest atomic.Int64
	// tolerant lets accesses fail, which failures counts. What a block holds after a
	// write that failed is unsure: the version before, or that one.
	tolerant atomic.Bool
	failures atomic.Int64
	unsure   map[int64]bool
	// rest is locked while the load is to make no access.
	rest sync.Mutex
}

const loadBlock = 4096

// loadPause is between two accesses most of the time, and loadBurst the number of
// those that are made without it before and after each change.
const (
	loadPause = 5 * time.Millisecond
	loadBurst = 400
)

func fill(buf []byte, block int64, version uint64) {
	r := rand.New(rand.NewPCG(uint64(block), version))
	for i := 0; i+8 <= len(buf); i += 8 {
		v := r.Uint64()
		for j := range 8 {
			buf[i+j] = byte(v >> (8 * j))
		}
	}
}

// startLoad begins on a device whose first bytes are nobody else's.
func startLoad(t *testing.T, path string, size int64) *load {
	l := &load{t: t, path: path, blocks: size / loadBlock, done: make(chan error, 1), unsure: map[int64]bool{}}
	l.versions = make([]uint64, l.blocks)
	go func() { l.done <- l.run() }()
	return l
}

func (l *load) run() error {
	f, err := os.OpenFile(l.path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	buf, want := aligned(loadBlock), aligned(loadBlock)
	r := rand.New(rand.NewPCG(1, 2))
	for n := 1; !l.stop.Load(); n++ {
		// Most accesses go to a few blocks, so that there is something to cache.
		block := r.Int64N(l.blocks / 8)
		if n%10 == 0 {
			block = r.Int64N(l.blocks)
		}
		if err := l.access(f, block, n%3 != 0, buf, want); err != nil {
			return err
		}
		l.rounds.Add(1)
		if l.fast.Add(-1) < 0 {
			time.Sleep(loadPause)
		}
	}
	return f.Sync()
}

// access writes a block, or verifies it.
func (l *load) access(f *os.File, block int64, write bool, buf, want []byte) (err error) {
	l.rest.Lock()
	defer l.rest.Unlock()
	began := time.Now()
	if write {
		err = l.write(f, block, buf)
	} else {
		err = l.verify(f, block, buf, want)
	}
	l.longest.Store(max(l.longest.Load(), int64(time.Since(began))))
	return err
}

func (l *load) write(f *os.File, block int64, buf []byte) error {
	fill(buf, block, l.versions[block]+1)
	if _, err := f.WriteAt(buf, block*loadBlock); err != nil {
		l.unsure[block] = true
		return l.failed(fmt.Errorf("write block %d: %w", block, err))
	}
	l.versions[block]++
	delete(l.unsure, block)
	return nil
}

// failed judges an access that has failed.
func (l *load) failed(err error) error {
	if !l.tolerant.Load() {
		return err
	}
	l.failures.Add(1)
	return nil
}

func (l *load) verify(f *os.File, block int64, buf, want []byte) error {
	version := l.versions[block]
	if version == 0 {
		return nil
	}
	if _, err := f.ReadAt(buf, block*loadBlock); err != nil {
		return l.failed(fmt.Errorf("read block %d: %w", block, err))
	}
	fill(want, block, version)
	if bytes.Equal(buf, want) {
		return nil
	}
	if fill(want, block, version+1); l.unsure[block] && bytes.Equal(buf, want) {
		return nil
	}
	return fmt.Errorf("block %d of %s is not version %d", block, l.path, version)
}

// end stops the load; every access must have succeeded.
func (l *load) end() {
	l.t.Helper()
	l.stop.Store(true)
	mustPass(l.t, "load", <-l.done)
	if l.rounds.Load() == 0 {
		l.t.Error("the load did nothing")
	}
}

// check reads everything that was written, from any device that should have it.
func (l *load) check(path string) {
	l.t.Helper()
	f := openDirect(l.t, path)
	defer func() { _ = f.Close() }()
	buf, want := aligned(loadBlock), aligned(loadBlock)
	for block := range l.blocks {
		if err := l.verify(f, block, buf, want); err != nil {
			l.t.Fatalf("%s: %v", path, err)
		}
	}
}

// until lets the load go on, for a while, until the cache under it is as wanted.
func (l *load) until(d *disk, is func(devmapper.CacheStatus) bool) {
	l.t.Helper()
	for range 100 {
		l.moving()
		if st, _ := d.cache(); is(st) {
			return
		}
	}
}

// moving waits until the load has gone on, and made blocks hot.
func (l *load) moving() {
	l.t.Helper()
	l.fast.Store(loadBurst)
	want := l.rounds.Load() + loadBurst
	for range 3600 {
		select {
		case err := <-l.done:
			l.t.Fatalf("the load ended: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		if l.rounds.Load() >= want {
			return
		}
	}
	l.t.Fatal("the load stands still")
}

// originDevice is the node of the device over the volume's paths.
func (d *disk) originDevice() string {
	d.m.t.Helper()
	name := layout.Device(d.req.ID, layout.Origin)
	infos, err := d.n.DM.Info(d.m.t.Context(), name)
	mustPass(d.m.t, "origin", err)
	return infos[name].DevPath()
}

// TestKernelChange changes mode and size of an attached volume under a verified
// load: no access fails, no block is lost or stale, and what is asked for is so.
func TestKernelChange(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	const none, wt, wb = volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback
	d := m.volume(n, "change", 128*mib, cached(wt, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	l := startLoad(t, d.device(), 64*mib)
	l.until(d, func(st devmapper.CacheStatus) bool { return st.CacheUsed > 20 })
	steps := []struct {
		name   string
		change func(*volume.Volume)
		mode   volume.CacheMode
		bytes  int64
		warm   bool
	}{
		{"to writeback", mode(wb), wb, 32 * mib, true},
		{"larger, writeback", cacheBytes(64 * mib), wb, 64 * mib, true},
		{"flush", func(v *volume.Volume) { v.FlushRequest = "one" }, wb, 64 * mib, true},
		{"to writethrough", mode(wt), wt, 64 * mib, true},
		{"larger, writethrough", cacheBytes(96 * mib), wt, 96 * mib, true},
		{"drop", mode(none), none, 0, false},
		{"cache again", mode(wt), wt, 96 * mib, false},
		{"smaller", cacheBytes(24 * mib), wt, 24 * mib, false},
		{"writeback from nothing", both(mode(none), cacheBytes(32*mib)), none, 0, false},
		{"and back", mode(wb), wb, 32 * mib, false},
		{"smaller, writeback", cacheBytes(16 * mib), wb, 16 * mib, false},
		{"drop from writeback", mode(none), none, 0, false},
		{"writeback for the end", mode(wb), wb, 16 * mib, false},
	}
	for _, s := range steps {
		if t.Failed() {
			break
		}
		l.moving()
		before, _ := d.cache()
		d.ask(s.change)
		d.change()
		l.moving()
		d.wantCache(s.name, s.mode, s.bytes)
		if after, _ := d.cache(); s.warm && (before.CacheUsed == 0 || after.CacheUsed < before.CacheUsed*9/10) {
			t.Errorf("%s: %d blocks were in use, now %d: the cache did not stay warm", s.name, before.CacheUsed, after.CacheUsed)
		}
	}
	l.end()
	l.check(d.device())
	d.ask(mode(wt))
	d.change()
	l.check(d.originDevice()) // without the cache: nothing is dirty (I2)
	if rec, err := d.rec.load(d.req.ID); err != nil || rec.Volume.PossiblyDirty {
		t.Errorf("the record says dirty %t after writethrough was loaded (%v)", rec.Volume.PossiblyDirty, err)
	}
	d.unstage()
	d.stage()
	l.check(d.device())
	d.unstage()
	d.remove()
}

// wantCache compares what the kernel has with what was asked for.
func (d *disk) wantCache(name string, mode volume.CacheMode, bytes int64) {
	t := d.m.t
	t.Helper()
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	st, found := d.cache()
	if found != (mode != volume.ModeNone) {
		t.Errorf("%s: cached %t", name, found)
	}
	if rec.Volume.PossiblyDirty != (mode == volume.ModeWriteback) {
		t.Errorf("%s: the record says possibly dirty %t", name, rec.Volume.PossiblyDirty)
	}
	if !found {
		return
	}
	if string(st.Mode()) != string(mode) || st.Policy != devmapper.PolicySMQ {
		t.Errorf("%s: mode %s, policy %s", name, st.Mode(), st.Policy)
	}
	if got := int64(st.CacheTotal*st.ChunkSectors) * devmapper.SectorSize; got != bytes {
		t.Errorf("%s: %d bytes of cache, want %d", name, got, bytes)
	}
	if mode == volume.ModeWritethrough && st.Dirty > 0 {
		t.Errorf("%s: %d blocks are dirty", name, st.Dirty)
	}
}

// TestKernelChangeImpossible: what cannot be had is said, and nothing else changes.
func TestKernelChangeImpossible(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "toolarge", 128*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	// The record says Detached in between, and Change does not look while it does.
	d.unstage()
	d.stage()
	d.change()
	other := m.volume(n, "other", 950*mib, cached(volume.ModeWritethrough, 900*mib))
	other.req.Block = true
	other.stage()
	d.ask(cacheBytes(100 * mib))
	if _, err := n.Change(t.Context()); err != nil {
		t.Error(err)
	}
	rec, err := d.rec.load(d.req.ID)
	mustPass(t, "record", err)
	if rec.Applied.State != volume.AppliedPending || rec.Applied.Reason != "PoolFull" {
		t.Errorf("a pool without room: %+v", rec.Applied)
	}
	d.wantCache("full", volume.ModeWritethrough, 32*mib)
	other.unstage() // a retained cache gives way
	d.ask(cacheBytes(104 * mib))
	d.change()
	d.wantCache("room", volume.ModeWritethrough, 104*mib)
	d.unstage()
	d.remove()
	other.remove()
}

// change is a change of an attached volume and the steps that it passes.
type change struct {
	from, to func(*volume.Volume)
	// points are the steps that it passes, phases those that stand for the ones beside them.
	points, phases []string
}

func changes() []change {
	const none, wt, wb = volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback
	small := cacheBytes(32 * mib)
	return []change{
		{both(mode(none), small), mode(wb), []string{
			"change.data-removed", "change.journaled", "change.allocated", "reload.loaded", "change.cached", "change.recorded", "change.tagged", "change.writeback",
		}, []string{"change.allocated", "change.cached"}},
		{both(mode(wb), small), mode(none), []string{"change.cleaner", "change.cleaned", "change.unmarked", "change.denied", "change.uncached", "change.data-removed"}, []string{"change.cleaned", "change.uncached"}},
		{both(mode(wb), small), cacheBytes(64 * mib), []string{"change.extended", "change.data-grown", "change.grown"}, []string{"change.data-grown"}},
		{both(mode(wb), small), mode(wt), []string{"change.cleaned"}, nil},
		{both(mode(wt), small), cacheBytes(16 * mib), []string{"change.uncached", "change.cached"}, []string{"change.cached"}},
		{both(mode(wb), small), unsafeMode, []string{"change.unsafe"}, nil},
		{both(unsafeMode, small), mode(wb), []string{"change.passed"}, nil},
	}
}

// TestKernelKillChange kills the node plugin at every step of a change; a
// successor converges, and the pod, which runs all the time, sees nothing of it.
func TestKernelKillChange(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	passed := map[string]bool{}
	d := m.volume(n, "killchange", 128*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.change()
	l := startLoad(t, d.device(), 32*mib)
	for i, c := range changes() {
		for _, point := range killedAt(t, c.points, c.phases...) {
			d.ask(c.from)
			d.change()
			l.moving()
			d.ask(c.to)
			if !d.killAt(point, order{Change: true}) {
				t.Fatalf("change %d did not pass %s", i, point)
			}
			passed[point] = true
			l.moving()
			mustPass(t, "repair", d.n.Repair(t.Context()))
			d.change()
			t.Logf("change %d, killed at %s: %d accesses so far", i, point, l.rounds.Load())
		}
	}
	for _, p := range faultpoint.List() {
		if wholeMatrix() && strings.HasPrefix(p, "change.") && !passed[p] {
			t.Errorf("no change was killed at %s", p)
		}
	}
	l.end()
	l.check(d.device())
	// These leave what unstage has to make sense of.
	left := []string{"change.cached", "change.recorded", "change.writeback", "change.cleaner", "change.denied", "change.uncached", "change.data-grown"}
	for i, c := range changes()[:3] {
		for _, point := range killedAt(t, c.points, c.phases...) {
			if !slices.Contains(left, point) {
				continue
			}
			d.killedThenUnstaged(c, point, l)
			if t.Failed() {
				t.Fatalf("change %d, killed at %s, unstaged", i, point)
			}
		}
	}
	d.unstage()
	d.remove()
}

// killedThenUnstaged: the pod goes away right after the kill, and comes back.
func (d *disk) killedThenUnstaged(c change, point string, l *load) {
	t := d.m.t
	d.ask(c.from)
	d.change()
	f := openDirect(t, d.device())
	buf := aligned(loadBlock)
	for block := range int64(64) {
		fill(buf, block, l.versions[block]+1)
		if _, err := f.WriteAt(buf, block*loadBlock); err != nil {
			t.Fatal(err)
		}
		l.versions[block]++
	}
	mustPass(t, "close", f.Close())
	d.ask(c.to)
	d.killAt(point, order{Change: true})
	d.unstage()
	mustPass(t, "repair", d.n.Repair(t.Context()))
	d.stage()
	l.check(d.device())
}
