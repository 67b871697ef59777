// Package passes repeats work whose failures are told once, and does the work of each volume so
// that one whose device does not answer holds up no other.
package passes

import (
	"context"
	"time"
)

// Repeat acts again and again until ctx ends. An error is told once for as long as it
// stays the same.
func Repeat(ctx context.Context, every time.Duration, act func(context.Context) error, tell func(error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	said := ""
	for {
		err := act(ctx)
		if ctx.Err() != nil {
			return
		}
		if News(err, &said) {
			tell(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Paced is Repeat with the pause before the next pass that act returns.
func Paced(ctx context.Context, act func(context.Context) (pause time.Duration, err error), tell func(error)) {
	said := ""
	for {
		pause, err := act(ctx)
		if ctx.Err() != nil {
			return
		}
		if News(err, &said) {
			tell(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Pause waits, or ends with the context.
func Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// News reports whether err is an error with another text than that of the pass before, which
// said has; said receives the text of this one.
func News(err error, said *string) bool {
	before := *said
	if *said = ""; err != nil {
		*said = err.Error()
	}
	return *said != "" && *said != before
}
