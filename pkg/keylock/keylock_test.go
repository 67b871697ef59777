package keylock

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestTryLock(t *testing.T) {
	var s Set
	unlock, ok := s.TryLock("a")
	if !ok {
		t.Fatal("a free key was refused")
	}
	if _, ok := s.TryLock("a"); ok {
		t.Error("a held key was given")
	}
	if _, ok := s.TryLock("b"); !ok {
		t.Error("holding a refused b")
	}
	unlock()
	again, ok := s.TryLock("a")
	if !ok {
		t.Fatal("a freed key was refused")
	}
	unlock()
	if _, ok := s.TryLock("a"); ok {
		t.Error("a second unlock freed the next holder's lock")
	}
	again()
}

func TestTryLockIsExclusive(t *testing.T) {
	var s Set
	var inside, worked atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				unlock, ok := s.TryLock("k")
				if !ok {
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two holders at once")
				}
				worked.Add(1)
				inside.Add(-1)
				unlock()
			}
		})
	}
	wg.Wait()
	if worked.Load() == 0 {
		t.Error("nobody ever got the lock")
	}
}
