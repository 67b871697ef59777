package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// exportableLive says why a cache in use may not be sent, nil if it may.
func exportableLive(e *state.Entry, rec volume.Volume, r volume.LeaseRequest, node string) error {
	switch want := (volume.Fence{UID: r.UID, Generation: r.Generation, Node: node}); {
	case e == nil || e.State != state.Staged || !e.Cached() || !e.Activated || e.Fence != want:
		return fmt.Errorf("%w: no cache of volume %s, generation %d, is in use here", volume.ErrNotFound, r.Volume, r.Generation)
	case e.Hydration != nil:
		return fmt.Errorf("%w: the cache of volume %s is itself being filled", volume.ErrUnavailable, r.Volume)
	case rec.Fence != want || !rec.Published:
		return fmt.Errorf("%w: volume %s is at generation %d with owner %q; node %q asks for generation %d",
			volume.ErrFenced, r.Volume, rec.Fence.Generation, rec.Fence.Node, r.To, r.Generation)
	case rec.Identify(e.Activation()) != volume.IdentityCurrent:
		return fmt.Errorf("%w: the record of volume %s knows another stage than this node", volume.ErrNotFound, r.Volume)
	case rec.Prewarm == nil || *rec.Prewarm != volume.Prewarm{Node: r.To, Request: r.Request}:
		return fmt.Errorf("%w: nobody has asked for the cache of volume %s on node %q", volume.ErrFenced, r.Volume, r.To)
	}
	return nil
}

// leaseLive lets a cache in use be sent, after the kernel has begun to note what is written
// to its data: what the destination gets is never older than the record.
func (l *Lessor) leaseLive(ctx context.Context, e *state.Entry, r volume.LeaseRequest) (volume.Lease, error) {
	if err := l.hold(ctx, e, r); err != nil {
		return volume.Lease{}, err
	}
	c, err := l.SSD.Inspect(ctx, l.SSD.Pool.View().VG, e.ID)
	if err != nil {
		return volume.Lease{}, err
	}
	if !c.Facts.Whole || c.Facts.Fence != e.Fence {
		return volume.Lease{}, fmt.Errorf("%w: the cache of volume %s is not whole on the SSD", volume.ErrNotFound, e.ID)
	}
	if err := l.Stack.CommitMap(ctx, e.ID); err != nil {
		klog.FromContext(ctx).Error(err, "The list that is sent may lack what was cached last", "volume", e.ID)
	}
	faultPrewarmCommitted.Hit()
	if l.Heat != nil {
		l.Heat.Add(ctx, e) // here and not where the list is made, which holds no lock
	}
	klog.FromContext(ctx).Info("Cache in use is sent", "volume", e.ID, "generation", e.Fence.Generation, "to", r.To, "move", r.Move.Name)
	lease := leaseOf(e, c, r.Move)
	if e.Track != nil {
		lease.Tracked = &volume.Tracked{ID: e.Track.ID, AreaBytes: int64(e.Track.AreaSectors) * devmapper.SectorSize}
	}
	return lease, nil
}

// hold has the journal say who gets a cache in use, and the kernel note what is written to it. Of what
// many read nothing is noted: nobody writes.
func (l *Lessor) hold(ctx context.Context, e *state.Entry, r volume.LeaseRequest) error {
	if r.Purpose != volume.PurposeRead {
		return l.track(ctx, e, r)
	}
	e.Exported, e.StreamedTo = &r.Move, r.To
	if err := l.Host.Save(ctx, e, e.State); err != nil {
		return err
	}
	faultReadLeased.Hit()
	return nil
}

// usedToRead says why an entry is none of a whole cache in use by which this node reads what is asked for.
func (l *Lessor) usedToRead(e *state.Entry, r volume.LeaseRequest) error {
	want := volume.Fence{UID: r.UID, Generation: r.Generation, Node: l.Node}
	switch {
	case e == nil || e.State != state.Staged || e.Boot != l.Boot || !e.ReadOnly || !e.Cached() || !e.Activated || e.Fence != want:
		return fmt.Errorf("%w: no cache of volume %s, generation %d, is in use here to read it", volume.ErrNotFound, r.Volume, r.Generation)
	case e.Hydration != nil:
		return fmt.Errorf("%w: the cache of volume %s is itself being filled", volume.ErrUnavailable, r.Volume)
	}
	return nil
}

// readable says why a cache that this node uses to read a volume with others may not be sent to one of
// them, nil if it may (states.md, Readers).
func (l *Lessor) readable(e *state.Entry, rec volume.Volume, r volume.LeaseRequest) error {
	if err := l.usedToRead(e, r); err != nil {
		return err
	}
	switch want := (volume.Fence{UID: r.UID, Generation: r.Generation, Node: l.Node}); {
	case !rec.ReadOnly || rec.Fence != want || !rec.Published || r.To == l.Node || !slices.Contains(rec.Readers, r.To):
		return fmt.Errorf("%w: volume %s is at generation %d with owner %q, and read by %s; node %q asks for generation %d",
			volume.ErrFenced, r.Volume, rec.Fence.Generation, rec.Fence.Node, volume.NamesOfReaders(rec.Readers), r.To, r.Generation)
	case e.Exported != nil && *e.Exported != r.Move && e.StreamedTo != r.To:
		return fmt.Errorf("%w: the cache of volume %s is being sent to node %s", volume.ErrUnavailable, r.Volume, e.StreamedTo)
	}
	return nil
}

// track begins the record of writes; that of the same lease goes on.
func (l *Lessor) track(ctx context.Context, e *state.Entry, r volume.LeaseRequest) error {
	if e.Exported != nil && *e.Exported == r.Move && e.StreamedTo == r.To && e.Track != nil {
		if _, err := l.Devices.WrittenAreas(ctx, layout.Device(e.ID, layout.Data), e.Track.ID); err == nil {
			return nil
		}
	}
	t, err := l.Devices.Table(ctx, layout.Device(e.ID, layout.Data))
	if err != nil {
		return err
	}
	e.Exported, e.StreamedTo = &r.Move, r.To
	e.Track = &state.Track{ID: rand.Text(), AreaSectors: devmapper.AreaSectors(t.Sectors(), e.ChunkSectors, devmapper.PossibleCPUs())}
	if err := l.Host.Save(ctx, e, e.State); err != nil {
		return err
	}
	faultPrewarmAsked.Hit()
	if err := l.Devices.TrackWrites(ctx, layout.Device(e.ID, layout.Data), e.Track.ID, e.Track.AreaSectors); err != nil {
		return fmt.Errorf("%w: writes to the cache of volume %s cannot be noted: %w", volume.ErrUnavailable, e.ID, err)
	}
	faultPrewarmTracked.Hit()
	return nil
}

// RecordWrites journals which parts of the data were written to, when nobody can write
// any more and before the record goes with the data device. Without a record there
// is nothing to note: everything counts as changed.
func (l *Lessor) RecordWrites(ctx context.Context, e *state.Entry) error {
	if e.Track == nil {
		return nil
	}
	if err := l.Stack.Remove(ctx, e.ID, layout.Top); err != nil {
		return err
	}
	faultPrewarmQuiet.Hit()
	w, err := l.Devices.WrittenAreas(ctx, layout.Device(e.ID, layout.Data), e.Track.ID)
	switch {
	case err == nil && w.AreaSectors == e.Track.AreaSectors:
		e.Tracked = Tracked(e.Track.ID, w)
	case errors.Is(err, devmapper.ErrNotExist):
		klog.FromContext(ctx).Info("The record of writes is gone", "volume", e.ID)
	default:
		klog.FromContext(ctx).Error(err, "The record of writes cannot be read", "volume", e.ID)
	}
	e.Track = nil
	if err := l.Host.Save(ctx, e, e.State); err != nil {
		return err
	}
	faultPrewarmNoted.Hit()
	return nil
}

// Tracked is the journal's form of what the kernel has noted.
func Tracked(id string, w devmapper.Written) *volume.Tracked {
	t := &volume.Tracked{ID: id, AreaBytes: int64(w.AreaSectors) * devmapper.SectorSize, Changed: make([]byte, (len(w.Areas)+7)/8)}
	for i, written := range w.Areas {
		if written {
			t.Changed[i/8] |= 1 << (i % 8)
		}
	}
	return t
}
