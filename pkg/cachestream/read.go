package cachestream

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/volume"
)

// reader reads a cache ahead of who sends it: the SSD and the network work at the same time.
type reader struct {
	cache Cache
	// next is the number of the chunk that is read next, skip has those that nobody wants, and size
	// is the size of a chunk in bytes.
	next int
	skip volume.Bits
	size int
	// free are the buffers that nothing unsent is in.
	free    chan []byte
	cancel  context.CancelFunc
	reading sync.WaitGroup
}

// run are chunks, by their numbers in the list.
type run struct {
	numbers []int
	data    []byte
	// sent gives the buffer back.
	sent func()
	// err is why no other run comes.
	err error
	// panicked is the panic that reading has ended with, for who sends.
	panicked any
}

// newReader returns a reader with two buffers of so many bytes, from a chunk of the list on.
func newReader(c Cache, from int, skip volume.Bits, size, room int) *reader {
	r := &reader{cache: c, next: wantedFrom(skip, from), skip: skip, size: size, free: make(chan []byte, 2), cancel: func() {}}
	for range cap(r.free) {
		r.free <- blockdev.AlignedBuffer(room)
	}
	return r
}

// begin begins to read, until the list or ctx ends, or an error was returned.
func (r *reader) begin(ctx context.Context) <-chan run {
	ctx, r.cancel = context.WithCancel(ctx)
	runs := make(chan run, cap(r.free))
	r.reading.Go(func() {
		defer close(runs)
		for r.next < len(r.cache.Blocks()) {
			select {
			case buf := <-r.free:
				// There is room: a run needs a buffer.
				next := r.read(ctx, buf)
				runs <- next
				if next.err != nil || next.panicked != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return runs
}

// read reads the next run: as many chunks as there is room for, wherever the cache has them.
func (r *reader) read(ctx context.Context, buf []byte) (next run) {
	next = run{data: buf[:0], sent: func() { r.free <- buf }}
	defer func() {
		if p := recover(); p != nil {
			next.panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
		}
	}()
	for r.next < len(r.cache.Blocks()) && len(next.data)+r.size <= len(buf) {
		if next.err = ctx.Err(); next.err != nil {
			return next
		}
		room := buf[len(next.data):]
		wanted := r.size
		for i := r.next + 1; wanted+r.size <= len(room) && wantedFrom(r.skip, i) == i; i++ {
			wanted += r.size
		}
		n, err := r.cache.ReadChunks(ctx, r.next, room[:wanted])
		if err != nil {
			next.err = err // of what it has read before that error, nothing is known to be right
			return next
		}
		for i := range n {
			next.numbers = append(next.numbers, r.next+i)
		}
		next.data = buf[:len(next.data)+n*r.size]
		r.next = wantedFrom(r.skip, r.next+n)
	}
	return next
}

// end ends it, and waits until nothing is read any more.
func (r *reader) end() {
	r.cancel()
	r.reading.Wait()
}
