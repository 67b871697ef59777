package attach

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/volume"
)

// fromReader is a hydration that is to begin from another reader.
func fromReader(from volume.WarmSource) *state.Hydration {
	return &state.Hydration{From: &from, Stream: &state.Stream{}}
}

// askReaders asks the other nodes that read the volume for what they have of it, until one sends it
// (states.md, Readers). It reports whether one does.
func (a *Attacher) askReaders(ctx context.Context, s *staging) bool {
	for i, from := range s.plan.Warm.Readers {
		err := s.update(func(e *state.Entry) error {
			if i == 0 {
				return nil // the intent has it
			}
			e.Hydration = fromReader(from)
			return a.save(ctx, e, e.State)
		})
		if err == nil {
			err = a.importStream(ctx, s, &warmPlan{Peer: &from, Method: volume.MethodStream, Reason: "node " + from.Node + " reads the volume, and uses its cache itself"})
		}
		if err == nil {
			return true
		}
		a.endImport(ctx, s, from.Node, err)
		if ctx.Err() != nil || errors.Is(err, errNotReady) {
			return false
		}
	}
	return false
}

// awaitReader waits for another reader's list as long again as the pod has waited until the origin was
// connected, within the bounds of the maps of a stream.
func (a *Attacher) awaitReader(ctx context.Context, s *staging, done <-chan struct{}) {
	ctx, end := a.whileWorthIt(ctx, s)
	defer end()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// endSent ends what is sent of a volume's cache. What is read for another reader may wait for paths that
// never come back: the storage server has shut this node out then.
func (a *Attacher) endSent(ctx context.Context, e *state.Entry) error {
	err := a.leases.End(ctx, e)
	if err == nil || e == nil || !e.ReadOnly {
		return err
	}
	// The time of the call went to the device.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	if !a.shutOut(ctx, e) {
		return err
	}
	return errors.Join(err, a.stack.FailPaths(ctx, e.ID))
}

// loadHot is the volume's hot set, nil if it cannot be had.
func (a *Attacher) loadHot(ctx context.Context, s *staging) *cachemap.HotSet {
	h, err := a.hotSets.Load(ctx, s.req)
	switch {
	case errors.Is(err, volume.ErrNotFound):
	case err != nil:
		klog.FromContext(ctx).Error(err, "Hot set cannot be had", "volume", s.req.ID)
	default:
		return h
	}
	return nil
}
