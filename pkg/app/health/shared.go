package health

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Shared returns a check that asks check at most once in every, however many ask and whoever they
// are, and gives all of them the same answer: probes take anybody's requests, and what they ask
// must not pay for each. Nothing is asked while nobody asks. One question takes CheckTimeout at
// most. It goes on if the one who caused it hangs up, and ends with ctx.
func Shared(ctx context.Context, every time.Duration, check Check) Check {
	s := &shared{every: every, check: func() error {
		ctx, cancel := context.WithTimeout(ctx, CheckTimeout)
		defer cancel()
		return check(ctx)
	}}
	return s.ask
}

type shared struct {
	check func() error
	every time.Duration

	mu   sync.Mutex
	last *question // nil before the first
}

// question is one that is asked, or was.
type question struct {
	begun time.Time
	// err may be read once answered is closed.
	answered chan struct{}
	err      error
}

// ask waits for the answer that counts now.
func (s *shared) ask(ctx context.Context) error {
	q := s.current()
	select {
	case <-q.answered:
		return q.err
	case <-ctx.Done():
		return fmt.Errorf("no answer yet: %w", ctx.Err())
	}
}

// current returns the last question, or a new one if that is answered and old.
func (s *shared) current() *question {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.last; q != nil {
		select {
		case <-q.answered:
			if time.Since(q.begun) < s.every {
				return q
			}
		default:
			return q
		}
	}
	q := &question{begun: time.Now(), answered: make(chan struct{})}
	s.last = q
	go func() {
		defer close(q.answered)
		q.err = s.check()
	}()
	return q
}
