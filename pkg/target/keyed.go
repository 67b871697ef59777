package target

import (
	"context"
	"sync"
)

// keyedLock is one lock per volume name that can be waited for with a context.
type keyedLock struct {
	mu   sync.Mutex
	held map[string]*waiters
}

type waiters struct {
	token chan struct{} // holds one token while the lock is free
	users int           // holder and waiters
}

func newKeyedLock() *keyedLock {
	return &keyedLock{held: map[string]*waiters{}}
}

// lock waits for the key; the result unlocks it.
func (k *keyedLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	w := k.held[key]
	if w == nil {
		w = &waiters{token: make(chan struct{}, 1)}
		w.token <- struct{}{}
		k.held[key] = w
	}
	w.users++
	k.mu.Unlock()

	select {
	case <-w.token:
		return func() {
			w.token <- struct{}{}
			k.leave(key, w)
		}, nil
	case <-ctx.Done():
		k.leave(key, w)
		return nil, ctx.Err()
	}
}

func (k *keyedLock) leave(key string, w *waiters) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(k.held, key)
	}
}
