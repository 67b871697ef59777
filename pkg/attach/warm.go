package attach

import (
	"context"

	"github.com/nearflash/nearflash/pkg/attach/hotset"
	"github.com/nearflash/nearflash/pkg/attach/hydration"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/lease"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Lessor exports the caches of this node.
func (a *Attacher) Lessor() *lease.Lessor { return a.leases }

// HotSet records what this node's volumes read most.
func (a *Attacher) HotSet() *hotset.Recorder { return a.hotSets }

// Hydrations leads the copies of warm moves to their end.
func (a *Attacher) Hydrations() *hydration.Runner { return a.hydrations }

// warmHost is the Attacher as what exports and lists its caches sees it.
type warmHost struct{ *Attacher }

// TryLock implements lease.Host and hotset.Host.
func (h warmHost) TryLock(id volume.ID) (unlock func(), ok bool) { return h.Locks.TryLock(string(id)) }

// Entries implements state.Journal.
func (h warmHost) Entries() ([]state.Entry, error) { return h.Journal.List() }

// Entry implements state.Journal.
func (h warmHost) Entry(id volume.ID) (*state.Entry, error) { return h.load(id) }

// Settled implements lease.Host.
func (h warmHost) Settled(ctx context.Context, id volume.ID) (*state.Entry, error) {
	return h.loadSettled(ctx, id)
}

// Save implements state.Journal.
func (h warmHost) Save(ctx context.Context, e *state.Entry, s state.State) error {
	return h.save(ctx, e, s)
}

// Record implements lease.Host.
func (h warmHost) Record(ctx context.Context, id volume.ID) (volume.Volume, error) {
	return h.Records.Get(ctx, id)
}

// Wipe implements lease.Host.
func (h warmHost) Wipe(ctx context.Context, id volume.ID, e *state.Entry) error {
	return h.wipe(ctx, id, e)
}

// ReportWiped implements lease.Host.
func (h warmHost) ReportWiped(ctx context.Context, e *state.Entry) error {
	return h.reportRetainedCache(ctx, e, nil)
}

// Lock implements hydration.Host.
func (h warmHost) Lock(ctx context.Context, id volume.ID) (*state.Entry, func(), error) {
	return h.lockSettled(ctx, id)
}

// ReadMap implements hydration.Host.
func (h warmHost) ReadMap(id volume.ID) (*cachemap.Map, error) { return h.readMap(id) }

// LeavePeer implements hydration.Host.
func (h warmHost) LeavePeer(ctx context.Context, e *state.Entry) { h.leavePeer(ctx, e) }

// Drop implements hydration.Host.
func (h warmHost) Drop(ctx context.Context, e *state.Entry, o volume.MoveOutcome, message string) {
	h.dropHydration(ctx, e, o, message)
}

// flushesOf returns the flushes that the disks of the volume's origin have counted. Not all count, and
// nothing depends on it.
func (a *Attacher) flushesOf(ctx context.Context, e *state.Entry) (n uint64, known bool) {
	parts, err := a.stack.Parts(ctx, e.ID)
	origin, found := parts[layout.Origin]
	if err != nil || !found {
		return 0, false
	}
	n, err = blockdev.Flushes(a.Sysfs, origin.DevNo())
	return n, err == nil
}

// topOf returns the number of the volume's top device, "" if there is none.
func (a *Attacher) topOf(ctx context.Context, id volume.ID) (devno string, err error) {
	parts, err := a.stack.Parts(ctx, id)
	if top, found := parts[layout.Top]; found {
		devno = top.DevNo()
	}
	return devno, err
}

// RunSizes counts reads by size until ctx ends, for Reuse.
func (a *Attacher) RunSizes(ctx context.Context) { a.heats.RunSizes(ctx) }

// Reuse returns what is known of how an attached volume reads again what it has read; found is false
// before the first look.
func (a *Attacher) Reuse(id volume.ID) (s reuse.Summary, found bool) { return a.heats.Reuse(id) }
