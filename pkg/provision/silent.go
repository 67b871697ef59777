package provision

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// originPatience and serverPatience are how long a call that nobody waits for may wait for another
	// driver, and for a storage server: it comes back, and others wait behind it.
	originPatience, serverPatience = 5 * time.Second, 30 * time.Second
	// listPatience is how long one place may take to list its cuts: volumes of others are locked
	// meanwhile.
	listPatience = 10 * time.Second
	// silence is for how long a storage server that has not answered in time is not asked again by what
	// nobody waits for: each of its volumes would have those of others wait.
	silence = 30 * time.Second
)

// silences are until when storage servers count as silent.
type silences struct {
	mu    sync.Mutex
	until map[place]time.Time
}

func (q *silences) put(at place, until time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.until == nil {
		q.until = map[place]time.Time{}
	}
	q.until[at] = until
}

// of returns how long a place counts as silent yet, 0 if it does not.
func (q *silences) of(at place, now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(q.until[at].Sub(now), 0)
}

// background does on a place what nobody waits for, within the limit of it (states.md, Several
// storage servers). Errors: ErrUnavailable if that is over, and those of act.
func (s *Service) background(ctx context.Context, at place, act func(context.Context) error) error {
	if at.origin { // many drivers, of which one that is slow says nothing of the others
		ctx, cancel := context.WithTimeout(ctx, originPatience)
		defer cancel()
		return act(ctx)
	}
	return s.within(ctx, at, serverPatience, act)
}

// within asks a place something with a limit. Whoever has not answered by then is not asked so
// again for a while. Errors: ErrUnavailable if it is silent, and those of act.
func (s *Service) within(ctx context.Context, at place, limit time.Duration, act func(context.Context) error) error {
	if left := s.silences.of(at, s.now()); left > 0 {
		return fmt.Errorf("%w: %s did not answer in time; it is asked again in %s", volume.ErrUnavailable, at, left.Round(time.Second))
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := act(limited)
	if err == nil || limited.Err() == nil || ctx.Err() != nil {
		return err
	}
	if !at.origin {
		s.silences.put(at, s.now().Add(silence))
	}
	// By its text: a call that was given up is reported as one that goes on (ErrBusy), which is
	// asked for again at once.
	return fmt.Errorf("%w: %s has not answered for %s: %s", volume.ErrUnavailable, at, limit, err.Error())
}
