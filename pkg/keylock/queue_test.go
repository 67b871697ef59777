package keylock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

func TestQueueIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		lock := func() (unlock func()) {
			unlock, err := q.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			return unlock
		}
		unlock := lock()
		if other, err := q.Lock(t.Context(), "b"); err != nil {
			t.Errorf("holding a refused b: %v", err)
		} else {
			other()
		}
		var served []int
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				defer lock()()
				served = append(served, i)
			})
			synctest.Wait()
		}
		if len(served) != 0 {
			t.Errorf("%v did not wait", served)
		}
		unlock()
		wg.Wait()
		if len(served) != 3 || served[0] != 0 || served[1] != 1 || served[2] != 2 {
			t.Errorf("served %v", served)
		}
		if len(q.held) != 0 {
			t.Errorf("keys that nobody holds are kept: %v", q.held)
		}
	})
}

// TestQueueIsLeft: who gives up waiting gets no lock, and leaves none behind.
func TestQueueIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		unlock, _ := q.Lock(t.Context(), "a")
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := q.Lock(ctx, "a")
			left <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		unlock()
		if unlock, err := q.Lock(t.Context(), "a"); err != nil {
			t.Error(err)
		} else {
			unlock()
		}
		if len(q.held) != 0 {
			t.Errorf("keys that nobody holds are kept: %v", q.held)
		}
	})
}
