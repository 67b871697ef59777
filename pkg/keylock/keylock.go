// Package keylock holds one lock per key and never waits for it.
//
// A CSI caller repeats a request whose answer it missed. Were the repetition
// queued behind the first one, requests would pile up for a volume whose device
// hangs; so it is refused, and the caller comes back by its own back-off.
package keylock

import "sync"

// Set is a set of held keys. The zero Set holds none and is ready for use.
type Set struct {
	mu   sync.Mutex
	held map[string]struct{}
}

// TryLock takes the lock of key. ok is false if it is held; otherwise the
// caller gives it back with unlock, which may be called more than once.
func (s *Set) TryLock(key string) (unlock func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, busy := s.held[key]; busy {
		return nil, false
	}
	if s.held == nil {
		s.held = map[string]struct{}{}
	}
	s.held[key] = struct{}{}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.held, key)
	}), true
}
