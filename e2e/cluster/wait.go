package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Poll is the time between two looks at a condition that is cheap to read.
const Poll = 200 * time.Millisecond

// ErrTimeout is wrapped by what Await returns when time has run out.
var ErrTimeout = errors.New("timed out")

// Await calls check until it returns no reason to go on. An error of check is
// such a reason too: the cluster under test is being disturbed, and its API may
// fail for a while. The error of a timeout says what was seen last.
func Await(ctx context.Context, timeout time.Duration, check func(context.Context) (pending string, err error)) error {
	return AwaitEvery(ctx, Poll, timeout, check)
}

// AwaitEvery is Await with another interval, for what is dear to look at.
func AwaitEvery(ctx context.Context, interval, timeout time.Duration, check func(context.Context) (pending string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	last := "nothing was seen"
	for {
		pending, err := check(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			last = err.Error()
		case err == nil && pending == "":
			return nil
		case err == nil:
			last = pending
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w after %s: %s", ErrTimeout, time.Since(start).Round(time.Second), last)
		case <-time.After(interval):
		}
	}
}
