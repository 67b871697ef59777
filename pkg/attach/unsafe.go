package attach

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The steps of "Dropped flushes" in states.md.

// startUnsafe has the top device end flushes. The journal says so first: an unclean stop from here on
// may have taken what was flushed.
func (a *Attacher) startUnsafe(ctx context.Context, e *state.Entry) error {
	began := !e.Unsafe
	if began {
		e.Unsafe = true
		if err := a.save(ctx, e, e.State); err != nil {
			return err
		}
		faultChangeUnsafe.Hit()
	}
	err := a.stack.SetFlushes(ctx, e.ID, false)
	switch {
	case !began: // it was told before
	case err != nil:
		a.report(ctx, e.ID, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonFlushesPassed, Warning: true, Message: fmt.Sprintf(
			"the kernel of node %s does not drop flushes, so that the volume is slower than mode %s asks for: %v", a.Node, volume.ModeWritebackUnsafe, err)})
	default:
		a.report(ctx, e.ID, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonFlushesDropped, Warning: true, Message: fmt.Sprintf(
			"mode %s on node %s: flushes end at the cache. A loss of power, or a crash of the kernel, loses any write since the last drain, in any order, and may leave a damaged filesystem", volume.ModeWritebackUnsafe, a.Node)})
	}
	return err
}

// endUnsafe makes durable what was not, and lets flushes through from then on.
func (a *Attacher) endUnsafe(ctx context.Context, e *state.Entry) error {
	if !e.Unsafe && e.Mode == volume.ModeWriteback {
		// Killed before the flush below, it would look as if nothing had been dropped.
		e.Unsafe = true
		if err := a.save(ctx, e, e.State); err != nil {
			return err
		}
	}
	if err := a.passNow(ctx, e); err != nil {
		return err
	}
	faultChangePassed.Hit()
	// The map of the cache is committed and the SSD flushed by it: until now neither was on request.
	if err := a.stack.SyncTop(ctx, e.ID, &a.flushes); err != nil {
		return err
	}
	e.Passed()
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	a.report(ctx, e.ID, volume.CacheReport{Cached: true, Reason: v1alpha1.ReasonCacheActive, Message: "the cache, whose flushes are passed on again, on node " + a.Node})
	return nil
}

// passFlushes comes before a flush that is a proof: a new table passes flushes by itself, and whoever
// depends on that asks for it.
func (a *Attacher) passFlushes(ctx context.Context, e *state.Entry) error {
	if !e.Unsafe {
		return nil
	}
	return a.passNow(ctx, e)
}

// passNow has a live device pass flushes on, if it does not: a kernel that cannot be told has never
// dropped one.
func (a *Attacher) passNow(ctx context.Context, e *state.Entry) error {
	top, found, err := a.stack.Top(ctx, e.ID)
	if err != nil || !found {
		return err
	}
	if drops, err := a.stack.DropsFlushes(top); err == nil && !drops {
		return nil
	}
	return a.stack.SetFlushes(ctx, e.ID, true)
}

// tellTorn says in the record that an unclean stop may have taken writes in any order.
func (a *Attacher) tellTorn(ctx context.Context, e *state.Entry) error {
	if !e.Torn {
		return nil
	}
	message := fmt.Sprintf(
		"node %s stopped uncleanly while it dropped the flushes of the volume (generation %d): writes may be missing, also flushed ones, while newer ones are there. What its SSD had is kept. Check the data, or make them anew",
		a.Node, e.Fence.Generation)
	err := a.Records.ReportTorn(ctx, e.ID, e.Fence, message)
	if errors.Is(err, volume.ErrFenced) || errors.Is(err, volume.ErrNotFound) {
		klog.FromContext(ctx).Info("Record of a volume with torn writes has another owner, or is gone", "volume", e.ID, "generation", e.Fence.Generation)
		err = a.tellTornRemade(ctx, e, message)
	}
	if err != nil {
		return fmt.Errorf("report the unclean stop of volume %s: %w", e.ID, err)
	}
	e.Torn = false
	return a.write(ctx, e) // its boot may be the one that stopped
}

// tellTornRemade says it in a record that was made anew meanwhile, before that hears Clean (takeBackRemade).
func (a *Attacher) tellTornRemade(ctx context.Context, e *state.Entry, message string) error {
	rec, err := a.findRecord(ctx, e.ID)
	if err != nil || rec == nil || !remade(*rec, e.Fence) {
		return err
	}
	return a.Records.ReportTorn(ctx, e.ID, rec.Fence, message)
}

// dropsFlushes looks whether the top device of a live cache ends flushes.
func (a *Attacher) dropsFlushes(ctx context.Context, e *state.Entry, top devmapper.Info) bool {
	drops, err := a.stack.DropsFlushes(top)
	if err != nil {
		klog.FromContext(ctx).Error(err, "It could not be told whether a volume drops flushes", "volume", e.ID)
	}
	return drops
}
