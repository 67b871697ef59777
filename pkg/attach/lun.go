package attach

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// lunStep is what becomes of a cache when its origin shows another identity than when
// the cache became active.
type lunStep string

const (
	lunSame   lunStep = "Same"
	lunCold   lunStep = "Cold"
	lunRefuse lunStep = "Refuse"
)

// decideLUN is the table "The same LUN" of states.md. known is what the journal has, now
// what the LUN says of itself; both may be empty.
// abandoned tells that the unflushed writes of the cache need not be flushed.
func decideLUN(plan cachePlan, abandoned bool, known, now string) lunStep {
	switch {
	case known == "" || known == now:
		return lunSame
	case plan == planRecover && !abandoned:
		return lunRefuse
	case plan == planReuse, plan == planRecover:
		return lunCold
	}
	return lunSame
}

// otherLUN is the error of a LUN that must not get what another one lacks.
func otherLUN(e *state.Entry, node, now string) error {
	return fmt.Errorf("%w: node %s holds unflushed writes of volume %s for the LUN %q, and its address leads to %q now: bring that LUN back; or, if this one is what the volume is to have, give the writes up with `kubectl nearflash abandon cvol/%s --accept-data-loss --force`",
		volume.ErrFenced, node, e.ID, e.WWID, now, e.ID)
}

// checkLUNIdentity compares the connected origin with the one that the cache, or what a peer
// exports, belongs to.
func (a *Attacher) checkLUNIdentity(ctx context.Context, s *staging) error {
	e, now := s.entry, s.origin.WWID
	switch decideLUN(s.plan.Cache, s.abandoned(), e.WWID, now) {
	case lunRefuse:
		return errors.Join(otherLUN(e, a.Node, now), a.stack.RemoveDevices(ctx, e.ID), a.disconnect(ctx, e))
	case lunCold:
		why := fmt.Sprintf("the volume's address leads to the LUN %q now, and the cache on node %s is of %q: it is discarded", now, a.Node, e.WWID)
		klog.FromContext(ctx).Info("Origin was replaced", "volume", e.ID, "was", e.WWID, "is", now)
		if err := a.startCold(ctx, s, "the origin was replaced"); err != nil {
			return err
		}
		a.report(ctx, e.ID, volume.CacheReport{Reason: v1alpha1.ReasonOriginReplaced, Warning: true, Message: why})
	case lunSame:
	}
	e.WWID = now
	if exported := s.seed.lease.WWID; (s.seed.peer != nil || s.seed.list != nil) && exported != "" && exported != now {
		return a.undoHydration(ctx, s, fmt.Errorf("%w: the exported cache is of the LUN %q, this one is %q", volume.ErrUnavailable, exported, now))
	}
	return nil
}

// startCold has the stage begin with an empty cache instead of the one that there is. The
// journal forgets that first.
func (a *Attacher) startCold(ctx context.Context, s *staging, why string) error {
	e := s.entry
	if err := a.stack.RemoveUpper(ctx, e.ID); err != nil {
		return err
	}
	s.plan.Cache, s.plan.Mode, s.plan.Warm, s.cache, s.plannedFor, s.data = planCreate, e.Mode, nil, ssd.Cache{}, 0, ""
	a.dropHydration(ctx, e, volume.MoveEnded, why)
	e.Anew()
	e.Checked = a.Pool.View().Integrity
	if err := a.save(ctx, e, state.Staging); err != nil {
		return err
	}
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	if err := a.ssd.Remove(cctx, e.ID); err != nil {
		return a.fallBack(ctx, s, err)
	}
	return nil
}
