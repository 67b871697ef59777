//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// hold waits until nothing else works on the volume, as the CSI layer does not: there
// the kubelet repeats its request.
func (n *node) hold(ctx context.Context, id volume.ID) (unlock func(), err error) {
	for {
		if unlock, ok := n.Locks.TryLock(string(id)); ok {
			return unlock, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("volume %s: %w", id, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// Stage, Unstage and Expand are the attacher's, with nothing else at work on the volume.
func (n *node) Stage(ctx context.Context, req volume.StageRequest) error {
	unlock, err := n.hold(ctx, req.ID)
	if err != nil {
		return err
	}
	defer unlock()
	return n.Attacher.Stage(ctx, req)
}

func (n *node) Unstage(ctx context.Context, id volume.ID, path string) error {
	unlock, err := n.hold(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return n.Attacher.Unstage(ctx, id, path)
}

func (n *node) Expand(ctx context.Context, req volume.ExpandRequest) (int64, error) {
	unlock, err := n.hold(ctx, req.ID)
	if err != nil {
		return 0, err
	}
	defer unlock()
	return n.Attacher.Expand(ctx, req)
}

// repairPass is as long as the attacher works on one volume in one pass (attach,
// repairStep): one that took so long may have left the rest to the next.
const repairPass = 5 * time.Second

// Repair is the attacher's, repeated as the plugin does, until a pass was not held up.
func (n *node) Repair(ctx context.Context) error {
	for range 60 {
		began := time.Now()
		if err := n.Attacher.Repair(ctx); err != nil || time.Since(began) < repairPass {
			return err
		}
	}
	return errors.New("repair comes to no end")
}

// runHydrations leads hydrations on until stop, which waits for their end.
func (n *node) runHydrations(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var both sync.WaitGroup
		both.Go(func() { n.Hydrations().Run(ctx) })
		both.Go(func() { n.Streams().Run(ctx) })
		both.Wait()
	}()
	return func() { cancel(); <-ended }
}
