package passes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// Slow is how long the work of one volume may take before that of the next begins.
	Slow = 3 * time.Second
	// Patience is how long a pass waits for the work that it has begun.
	Patience = time.Minute
	// Timeout bounds the work itself. A command that is given up then goes on, and keeps
	// this volume alone waiting (states.md, Commands that go on).
	Timeout = 2 * time.Minute
)

// Workers do what a pass over all volumes finds to be done, so that a volume whose device
// does not answer holds up no other one, and has one worker. The zero value is ready.
type Workers struct{ busy keylock.Set }

// Working reports whether the work of a volume that an earlier pass began is not done.
func (w *Workers) Working(id volume.ID) bool { return w.busy.Held(string(id)) }

// Begin starts the work of a volume, unless it is being worked on; done receives its end.
func (w *Workers) Begin(ctx context.Context, id volume.ID, do func(context.Context, volume.ID) error) (done <-chan error) {
	unlock, free := w.busy.TryLock(string(id))
	if !free {
		return nil
	}
	ended := make(chan error, 1)
	go func() {
		wctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		err := do(wctx, id)
		unlock()
		ended <- err
	}()
	return ended
}

// Each works on the volumes one after the other, beside those that are slow. It returns
// when all is done, or has waited long enough: what is not done then goes on, and is not
// begun again before its end.
func (w *Workers) Each(ctx context.Context, slow, patience time.Duration, ids []volume.ID, do func(context.Context, volume.ID) error) error {
	enough := time.After(patience)
	late := map[volume.ID]<-chan error{}
	var problems []error
	for _, id := range ids {
		done := w.Begin(ctx, id, do)
		if done == nil {
			continue
		}
		select {
		case err := <-done:
			problems = append(problems, err)
		case <-time.After(slow):
			late[id] = done
		}
	}
	for id, done := range late {
		select {
		case err := <-done:
			problems = append(problems, err)
			continue
		default:
		}
		select {
		case err := <-done:
			problems = append(problems, err)
		case <-enough:
			enough = closedTime
			klog.FromContext(ctx).Info("Work on a volume takes long and goes on beside that on others", "volume", id)
			problems = append(problems, fmt.Errorf("%w: volume %s: work in the background takes long", volume.ErrBusy, id))
		}
	}
	return errors.Join(problems...)
}

// closedTime is a time that has come.
var closedTime = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()
