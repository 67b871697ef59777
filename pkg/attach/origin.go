package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// connect attaches the origin and, for several paths, joins them.
func (a *Attacher) connect(ctx context.Context, s *staging) (stack.Origin, error) {
	e := s.entry
	o, err := a.Transport.Connect(ctx, transport.Target{Source: e.Source}, s.req.Credentials)
	// iscsid repeats a login to a target that is not there until its time is up.
	if (errors.Is(err, transport.ErrNoTarget) || errors.Is(err, transport.ErrUnreachable)) && !e.Static {
		return stack.Origin{}, fmt.Errorf("%w: %s does not answer, or admits node %s to volume %s under generation %d no more (if that stays, publish the volume anew): %w",
			volume.ErrUnavailable, e.Source.Server(), a.Node, e.ID, e.Fence.Generation, err)
	}
	if err != nil {
		return stack.Origin{}, transportError(err)
	}
	if err := checkLUN(e, o); err != nil {
		// Nothing of the volume may be used here: neither is the session kept.
		return stack.Origin{}, errors.Join(err, a.leaveOrigin(ctx, s))
	}
	if err := a.reserve(ctx, s, o); err != nil {
		return stack.Origin{}, errors.Join(err, a.leaveOrigin(ctx, s))
	}
	return a.stack.JoinPaths(ctx, e, o)
}

// unfenced says why a volume is never writeback whose origin nothing fences: the controller refuses
// that mode, but for a record that somebody has changed meanwhile.
func unfenced(src volume.Source) string {
	return src.Server() + " has no detach that keeps a lost node from writing, and spec.origin.withoutFence of the CachedVolume does not accept that: writes go through"
}

// leaveOrigin ends the session of a stage that fails, while the hydration may journal the entry.
func (a *Attacher) leaveOrigin(ctx context.Context, s *staging) error {
	var e state.Entry
	_ = s.update(func(shared *state.Entry) error { e = *shared; return nil })
	err := a.disconnect(ctx, &e)
	return errors.Join(err, s.update(func(shared *state.Entry) error { shared.Reserved = e.Reserved; return nil }))
}

// checkLUN compares the ownership with what the storage server has last exported
// the LUN for (states.md, A record that is older than the truth).
func checkLUN(e *state.Entry, o transport.Origin) error {
	if e.Static {
		return nil // somebody else's server, or a LUN that is exported by hand
	}
	if g, since := volume.GivenSince(o.Products, e.Fence.Generation); since {
		return fmt.Errorf("%w: the storage server has given volume %s away under generation %d since generation %d (was the record restored from a backup?): publish the volume anew",
			volume.ErrFenced, e.ID, g, e.Fence.Generation)
	}
	return nil
}

// reconnect attaches the origin of an entry without a request: the node
// database of the initiator still has the credentials.
func (a *Attacher) reconnect(ctx context.Context, e *state.Entry) (stack.Origin, error) {
	o, err := a.Transport.Connect(ctx, transport.Target{Source: e.Source}, nil)
	if err != nil {
		return stack.Origin{}, transportError(err)
	}
	if err := checkLUN(e, o); err != nil {
		return stack.Origin{}, err
	}
	if err := a.reserveAgain(ctx, e, o); err != nil {
		return stack.Origin{}, err
	}
	return a.stack.JoinPaths(ctx, e, o)
}

// lookupOrigin finds the origin of an active volume without changing anything.
func (a *Attacher) lookupOrigin(ctx context.Context, id volume.ID, src volume.Source) (stack.Origin, error) {
	o, found, err := a.Transport.Lookup(ctx, transport.Target{Source: src})
	if err != nil {
		return stack.Origin{}, transportError(err)
	}
	if !found {
		return stack.Origin{}, fmt.Errorf("%w: volume %s is active but its origin (%s) is gone", volume.ErrUnavailable, id, src)
	}
	infos, err := a.DM.Info(ctx, layout.Device(id, layout.Origin))
	if err != nil {
		return stack.Origin{}, err
	}
	info, ok := infos[layout.Device(id, layout.Origin)]
	if !ok && len(o.Paths) == 1 {
		return stack.Over(o.DevNos[0], o.Paths[0], o), nil // attached by a version that had no device over one path
	}
	if !ok {
		return stack.Origin{}, fmt.Errorf("%w: volume %s is attached but has no device %s", volume.ErrUnavailable, id, layout.Device(id, layout.Origin))
	}
	return stack.Over(info.DevNo(), info.DevPath(), o), nil
}
