package keylock

import (
	"context"
	"sync"
)

// Queue is a set of held keys whose next holder waits its turn. The zero Queue holds none
// and is ready for use.
type Queue struct {
	mu   sync.Mutex
	held map[string]*line
}

type line struct {
	token chan struct{} // holds one token while the key is free
	users int           // holder and waiters
}

// Lock waits for the key until ctx ends; the error is that of ctx then. unlock is called
// once.
func (q *Queue) Lock(ctx context.Context, key string) (unlock func(), err error) {
	q.mu.Lock()
	l := q.held[key]
	if l == nil {
		l = &line{token: make(chan struct{}, 1)}
		l.token <- struct{}{}
		if q.held == nil {
			q.held = map[string]*line{}
		}
		q.held[key] = l
	}
	l.users++
	q.mu.Unlock()

	select {
	case <-l.token:
		return func() {
			l.token <- struct{}{}
			q.leave(key, l)
		}, nil
	case <-ctx.Done():
		q.leave(key, l)
		return nil, ctx.Err()
	}
}

func (q *Queue) leave(key string, l *line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(q.held, key)
	}
}
