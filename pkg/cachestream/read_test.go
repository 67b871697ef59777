package cachestream

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestReader: a run has as many chunks as there is room for, also such as lie apart in the cache or
// in the list; of one that cannot be read nothing is sent.
func TestReader(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		atOnce, chunks, room int
		skip                 volume.Bits
		fails                int
		want                 [][]int
	}{
		"apart":            {1, 7, 3, nil, -1, [][]int{{0, 1, 2}, {3, 4, 5}, {6}}},
		"side by side":     {10, 7, 3, nil, -1, [][]int{{0, 1, 2}, {3, 4, 5}, {6}}},
		"in twos":          {2, 7, 3, nil, -1, [][]int{{0, 1, 2}, {3, 4, 5}, {6}}},
		"without some":     {10, 9, 3, without(1, 2, 5, 8), -1, [][]int{{0, 3, 4}, {6, 7}}},
		"fails later":      {1, 7, 3, nil, 4, [][]int{{0, 1, 2}, nil}},
		"fails in a run":   {3, 7, 3, nil, 4, [][]int{{0, 1, 2}, nil}},
		"fails at once":    {1, 7, 3, nil, 0, [][]int{nil}},
		"nothing is there": {1, 0, 3, nil, -1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(chunk, tc.chunks)
			if c.run = tc.atOnce; tc.atOnce > 1 {
				slices.Sort(c.places)
			}
			c.read = func(_ context.Context, i int) error {
				if i == tc.fails {
					return broken
				}
				return nil
			}
			r := newReader(c, 0, tc.skip, chunk, tc.room*chunk)
			defer r.end()
			var got [][]int
			var err error
			for run := range r.begin(t.Context()) {
				got, err = append(got, run.numbers), run.err
				for i, number := range run.numbers {
					if !bytes.Equal(run.data[i*chunk:(i+1)*chunk], content(c.blocks[number], chunk)) {
						t.Errorf("chunk %d has other data", number)
					}
				}
				run.sent()
			}
			if !slices.EqualFunc(got, tc.want, slices.Equal) || (tc.fails >= 0) != errors.Is(err, broken) {
				t.Errorf("read %v, %v, want %v", got, err, tc.want)
			}
		})
	}
}

// TestPlan: what lies side by side in the cache, and is wanted, is read at once; a buffer takes as much as it
// has room for.
func TestPlan(t *testing.T) {
	for name, tc := range map[string]struct {
		places []uint32
		skip   volume.Bits
		room   int
		// want are the first number, and how many, of each read of each buffer.
		want [][][2]int
	}{
		"side by side":      {[]uint32{4, 5, 6, 7, 8}, nil, 3, [][][2]int{{{0, 3}}, {{3, 2}}}},
		"apart":             {[]uint32{4, 6, 8}, nil, 2, [][][2]int{{{0, 1}, {1, 1}}, {{2, 1}}}},
		"backwards":         {[]uint32{3, 2, 1}, nil, 4, [][][2]int{{{0, 1}, {1, 1}, {2, 1}}}},
		"both":              {[]uint32{4, 5, 9, 1, 2, 3}, nil, 8, [][][2]int{{{0, 2}, {2, 1}, {3, 3}}}},
		"one is not wanted": {[]uint32{4, 5, 6, 7}, without(1), 8, [][][2]int{{{0, 1}, {2, 2}}}},
		"none is wanted":    {[]uint32{4, 5}, without(0, 1), 8, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCache(chunk, len(tc.places))
			c.places = tc.places
			r := newReader(c, 0, tc.skip, chunk, tc.room*chunk)
			var got [][][2]int
			for r.next < len(tc.places) {
				var one [][2]int
				buf := make([]byte, tc.room*chunk)
				for _, e := range r.plan(buf) {
					if &e.buf[0] != &buf[0] {
						t.Error("it leaves a gap")
					}
					buf = buf[len(e.buf):]
					one = append(one, [2]int{e.first, len(e.buf) / chunk})
				}
				got = append(got, one)
			}
			if !slices.EqualFunc(got, tc.want, slices.Equal) {
				t.Errorf("reads %v, want %v", got, tc.want)
			}
		})
	}
}

// TestReadsAtOnce: an SSD has several reads to do at a time, and no more than that.
func TestReadsAtOnce(t *testing.T) {
	c := newCache(chunk, 16)
	var under, most atomic.Int32
	goOn := make(chan struct{})
	c.read = func(context.Context, int) error {
		defer under.Add(-1)
		if n := under.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-goOn
		return nil
	}
	r := newReader(c, 0, nil, chunk, 16*chunk)
	defer r.end()
	runs := r.begin(t.Context())
	eventually(t, "several reads are under way", func() bool { return under.Load() == readsAtOnce })
	time.Sleep(50 * time.Millisecond)
	if n := under.Load(); n != readsAtOnce {
		t.Errorf("%d reads at a time, want %d", n, readsAtOnce)
	}
	close(goOn)
	if run := <-runs; len(run.numbers) != 16 || run.err != nil || most.Load() != readsAtOnce {
		t.Errorf("%d chunks (%v), %d reads at a time, want %d", len(run.numbers), run.err, most.Load(), readsAtOnce)
	}
}

// TestReadsEnd: a buffer is nobody's, and the cache open, until the last read has ended; what was not begun
// when another one failed is not begun.
func TestReadsEnd(t *testing.T) {
	c, broken := newCache(chunk, 16), errors.New("broken")
	var under, begun atomic.Int32
	goOn := make(chan struct{})
	c.read = func(_ context.Context, i int) error {
		begun.Add(1)
		if i == 1 {
			for under.Load() == 0 {
				time.Sleep(time.Millisecond) // another one is begun before it fails
			}
			return broken
		}
		under.Add(1)
		defer under.Add(-1)
		<-goOn
		return nil
	}
	r := newReader(c, 0, nil, chunk, 16*chunk)
	runs := r.begin(t.Context())
	eventually(t, "one has failed beside others", func() bool { return begun.Load() > 1 && under.Load() > 0 })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.end()
	}()
	select {
	case <-ended:
		t.Error("it has ended with reads under way")
	case run := <-runs:
		t.Errorf("a run of %d chunks with reads under way", len(run.numbers))
	case <-time.After(100 * time.Millisecond):
	}
	close(goOn)
	if run := <-runs; len(run.numbers) != 0 || !errors.Is(run.err, broken) && !errors.Is(run.err, context.Canceled) || under.Load() != 0 {
		t.Errorf("%d chunks, %v, %d reads under way", len(run.numbers), run.err, under.Load())
	}
	<-ended
	if n := begun.Load(); n > 2*readsAtOnce {
		t.Errorf("%d reads were begun", n)
	}
}

// TestReadsPanic: a panic is told, whatever else has failed.
func TestReadsPanic(t *testing.T) {
	c := newCache(chunk, 2)
	both := make(chan struct{}, 2)
	c.read = func(_ context.Context, i int) error {
		both <- struct{}{}
		for len(both) < 2 {
			time.Sleep(time.Millisecond)
		}
		if i == 1 {
			panic("inside")
		}
		return errors.New("broken")
	}
	r := newReader(c, 0, nil, chunk, 2*chunk)
	defer r.end()
	if run := <-r.begin(t.Context()); run.panicked == nil || len(run.numbers) > 0 {
		t.Errorf("%d chunks, panic %v", len(run.numbers), run.panicked)
	}
}

// TestReadsNothing: a cache that has nothing to say is not asked for ever.
func TestReadsNothing(t *testing.T) {
	r := newReader(mute{newCache(chunk, 2)}, 0, nil, chunk, 2*chunk)
	defer r.end()
	if run := <-r.begin(t.Context()); !errors.Is(run.err, volume.ErrUnavailable) || len(run.numbers) > 0 {
		t.Errorf("%d chunks, %v", len(run.numbers), run.err)
	}
}

// mute is a cache that reads nothing.
type mute struct{ *cache }

func (mute) ReadChunks(context.Context, int, []byte) (int, error) { return 0, nil }
