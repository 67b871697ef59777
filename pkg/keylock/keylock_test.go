package keylock

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
	if !s.Held("a") || s.Held("b") {
		t.Error("which keys are held is not known")
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

func TestRequestRefusesRequest(t *testing.T) {
	var s Set
	unlock, ok := s.Lock(t.Context(), "a")
	if !ok {
		t.Fatal("a free key was refused")
	}
	if _, ok := s.Lock(t.Context(), "a"); ok {
		t.Error("a request got the lock of another")
	}
	if _, ok := s.TryLock("a"); ok {
		t.Error("background work got the lock of a request")
	}
	unlock()
	if _, ok := s.Lock(t.Context(), "a"); !ok {
		t.Error("a freed key was refused")
	}
}

func TestRequestWaitsForBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		unlock, _ := s.TryLock("a")
		got := make(chan func(), 1)
		go func() {
			u, ok := s.Lock(t.Context(), "a")
			if !ok {
				t.Error("a request was refused although the background work ended")
			}
			got <- u
		}()
		synctest.Wait()
		if _, ok := s.Lock(t.Context(), "a"); ok {
			t.Error("a second request got the lock")
		}
		unlock()
		// Background work must not get between.
		if _, ok := s.TryLock("a"); ok {
			t.Error("background work overtook the request that waited")
		}
		release := <-got
		if _, ok := s.TryLock("a"); ok {
			t.Error("the lock that was handed over is free")
		}
		unlock()
		if _, ok := s.TryLock("a"); ok {
			t.Error("a second unlock freed the next holder's lock")
		}
		release()
		if _, ok := s.TryLock("a"); !ok {
			t.Error("a freed key was refused")
		}
	})
}

func TestRequestWaitsNoLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Set
		unlock, _ := s.TryLock("a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, ok := s.Lock(ctx, "a"); ok {
			t.Fatal("a request got a lock that is held")
		}
		unlock()
		if _, ok := s.TryLock("a"); !ok {
			t.Error("a freed key was refused because a request had waited for it once")
		}
	})
}

func TestLocksAreExclusive(t *testing.T) {
	var s Set
	var inside, worked, requests atomic.Int32
	var wg sync.WaitGroup
	work := func(unlock func(), ok bool) bool {
		if !ok {
			return false
		}
		if inside.Add(1) != 1 {
			t.Error("two holders at once")
		}
		inside.Add(-1)
		unlock()
		return true
	}
	// Whoever has it may have to wait for a processor while all the others try. So they go on until each
	// kind has had it.
	deadline := time.Now().Add(30 * time.Second)
	again := func(i int, had *atomic.Int32) bool {
		return i < 1000 || had.Load() == 0 && time.Now().Before(deadline)
	}
	for range 8 {
		wg.Go(func() {
			for i := 0; again(i, &worked); i++ {
				if work(s.TryLock("k")) {
					worked.Add(1)
				}
			}
		})
		wg.Go(func() {
			for i := 0; again(i, &requests); i++ {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Microsecond)
				if work(s.Lock(ctx, "k")) {
					requests.Add(1)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if worked.Load() == 0 || requests.Load() == 0 {
		t.Errorf("background work got the lock %d times, requests %d times", worked.Load(), requests.Load())
	}
	if _, ok := s.TryLock("k"); !ok {
		t.Error("the lock is held although everybody gave it back")
	}
}
