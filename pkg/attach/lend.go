package attach

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ volume.Lender = (*Attacher)(nil)

// Lend implements volume.Lender; it is the table "What the lender does" of
// states.md.
func (a *Attacher) Lend(ctx context.Context, r volume.LoanRequest) (volume.Loan, error) {
	unlock, ok := a.Locks.TryLock(string(r.Volume))
	if !ok {
		return volume.Loan{}, fmt.Errorf("%w: volume %s", volume.ErrBusy, r.Volume)
	}
	defer unlock()
	e, err := a.load(r.Volume)
	if err != nil {
		return volume.Loan{}, err
	}
	rec, err := a.Records.Get(ctx, r.Volume)
	if err != nil {
		return volume.Loan{}, err
	}
	if err := lendable(e, rec, r, a.Boot); err != nil {
		return volume.Loan{}, err
	}
	if e.Lent != nil && *e.Lent != r.Move {
		if err := a.endLoan(ctx, e); err != nil {
			return volume.Loan{}, err
		}
	}
	return a.lend(ctx, e, r)
}

// lendable says why a residency may not be lent, nil if it may.
func lendable(e *Entry, rec volume.Volume, r volume.LoanRequest, boot string) error {
	switch want := (volume.Fence{UID: r.UID, Generation: r.Generation + 1, Node: r.To}); {
	case e == nil || e.State != StateResident || e.Fill != nil || !e.Clean || e.Fence.UID != r.UID || e.Fence.Generation != r.Generation:
		return fmt.Errorf("%w: no clean cache of volume %s, generation %d, is kept here", volume.ErrNotFound, r.Volume, r.Generation)
	case rec.Fence != want || !rec.Published:
		return fmt.Errorf("%w: volume %s is at generation %d with owner %q; the cache of generation %d is for the owner after it, and node %q asks",
			volume.ErrFenced, r.Volume, rec.Fence.Generation, rec.Fence.Node, r.Generation, r.To)
	case e.Lent != nil && *e.Lent == r.Move && e.Boot != boot:
		return fmt.Errorf("%w: the loan was lost when this node restarted", volume.ErrUnavailable)
	}
	return nil
}

// lend exports the cache: metadata, then data, as one device.
func (a *Attacher) lend(ctx context.Context, e *Entry, r volume.LoanRequest) (volume.Loan, error) {
	again := e.Lent != nil
	e.Lent = &r.Move
	if err := a.save(ctx, e, StateResident); err != nil {
		return volume.Loan{}, err
	}
	faultLendJournaled.Hit()
	c, err := a.findCache(ctx, e.ID)
	if err != nil {
		return volume.Loan{}, err
	}
	if !c.facts.Whole || c.facts.Fence != e.Fence || !c.facts.SuperblockClean {
		return volume.Loan{}, fmt.Errorf("%w: the cache of volume %s is not whole and clean on the SSD", volume.ErrNotFound, e.ID)
	}
	meta, data := uint64(c.meta.SizeBytes)/sectorSize, uint64(e.DataBytes)/sectorSize
	dev, err := a.lentDevice(ctx, e, again, devmapper.Table{
		{Length: meta, Target: devmapper.LinearTarget{Device: c.meta.DevNo()}},
		{Start: meta, Length: data, Target: devmapper.LinearTarget{Device: c.data.DevNo()}},
	})
	if err != nil {
		return volume.Loan{}, err
	}
	faultLendDevice.Hit()
	export, err := a.Exporter.Export(ctx, string(e.ID), dev.DevPath(), r.Initiator, r.Credentials)
	if err != nil {
		return volume.Loan{}, fmt.Errorf("%w: export of the cache of volume %s: %w", volume.ErrUnavailable, e.ID, err)
	}
	faultLendExported.Hit()
	klog.FromContext(ctx).Info("Cache lent", "volume", e.ID, "generation", e.Fence.Generation, "to", r.To, "move", r.Move.Name)
	return volume.Loan{
		Move: r.Move, Source: export, ChunkSectors: e.ChunkSectors, MetaBytes: c.meta.SizeBytes, DataBytes: e.DataBytes,
	}, nil
}

// lentDevice makes the device that is exported. One of the same loan is kept: a
// session may be using it.
func (a *Attacher) lentDevice(ctx context.Context, e *Entry, again bool, t devmapper.Table) (devmapper.Info, error) {
	name, uuid := lentName(e.ID), dmUUID(e.Fence, "lent")
	if again {
		infos, err := a.DM.Info(ctx, name)
		if err != nil {
			return devmapper.Info{}, err
		}
		if dev, found := infos[name]; found && dev.HasLive && dev.UUID == uuid {
			return dev, nil
		}
	}
	return a.ensureDevice(ctx, name, uuid, t)
}

// Reclaim implements volume.Lender.
func (a *Attacher) Reclaim(ctx context.Context, id volume.ID, m volume.MoveID) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return fmt.Errorf("%w: volume %s", volume.ErrBusy, id)
	}
	defer unlock()
	e, err := a.load(id)
	if err != nil || e == nil || e.Lent == nil || *e.Lent != m {
		return err
	}
	if err := a.endLoan(ctx, e); err != nil {
		return err
	}
	if e.State != StateResident {
		return nil
	}
	a.discardBlocks(ctx, e)
	if err := a.wipe(ctx, id, e); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Lent cache given up", "volume", id, "generation", e.Fence.Generation, "move", m.Name)
	if err := a.Records.SetResidency(ctx, id, a.Node, nil); err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	return nil
}

// endLoan ends the export. The cache stays.
func (a *Attacher) endLoan(ctx context.Context, e *Entry) error {
	if e == nil || e.Lent == nil {
		return nil
	}
	if a.Exporter != nil {
		if err := a.Exporter.Unexport(ctx, string(e.ID)); err != nil {
			return fmt.Errorf("end of the loan of volume %s: %w", e.ID, err)
		}
	}
	faultReclaimExport.Hit()
	if err := a.DM.Remove(ctx, lentName(e.ID)); err != nil {
		return err
	}
	faultReclaimDevice.Hit()
	e.Lent = nil
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultReclaimJournal.Hit()
	return nil
}

// discardBlocks tells the SSD that the cache's blocks hold nothing any more. An SSD
// that cannot be told is no reason to keep the cache.
func (a *Attacher) discardBlocks(ctx context.Context, e *Entry) {
	c, err := a.findCache(ctx, e.ID)
	if err == nil && c.facts.Whole {
		err = blockdev.Discard(ctx, c.data.DevPath(), [][2]uint64{{0, uint64(c.data.SizeBytes)}})
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cache was not discarded on the SSD", "volume", e.ID, "reason", err.Error())
	}
}

// Loans implements volume.Lender.
func (a *Attacher) Loans(context.Context) (map[volume.ID]volume.MoveID, error) {
	entries, err := a.Journal.List()
	if err != nil {
		return nil, err
	}
	out := map[volume.ID]volume.MoveID{}
	for i := range entries {
		// A loan of an earlier boot was lost with it.
		if e := &entries[i]; e.Lent != nil && e.Boot == a.Boot {
			out[e.ID] = *e.Lent
		}
	}
	return out, nil
}
