package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

// disk notes what is written to it.
type disk struct {
	blockdev.File
	mu     sync.Mutex
	writes []string
	synced int
	fails  error
}

func (d *disk) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes = append(d.writes, fmt.Sprintf("%d+%d:%c%c", off, len(p), p[0], p[len(p)-1]))
	return len(p), d.fails
}

func (d *disk) Sync() error {
	d.synced = len(d.writes)
	return nil
}

// TestWriter: chunks that lie side by side are written at once, as many as there is room for, others
// one after the other, and everything that was added is written and synced when flush returns.
func TestWriter(t *testing.T) {
	for name, tc := range map[string]struct {
		places []int64
		want   []string
	}{
		"side by side":        {[]int64{0, 4, 8, 12, 16}, []string{"0+12:ac", "12+8:de"}},
		"apart":               {[]int64{0, 8, 4, 20}, []string{"0+4:aa", "8+4:bb", "4+4:cc", "20+4:dd"}},
		"a gap":               {[]int64{8, 12, 20, 24, 28, 32}, []string{"8+8:ab", "20+4:cc", "24+12:df"}},
		"nothing":             {},
		"the same place anew": {[]int64{4, 4}, []string{"4+4:aa", "4+4:bb"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &disk{}
			w := newWriter(d, 4, 12)
			buf := make([]byte, 4)
			for i, at := range tc.places {
				for k := range buf {
					buf[k] = byte('a' + i)
				}
				if err := w.add(t.Context(), at, buf); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(d.writes, tc.want) || d.synced != len(tc.want) {
				t.Errorf("written %v, %d of them synced; want %v", d.writes, d.synced, tc.want)
			}
		})
	}
}

// TestWriterEnds: nothing is written any more after a failure, or after the context has ended.
func TestWriterEnds(t *testing.T) {
	dead := errors.New("dead")
	d := &disk{fails: dead}
	w := newWriter(d, 4, 4)
	if err := w.add(t.Context(), 0, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := w.add(t.Context(), 4, make([]byte, 4)); !errors.Is(err, errWrite) || !errors.Is(err, dead) || len(d.writes) != 1 {
		t.Errorf("%v after %v, want the error of the first write", err, d.writes)
	}
	d = &disk{}
	w = newWriter(d, 4, 8)
	if err := w.add(t.Context(), 0, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.flush(ended); !errors.Is(err, context.Canceled) || len(d.writes) != 0 || d.synced != 0 {
		t.Errorf("%v, written %v", err, d.writes)
	}
}
