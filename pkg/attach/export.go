package attach

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

var _ volume.Lessor = (*Attacher)(nil)

// Export implements volume.Lessor; it is the table "What the source node does" of
// states.md.
func (a *Attacher) Export(ctx context.Context, r volume.LeaseRequest) (volume.Lease, error) {
	unlock, ok := a.Locks.TryLock(string(r.Volume))
	if !ok {
		return volume.Lease{}, fmt.Errorf("%w: volume %s", volume.ErrBusy, r.Volume)
	}
	defer unlock()
	e, err := a.loadSettled(ctx, r.Volume)
	if err != nil {
		return volume.Lease{}, err
	}
	rec, err := a.Records.Get(ctx, r.Volume)
	if err != nil {
		return volume.Lease{}, err
	}
	live := r.Purpose == volume.PurposePrewarm
	if live {
		err = exportableLive(e, rec, r, a.Node)
	} else {
		err = exportable(e, rec, r, a.Boot)
	}
	if err != nil {
		return volume.Lease{}, err
	}
	if e.Exported != nil && *e.Exported != r.Move {
		if err := a.endLease(ctx, e); err != nil {
			return volume.Lease{}, err
		}
	}
	if live {
		return a.exportLive(ctx, e, r)
	}
	return a.exportCache(ctx, e, r)
}

// exportable says why a retained cache may not be exported, nil if it may.
func exportable(e *state.Entry, rec volume.Volume, r volume.LeaseRequest, boot string) error {
	switch want := (volume.Fence{UID: r.UID, Generation: r.Generation + 1, Node: r.To}); {
	case e == nil || e.State != state.Retained || e.Hydration != nil || !e.Clean || e.Fence.UID != r.UID || e.Fence.Generation != r.Generation:
		return fmt.Errorf("%w: no clean cache of volume %s, generation %d, is kept here", volume.ErrNotFound, r.Volume, r.Generation)
	case rec.Fence != want || !rec.Published:
		return fmt.Errorf("%w: volume %s is at generation %d with owner %q; the cache of generation %d is for the owner after it, and node %q asks",
			volume.ErrFenced, r.Volume, rec.Fence.Generation, rec.Fence.Node, r.Generation, r.To)
	case e.Exported != nil && *e.Exported == r.Move && e.Boot == boot:
		return nil // it was judged when it was exported; the destination has begun since
	case rec.Identify(e.Activation()) != volume.IdentityCurrent && !bugTrustNodeName.On():
		return fmt.Errorf("%w: the cache of volume %s on this node is not of the volume's last stage here", volume.ErrNotFound, r.Volume)
	case e.Exported != nil && *e.Exported == r.Move && e.Boot != boot:
		return fmt.Errorf("%w: the lease was lost when this node restarted", volume.ErrUnavailable)
	}
	return nil
}

// exportCache exports the cache: metadata, then data, as one device.
func (a *Attacher) exportCache(ctx context.Context, e *state.Entry, r volume.LeaseRequest) (volume.Lease, error) {
	again := e.Exported != nil
	e.Exported = &r.Move
	if err := a.save(ctx, e, state.Retained); err != nil {
		return volume.Lease{}, err
	}
	faultExportJournaled.Hit()
	c, err := a.ssd.Find(ctx, e.ID)
	if err != nil {
		return volume.Lease{}, err
	}
	if !c.Facts.Whole || !sameCache(e, c.Facts) || !c.Facts.SuperblockClean || !stopProven(e, c.Facts) {
		return volume.Lease{}, fmt.Errorf("%w: the cache of volume %s is not whole and clean on the SSD", volume.ErrNotFound, e.ID)
	}
	lease, err := a.export(ctx, e, c, r, again, false)
	if err != nil {
		return lease, err
	}
	lease.Tracked = e.Tracked
	klog.FromContext(ctx).Info("Cache exported", "volume", e.ID, "generation", e.Fence.Generation, "to", r.To, "move", r.Move.Name)
	return lease, nil
}

// export makes one device of metadata and data, and serves it. again tells that the
// same lease may have been given before, live that the cache is in use.
func (a *Attacher) export(ctx context.Context, e *state.Entry, c ssd.Cache, r volume.LeaseRequest, again, live bool) (volume.Lease, error) {
	dev, err := a.stack.ExportedDevice(ctx, e, again, func() (devmapper.Table, error) { return a.exportedTable(ctx, e, c, live) })
	if err != nil {
		return volume.Lease{}, err
	}
	faultExportDevice.Hit()
	export, err := a.Exporter.Export(ctx, string(e.ID), dev.DevPath(), r.Initiator, r.Credentials)
	if err != nil {
		return volume.Lease{}, fmt.Errorf("%w: export of the cache of volume %s: %w", volume.ErrUnavailable, e.ID, err)
	}
	faultExportExported.Hit()
	return volume.Lease{
		Move: r.Move, Source: export, ChunkSectors: e.ChunkSectors, MetaBytes: c.Meta.SizeBytes, DataBytes: c.Data.SizeBytes, WWID: e.WWID,
	}, nil
}

// exportedTable is metadata, then data. Of the data of a retained cache only what its map names
// is shown (states.md, What the source node does). The map of a cache in use changes, and
// what is cached while somebody reads it must be seen.
func (a *Attacher) exportedTable(ctx context.Context, e *state.Entry, c ssd.Cache, live bool) (devmapper.Table, error) {
	meta, data, devno := uint64(c.Meta.SizeBytes)/sectorSize, uint64(c.Data.SizeBytes)/sectorSize, c.Data.DevNo()
	t := devmapper.Table{{Length: meta, Target: devmapper.LinearTarget{Device: c.Meta.DevNo()}}}
	switch {
	case live:
		return append(t, devmapper.Line{Start: meta, Length: data, Target: devmapper.LinearTarget{Device: devno}}), nil
	case e.Full:
		return append(t, cachemap.ShownFull(devno, meta, data, e.ChunkSectors)...), nil
	case a.Tools == nil:
		return nil, fmt.Errorf("%w: the map of volume %s cannot be read without its tools", volume.ErrUnavailable, e.ID)
	}
	m, err := a.retainedMap(ctx, e, c)
	if err != nil {
		return nil, fmt.Errorf("%w: map of volume %s: %w", volume.ErrUnavailable, e.ID, err)
	}
	return append(t, m.Shown(devno, meta, data)...), nil
}

// retainedMap reads the map of a retained cache.
func (a *Attacher) retainedMap(ctx context.Context, e *state.Entry, c ssd.Cache) (m *cachemap.Map, err error) {
	text := filepath.Join(a.Warm.Dir, string(e.ID)+".hot")
	defer func() { err = errors.Join(err, removeFiles(text)) }()
	if err := a.Tools.Dump(ctx, c.Meta.DevPath(), text); err != nil {
		return nil, err
	}
	m, err = readMapFile(text)
	if err == nil && m.ChunkSectors != e.ChunkSectors {
		err = fmt.Errorf("it has chunks of %d sectors, the journal says %d", m.ChunkSectors, e.ChunkSectors)
	}
	return m, err
}

// Release implements volume.Lessor.
func (a *Attacher) Release(ctx context.Context, id volume.ID, m volume.MoveID) error {
	return a.endLeaseOf(ctx, id, m, func(e *state.Entry) error {
		if e.State != state.Retained {
			return nil
		}
		// First: a retained cache that was discarded would be exported again, as zeroes.
		if err := a.save(ctx, e, state.Wiping); err != nil {
			return err
		}
		faultReleaseWiping.Hit()
		a.discardBlocks(ctx, e)
		faultReleaseDiscarded.Hit()
		if err := a.wipe(ctx, id, e); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Exported cache given up", "volume", id, "generation", e.Fence.Generation, "move", m.Name)
		return a.reportRetainedCache(ctx, e, nil)
	})
}

// EndLease implements volume.Lessor.
func (a *Attacher) EndLease(ctx context.Context, id volume.ID, m volume.MoveID) error {
	return a.endLeaseOf(ctx, id, m, func(*state.Entry) error { return nil })
}

// endLeaseOf ends the lease of one move, and does what follows under the same lock. A
// lease of another move, or none, is left alone.
func (a *Attacher) endLeaseOf(ctx context.Context, id volume.ID, m volume.MoveID, then func(*state.Entry) error) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return fmt.Errorf("%w: volume %s", volume.ErrBusy, id)
	}
	defer unlock()
	e, err := a.loadSettled(ctx, id)
	if err != nil || e == nil || e.Exported == nil || *e.Exported != m {
		return err
	}
	if err := a.endLease(ctx, e); err != nil {
		return err
	}
	return then(e)
}

// InUse implements volume.Lessor.
func (a *Attacher) InUse(ctx context.Context, id volume.ID) (bool, error) {
	if a.Exporter == nil {
		return false, nil
	}
	return a.Exporter.InUse(ctx, string(id))
}

// endLease ends the export. The cache stays.
func (a *Attacher) endLease(ctx context.Context, e *state.Entry) error {
	if e == nil || e.Exported == nil {
		return nil
	}
	if a.Exporter != nil {
		if err := a.Exporter.Unexport(ctx, string(e.ID)); err != nil {
			return fmt.Errorf("end of the lease of volume %s: %w", e.ID, err)
		}
	}
	faultReleaseExport.Hit()
	if err := a.stack.Remove(ctx, e.ID, layout.Exported); err != nil {
		return err
	}
	faultReleaseDevice.Hit()
	e.Exported = nil
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultReleaseJournal.Hit()
	return nil
}

// discardBlocks tells the SSD that the cache's blocks hold nothing any more. An SSD
// that cannot be told is no reason to keep the cache.
func (a *Attacher) discardBlocks(ctx context.Context, e *state.Entry) {
	c, err := a.ssd.Find(ctx, e.ID)
	if err == nil && c.Facts.Whole {
		err = a.Blocks.Discard(ctx, c.Data.DevPath(), [][2]uint64{{0, uint64(c.Data.SizeBytes)}})
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cache was not discarded on the SSD", "volume", e.ID, "reason", err.Error())
	}
}

// Leases implements volume.Lessor.
func (a *Attacher) Leases(context.Context) (map[volume.ID]volume.MoveID, error) {
	entries, err := a.Journal.List()
	if err != nil {
		return nil, err
	}
	out := map[volume.ID]volume.MoveID{}
	for i := range entries {
		if m, served := a.serves(&entries[i]); served {
			out[entries[i].ID] = m
		}
	}
	return out, nil
}

// Lease implements volume.Lessor.
func (a *Attacher) Lease(_ context.Context, id volume.ID) (volume.MoveID, bool, error) {
	e, err := a.load(id)
	if err != nil || e == nil {
		return volume.MoveID{}, false, err
	}
	m, served := a.serves(e)
	return m, served, nil
}

// serves returns the lease of an entry. One of an earlier boot was lost with it.
func (a *Attacher) serves(e *state.Entry) (volume.MoveID, bool) {
	if e.Exported == nil || e.Boot != a.Boot {
		return volume.MoveID{}, false
	}
	return *e.Exported, true
}
