package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The steps of "A freeze" in states.md.
const (
	// cutFreeze asks the node for a frozen filesystem.
	cutFreeze cutStep = "Freeze"
	// cutAwaitFreeze: the node is at it.
	cutAwaitFreeze cutStep = "AwaitFreeze"
	// cutThaw says that the volume was cut.
	cutThaw cutStep = "Thaw"
	// cutUnfrozen ends the hold and drops the cut: the filesystem was not frozen all the time.
	cutUnfrozen cutStep = "Unfrozen"
)

const (
	// freezePoll is the pause between two looks while a filesystem is being frozen, or is.
	freezePoll = 100 * time.Millisecond
	// freezePatience is how long the node is waited for: it writes the filesystem out first.
	freezePatience = 20 * time.Second
	// thawPatience is how long it is waited for then: a freeze has its end.
	thawPatience = 10 * time.Second
	// frozenSteps are the looks at a cut that is in work while a freeze lasts.
	frozenSteps = 60
)

// report is what the node has said of the freeze of this hold, "" if it has said nothing.
func (f cutFacts) report() volume.FreezeState {
	if r := f.Record; r == nil || r.Hold == nil || r.Freeze.Token != r.Hold.Token {
		return ""
	}
	return f.Record.Freeze.State
}

// decideFrozen decides for a volume whose node was asked for a freeze. The cut, if there is one,
// is of this hold.
func decideFrozen(f cutFacts) cutStep {
	c, r, report := f.Cut, f.Record, f.report()
	done := c != nil && c.Done && c.Filesystem == f.Filesystem
	switch {
	case !r.Published:
		return cutUnfrozen
	case r.Hold.Freeze == volume.FreezeAsked && report == "" && c == nil:
		return cutAwaitFreeze
	case r.Hold.Freeze == volume.FreezeAsked && report == volume.FreezeFrozen && (c == nil || !c.Done):
		return cutCut
	case r.Hold.Freeze == volume.FreezeAsked && report == volume.FreezeFrozen && done:
		return cutThaw
	case r.Hold.Freeze == volume.FreezeOver && report == volume.FreezeFrozen && done:
		return cutAwaitFreeze
	case r.Hold.Freeze == volume.FreezeOver && report == volume.FreezeHeld && done:
		return cutAccept
	}
	return cutUnfrozen
}

// takeFreezeStep takes one step of a freeze.
func (s *Service) takeFreezeStep(ctx context.Context, c *cutting, step cutStep) error {
	switch step {
	case cutFreeze:
		return s.askFreeze(ctx, c, v1alpha1.FreezeRequestFreeze)
	case cutThaw:
		return s.askFreeze(ctx, c, v1alpha1.FreezeRequestThaw)
	case cutAwaitFreeze:
		return s.awaitFreeze(ctx, c)
	default:
		return s.unfrozen(ctx, c, "")
	}
}

// askFreeze writes a request, unless the hold is over. What the node reports at the same time
// does not stop it: a freeze has no time for another call.
func (s *Service) askFreeze(ctx context.Context, c *cutting, what v1alpha1.FreezeRequest) error {
	token := c.facts.Record.Hold.Token
	return records.UpdateObject(ctx, s.client, c.of, func(obj *v1alpha1.CachedVolume) error {
		if h := obj.Spec.Hold; h != nil && h.Token == token {
			h.Freeze = what
		}
		return nil
	})
}

// awaitFreeze waits for the node, or takes the freeze back.
func (s *Service) awaitFreeze(ctx context.Context, c *cutting) error {
	why, err := s.awaitNode(ctx, c)
	if why != "" {
		return s.unfrozen(context.WithoutCancel(ctx), c, why)
	}
	return err
}

// awaitNode waits until the node says something else than at the last look, or says why nobody
// waits any more. A filesystem is frozen for seconds, so that no other call could come in time.
func (s *Service) awaitNode(ctx context.Context, c *cutting) (why string, err error) {
	patience := freezePatience
	if c.facts.Record.Hold.Freeze == volume.FreezeOver {
		patience = thawPatience
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		v, err := s.Get(wait, c.of)
		if err == nil && (v.Hold == nil || *v.Hold != *c.facts.Record.Hold || v.Published != c.facts.Record.Published || v.Freeze != c.facts.Record.Freeze) {
			return "", nil
		}
		if err == nil {
			err = passes.Pause(wait, s.freezePoll)
		}
		if err != nil && wait.Err() != nil {
			return fmt.Sprintf("node %s has not answered in %s", c.facts.Record.Fence.Node, patience), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// unfrozen ends the hold, so that the volume is not kept in writethrough mode until the next call,
// and drops what was cut under it. The hold first: an order of a call that has ended may cut once
// more after the drop, and the node may have said Held by then.
func (s *Service) unfrozen(ctx context.Context, c *cutting, why string) error {
	r := c.facts.Record
	ctx, cancel := context.WithTimeout(ctx, freezePatience)
	defer cancel()
	if c.facts.report() == volume.FreezeFailed {
		why = r.Freeze.Message
	}
	var dropped error
	ended := records.EndHold(ctx, s.client, c.of, func(h volume.Hold) bool { return h.Token == r.Hold.Token })
	if ended == nil && c.facts.Cut != nil {
		dropped = s.dropCut(ctx, c)
	}
	return errors.Join(ended, dropped, fmt.Errorf("%w: volume %s was not cut for %s, because its filesystem was not frozen on node %s all the time: %s",
		volume.ErrBusy, c.of, c.name, r.Fence.Node, cmp.Or(why, "it was attached, detached or formatted meanwhile")))
}
