// Package keylock holds one lock per key: a Set for requests and for work in the
// background, a Queue for callers that wait for each other.
//
// A CSI caller repeats a request whose answer it missed. Were the repetition
// queued behind the first one, requests would pile up for a volume whose device
// hangs; so it is refused, and the caller comes back by its own back-off. Work in the
// background is short, as a rule: one request waits for its end, because the caller's
// back-off is longer, and a pod is waiting.
package keylock

import (
	"context"
	"sync"
)

// Set is a set of held keys. The zero Set holds none and is ready for use.
type Set struct {
	mu   sync.Mutex
	held map[string]*holder
}

type holder struct {
	request bool
	// next is closed when the lock is handed to the request that waits for it; nil
	// while none does.
	next   chan struct{}
	handed bool
}

// TryLock takes the lock of key for work in the background, and never waits. ok is
// false if it is held; otherwise the caller gives it back with unlock, which may be
// called more than once.
func (s *Set) TryLock(key string) (unlock func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[key] != nil {
		return nil, false
	}
	return s.take(key, &holder{}), true
}

// Lock takes the lock of key for a request. It waits for work in the background until
// ctx ends, and never for another request, be that one at work or waiting itself.
func (s *Set) Lock(ctx context.Context, key string) (unlock func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[key]
	switch {
	case h == nil:
		return s.take(key, &holder{request: true}), true
	case h.request || h.next != nil:
		return nil, false
	}
	h.next = make(chan struct{})
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-h.next:
	}
	s.mu.Lock()
	if !h.handed {
		h.next = nil
		return nil, false
	}
	return s.take(key, &holder{request: true}), true
}

// Held reports whether somebody has the lock of key.
func (s *Set) Held(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[key] != nil
}

// take notes the holder; s.mu is held.
func (s *Set) take(key string, h *holder) (unlock func()) {
	if s.held == nil {
		s.held = map[string]*holder{}
	}
	s.held[key] = h
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.next == nil {
			delete(s.held, key)
			return
		}
		// The key stays held until the request that waits has noticed.
		h.handed = true
		close(h.next)
	})
}
