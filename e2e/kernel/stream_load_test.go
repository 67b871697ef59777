//go:build kernel

package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

const (
	streamWorkers = 6
	// streamPause is between two accesses of one worker: the commands need the CPU too.
	streamPause = 2 * time.Millisecond
	streamWait  = 5 * time.Minute
	// streamChunk is the smallest that dm-cache has, so that a small disk has many of them.
	streamChunk      = devmapper.MinChunkSectors * devmapper.SectorSize
	streamChunkPages = int64(streamChunk / loadBlock)
)

// errStale: a block does not hold what was written to it last.
var errStale = errors.New("stale or foreign data")

// streamLoad has several goroutines write and verify one device past the page cache. Two of
// them often meet in one chunk, never in one block.
type streamLoad struct {
	t     *testing.T
	path  string
	pages int64
	// blank: what was never written is zero, and not version 0 of each block.
	blank    bool
	versions []uint64
	busy     []atomic.Bool
	// begun and written have the chunks that a write was issued for, and has ended for.
	begun, written []atomic.Bool
	ops            atomic.Int64
	// slowest is how long the slowest access took, in nanoseconds.
	slowest atomic.Int64
	// gate is locked while the load is to make no access.
	gate sync.RWMutex
	stop atomic.Bool
	done chan error
}

func startStream(t *testing.T, path string, pages int64, blank bool) *streamLoad {
	chunks := (pages + streamChunkPages - 1) / streamChunkPages
	l := &streamLoad{
		t: t, path: path, pages: pages, blank: blank, versions: make([]uint64, pages), busy: make([]atomic.Bool, pages),
		begun: make([]atomic.Bool, chunks), written: make([]atomic.Bool, chunks), done: make(chan error, streamWorkers),
	}
	var workers sync.WaitGroup
	for w := range streamWorkers {
		workers.Go(func() { l.done <- l.work(uint64(w)) })
	}
	// A test that fails leaves the device free to be removed.
	t.Cleanup(func() {
		l.stop.Store(true)
		workers.Wait()
	})
	return l
}

// end stops the load; whatever any worker saw fails the test.
func (l *streamLoad) end() {
	l.t.Helper()
	l.stop.Store(true)
	for range streamWorkers {
		mustPass(l.t, "load", <-l.done)
	}
}

// await returns after n more accesses.
func (l *streamLoad) await(n int64) {
	l.t.Helper()
	deadline := time.Now().Add(streamWait)
	for end := l.ops.Load() + n; l.ops.Load() < end; time.Sleep(2 * time.Millisecond) {
		select {
		case err := <-l.done:
			l.t.Fatalf("the load ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			l.t.Fatal("the load stands still")
		}
	}
}

func (l *streamLoad) work(seed uint64) error {
	f, err := os.OpenFile(l.path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	r := rand.New(rand.NewPCG(seed, 11))
	for n := 1; !l.stop.Load(); n++ {
		if err := l.access(f, r, n); err != nil {
			return fmt.Errorf("worker %d, access %d: %w", seed, n, err)
		}
		l.ops.Add(1)
		time.Sleep(streamPause)
	}
	return f.Sync()
}

// access reads or writes: one block, several across chunks, or a whole chunk.
func (l *streamLoad) access(f *os.File, r *rand.Rand, n int) error {
	l.gate.RLock()
	defer l.gate.RUnlock()
	// Low blocks are written more often, so that of the high ones some never are.
	page, count := r.Int64N(1+r.Int64N(l.pages)), int64(1)
	switch r.IntN(12) {
	case 0, 1:
		count = 2 + r.Int64N(2*streamChunkPages)
	case 2:
		page, count = page/streamChunkPages*streamChunkPages, streamChunkPages
	}
	count = min(count, l.pages-page)
	if !l.claim(page, count) {
		return nil
	}
	defer l.release(page, count)
	began := time.Now()
	defer func() { maxInto(&l.slowest, int64(time.Since(began))) }()
	if n%50 == 0 {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if r.IntN(5) < 2 {
		return l.verify(f, page, count)
	}
	if err := l.write(f, page, count); err != nil || r.IntN(4) > 0 {
		return err
	}
	return l.verify(f, page, count)
}

func (l *streamLoad) claim(page, count int64) bool {
	for p := page; p < page+count; p++ {
		if !l.busy[p].CompareAndSwap(false, true) {
			l.release(page, p-page)
			return false
		}
	}
	return true
}

func (l *streamLoad) release(page, count int64) {
	for p := page; p < page+count; p++ {
		l.busy[p].Store(false)
	}
}

// content is what a block holds by its version.
func (l *streamLoad) content(buf []byte, page int64) {
	if l.blank && l.versions[page] == 0 {
		clear(buf)
		return
	}
	fill(buf, page, l.versions[page])
}

// write gives blocks that are claimed their next version.
func (l *streamLoad) write(f *os.File, page, count int64) error {
	buf := aligned(count * loadBlock)
	for i := range count {
		l.versions[page+i]++
		l.content(buf[i*loadBlock:][:loadBlock], page+i)
		l.begun[(page+i)/streamChunkPages].Store(true)
	}
	if _, err := f.WriteAt(buf, page*loadBlock); err != nil {
		return fmt.Errorf("write %d blocks at %d: %w", count, page, err)
	}
	for i := range count {
		l.written[(page+i)/streamChunkPages].Store(true)
	}
	return nil
}

func (l *streamLoad) verify(f *os.File, page, count int64) error {
	got, want := aligned(count*loadBlock), make([]byte, loadBlock)
	if _, err := f.ReadAt(got, page*loadBlock); err != nil {
		return fmt.Errorf("read %d blocks at %d: %w", count, page, err)
	}
	for i := range count {
		l.content(want, page+i)
		if !bytes.Equal(got[i*loadBlock:][:loadBlock], want) {
			return fmt.Errorf("%w: %s, block %d, chunk %d", errStale, l.path, page+i, (page+i)/streamChunkPages)
		}
	}
	return nil
}

// verifyAll reads all of the device, and of what is below it, while no write is under way.
// Error: errStale.
func (l *streamLoad) verifyAll(below ...string) error {
	l.gate.Lock()
	defer l.gate.Unlock()
	for _, path := range append([]string{l.path}, below...) {
		f, err := blockdev.OpenDirect(path)
		if err != nil {
			return err
		}
		const step = 256
		for page := int64(0); page < l.pages && err == nil; page += step {
			err = l.verify(f, page, min(step, l.pages-page))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("all of %s: %w", path, err)
		}
	}
	return nil
}

// marked are the chunks that are marked by now.
func marked(chunks []atomic.Bool) map[uint64]bool {
	out := map[uint64]bool{}
	for i := range chunks {
		if chunks[i].Load() {
			out[uint64(i)] = true
		}
	}
	return out
}

func maxInto(v *atomic.Int64, n int64) {
	for was := v.Load(); n > was && !v.CompareAndSwap(was, n); was = v.Load() {
	}
}
