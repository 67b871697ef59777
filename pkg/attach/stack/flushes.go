package stack

import (
	"context"
	"sync"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Flushes are the flushes of one kind of device that are under way. The zero value is ready.
type Flushes struct {
	mu sync.Mutex
	m  map[volume.ID]chan struct{}
}

// Run flushes, and reports whether that has ended before ctx. A flush that waits for lost paths,
// or for an SSD that does not answer, cannot be ended, and proves nothing of what was written
// after its beginning.
func (f *Flushes) Run(ctx context.Context, id volume.ID, flush func() error) (done bool, err error) {
	for {
		before, mine := f.begin(id, flush)
		select {
		case <-ctx.Done():
			return false, nil
		case <-before:
		case err := <-mine:
			return true, err
		}
	}
}

// begin starts a flush, whose end mine receives. While an earlier one of the volume is under
// way it starts none, and before is closed at the end of that.
func (f *Flushes) begin(id volume.ID, flush func() error) (before <-chan struct{}, mine <-chan error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if running := f.m[id]; running != nil {
		return running, nil
	}
	if f.m == nil {
		f.m = map[volume.ID]chan struct{}{}
	}
	ended, result := make(chan struct{}), make(chan error, 1)
	f.m[id] = ended
	go func() {
		err := flush()
		f.mu.Lock()
		delete(f.m, id)
		f.mu.Unlock()
		result <- err
		close(ended)
	}()
	return nil, result
}
