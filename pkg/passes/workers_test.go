package passes

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestWorkers: the work of a volume that hangs is begun once, and holds up no other.
func TestWorkers(t *testing.T) {
	var w Workers
	var begun, others atomic.Int32
	hang := make(chan struct{})
	do := func(_ context.Context, id volume.ID) error {
		if id != "hangs" {
			others.Add(1)
			return nil
		}
		begun.Add(1)
		<-hang
		return nil
	}
	ids := []volume.ID{"a", "hangs", "b"}
	for pass := range int32(3) {
		err := w.Each(t.Context(), time.Millisecond, 2*time.Millisecond, ids, do)
		if got := errors.Is(err, volume.ErrBusy); got != (pass == 0) {
			t.Errorf("pass %d: %v", pass, err)
		}
		if begun.Load() != 1 || others.Load() != 2*(pass+1) {
			t.Errorf("pass %d: the one that hangs was begun %d times, the others %d times", pass, begun.Load(), others.Load())
		}
	}
	if !w.Working("hangs") || w.Working("a") {
		t.Error("who is worked on is not known")
	}
	close(hang)
	for w.Working("hangs") {
		time.Sleep(time.Millisecond)
	}
	failed := errors.New("failed")
	if err := w.Each(t.Context(), time.Minute, time.Minute, ids, func(context.Context, volume.ID) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
}
