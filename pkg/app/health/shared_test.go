package health

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const every = 5 * time.Second

// asker counts what it is asked.
type asker struct {
	mu    sync.Mutex
	asked int
	check Check
}

func (a *asker) ask(ctx context.Context) error {
	a.mu.Lock()
	a.asked++
	check := a.check
	a.mu.Unlock()
	return check(ctx)
}

func (a *asker) want(t *testing.T, n int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked != n {
		t.Errorf("asked %d times, want %d", a.asked, n)
	}
}

func (a *asker) becomes(check Check) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.check = check
}

func fine(context.Context) error { return nil }

// hang answers when its time is over.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return errors.Join(errors.New("it hangs"), ctx.Err())
}

// TestShared asks in time that is not that of the machine.
func TestShared(t *testing.T) {
	broken := errors.New("it is broken")
	synctest.Test(t, func(t *testing.T) {
		a := &asker{check: fine}
		check := Shared(t.Context(), every, a.ask)
		a.want(t, 0) // nobody has asked
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		a.want(t, 1)

		a.becomes(func(context.Context) error { return broken })
		time.Sleep(every - time.Millisecond)
		if err := check(t.Context()); err != nil {
			t.Errorf("before it is asked again: %v", err)
		}
		a.want(t, 1)
		time.Sleep(time.Millisecond)
		for range 100 {
			if err := check(t.Context()); !errors.Is(err, broken) {
				t.Errorf("broken: %v", err)
			}
		}
		a.want(t, 2)

		a.becomes(fine)
		time.Sleep(every)
		if err := check(t.Context()); err != nil {
			t.Errorf("well again: %v", err)
		}
		a.want(t, 3)
	})
}

// TestSharedHangs wants a question without an answer to end, to be asked once, and to outlive the
// one who caused it.
func TestSharedHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asker{check: hang}
		check := Shared(t.Context(), every, a.ask)
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := check(impatient); err == nil || !strings.Contains(err.Error(), "no answer yet") {
			t.Errorf("who hangs up: %v", err)
		}
		begun := time.Now()
		if err := check(t.Context()); err == nil || !strings.Contains(err.Error(), "it hangs") {
			t.Errorf("who waits: %v", err)
		}
		if waited := time.Since(begun); waited != CheckTimeout-time.Second {
			t.Errorf("waited %s for an answer that was asked for a second before, want %s", waited, CheckTimeout-time.Second)
		}
		a.want(t, 1)
	})
}

// TestSharedEnds wants a question to end with the process.
func TestSharedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		a := &asker{check: hang}
		check := Shared(ctx, every, a.ask)
		time.AfterFunc(time.Second, end)
		begun := time.Now()
		if err := check(t.Context()); !errors.Is(err, context.Canceled) || time.Since(begun) != time.Second {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}
