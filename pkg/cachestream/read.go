package cachestream

import (
	"context"
	"errors"
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
	// err is why no other run comes; such a run has no chunks.
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

// readsAtOnce is how many reads of the SSD are under way at a time: chunks of 64 KiB that lie apart, read
// one after another, take longer than the network.
const readsAtOnce = 4

// extent are chunks that lie side by side in the cache.
type extent struct {
	first    int
	buf      []byte
	panicked any
}

// read reads the next run: as many chunks as there is room for, wherever the cache has them. If one of
// them cannot be read, there are none in it.
func (r *reader) read(ctx context.Context, buf []byte) (next run) {
	next.sent = func() { r.free <- buf }
	defer func() {
		if p := recover(); p != nil {
			next.panicked = panicOf(p)
		}
	}()
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	extents := r.plan(buf)
	var all sync.WaitGroup
	turn := make(chan struct{}, readsAtOnce)
	for i := range extents {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			if err := r.fill(ctx, &extents[i]); err != nil {
				failed(err)
			}
		})
	}
	all.Wait() // nothing is read into buf any more
	next.err = context.Cause(ctx)
	for _, e := range extents {
		if e.panicked != nil {
			next.panicked = e.panicked
		}
	}
	if next.err != nil {
		return next
	}
	for _, e := range extents {
		for i := range len(e.buf) / r.size {
			next.numbers = append(next.numbers, e.first+i)
		}
	}
	next.data = buf[:len(next.numbers)*r.size]
	return next
}

// plan says what is read into a buffer, and goes on behind it.
func (r *reader) plan(buf []byte) (extents []extent) {
	places := r.cache.Places()
	for r.next < len(places) && len(buf) >= r.size {
		n := 1
		for i := r.next + 1; i < len(places) && (n+1)*r.size <= len(buf) && wantedFrom(r.skip, i) == i && places[i] == places[i-1]+1; i++ {
			n++
		}
		extents = append(extents, extent{first: r.next, buf: buf[:n*r.size]})
		buf, r.next = buf[n*r.size:], wantedFrom(r.skip, r.next+n)
	}
	return extents
}

// fill reads an extent.
func (r *reader) fill(ctx context.Context, e *extent) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.panicked, err = panicOf(p), errors.New("panic")
		}
	}()
	for done := 0; done < len(e.buf); {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		number := e.first + done/r.size
		n, err := r.cache.ReadChunks(ctx, number, e.buf[done:])
		switch {
		case err != nil:
			return err
		case n < 1:
			return fmt.Errorf("%w: nothing is read of chunk %d", volume.ErrUnavailable, number)
		}
		done += n * r.size
	}
	return nil
}

func panicOf(p any) string { return fmt.Sprintf("%v\n%s", p, debug.Stack()) }

// end ends it, and waits until nothing is read any more.
func (r *reader) end() {
	r.cancel()
	r.reading.Wait()
}
