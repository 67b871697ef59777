package attach

import (
	"context"
	"slices"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// DirtyLimits returns what keeps this node's volumes within their dirty limits.
func (a *Attacher) DirtyLimits() *dirtylimit.Keeper { return a.dirtyLimits }

// limitHost is the Attacher as the keeper of dirty limits sees it.
type limitHost struct{ *Attacher }

// Limited implements dirtylimit.Host.
func (h limitHost) Limited(ctx context.Context) ([]dirtylimit.Volume, error) {
	records, err := h.Owned.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []dirtylimit.Volume
	for _, rec := range records {
		l := rec.Spec.DirtyLimit
		if l.IsZero() || rec.Asked() != volume.ModeWriteback || !rec.Published {
			continue
		}
		e, err := h.load(rec.ID)
		if err != nil || !takesWrites(e, rec.Fence) {
			continue // the repair speaks of a journal that cannot be read
		}
		out = append(out, dirtylimit.Volume{
			ID: rec.ID, Fence: rec.Fence, Bytes: l.Bytes(e.DataBytes), Age: l.Age, Recovered: e.Recovered,
			Flushing: rec.FlushPending() && e.FlushDone != rec.FlushRequest,
		})
	}
	return out, nil
}

// takesWrites tells an entry whose cache takes writes that the origin does not have.
func takesWrites(e *state.Entry, f volume.Fence) bool {
	return e != nil && e.State == state.Staged && e.Mode == volume.ModeWriteback && e.Fence == f && e.Lost == nil
}

// DirtySince implements dirtylimit.Host.
func (h limitHost) DirtySince(ctx context.Context, id volume.ID) time.Time {
	if h.Meter == nil {
		return time.Time{}
	}
	return h.Meter.DirtySince(ctx, id)
}

// SwapTo implements dirtylimit.Host.
func (h limitHost) SwapTo(ctx context.Context, id volume.ID, f volume.Fence, to dirtylimit.Level) (done bool, err error) {
	e, unlock, err := h.lockSettled(ctx, id)
	defer unlock()
	if err != nil || !takesWrites(e, f) {
		return false, err
	}
	switch to {
	case dirtylimit.Writethrough:
		err = h.swapTo(ctx, e, devmapper.Writethrough, devmapper.PolicySMQ, h.stack.QuickCount)
	case dirtylimit.Draining:
		err = h.swapTo(ctx, e, devmapper.Writethrough, devmapper.PolicyCleaner, h.stack.QuickCount)
		if e.Recovered {
			h.poll() // the change makes the cache anew
		}
	case dirtylimit.Writeback:
		if cleans, err := h.cleans(ctx, e); err != nil || cleans {
			return false, err
		}
		err = h.restore(ctx, e)
	}
	faultDirtyLimitSwapped.Hit()
	return err == nil, err
}

// cleans reports whether a change of the attached volume flushes its cache, which has given
// back the lock and waits: blocks that become dirty meanwhile would put off its end.
func (h limitHost) cleans(ctx context.Context, e *state.Entry) (bool, error) {
	records, err := h.Owned.List(ctx)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(records, func(v volume.Volume) bool { return v.ID == e.ID })
	if i < 0 {
		return false, nil
	}
	f, err := h.changeOf(ctx, e, records[i])
	return decideChange(f) == changeClean, err
}
