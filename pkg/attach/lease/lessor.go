package lease

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Host is the node whose caches are exported.
type Host interface {
	state.Journal
	// TryLock takes a volume's lock, unless somebody works on it.
	TryLock(id volume.ID) (unlock func(), ok bool)
	// Settled is Entry under the volume's lock, for a step that acts on what it finds. Errors:
	// ErrUnavailable while a command of an earlier step goes on.
	Settled(ctx context.Context, id volume.ID) (*state.Entry, error)
	// Record is a volume's record, from the API server itself.
	Record(ctx context.Context, id volume.ID) (volume.Volume, error)
	// Wipe removes a cache and its entry, and ReportWiped takes it off the record.
	Wipe(ctx context.Context, id volume.ID, e *state.Entry) error
	ReportWiped(ctx context.Context, e *state.Entry) error
}

// Exporter exports block devices of this node, read-only, to one initiator.
type Exporter interface {
	// Export is idempotent; a new password replaces the old one.
	Export(ctx context.Context, name, device, initiator string, cred volume.Credentials) (volume.ISCSI, error)
	// Unexport ends the export and its sessions; absent is success.
	Unexport(ctx context.Context, name string) error
	// InUse reports whether the initiator has a session now.
	InUse(ctx context.Context, name string) (bool, error)
}

// Devices are this node's, as a part of [devmapper.Client].
type Devices interface {
	Table(ctx context.Context, name string) (devmapper.Table, error)
	TrackWrites(ctx context.Context, name, tag string, areaSectors uint64) error
	WrittenAreas(ctx context.Context, name, tag string) (devmapper.Written, error)
}

// Heat is how often the parts of volumes are read.
type Heat interface {
	// Add adds what the kernel has counted since to what is kept of an attached volume.
	Add(ctx context.Context, e *state.Entry)
	// Of is what is kept; none if nothing is.
	Of(ctx context.Context, e *state.Entry) cachemap.Heat
}

// Lessor exports and sends the caches of a node (states.md, What the source node does).
type Lessor struct {
	Host    Host
	Devices Devices
	Stack   *stack.Stack
	SSD     *ssd.Group
	// Exporter may be nil: then nothing was ever exported. Dump writes the map of a cache that
	// is not active to a file; nil if that cannot be done.
	Exporter Exporter
	// Heat orders what is sent; nil leaves that to the levels of smq.
	Heat Heat
	// Streams are told when the lease of a stream ends; nil if nothing is streamed.
	Streams Streams
	// Open opens a block device with flags of open(2).
	Open func(path string, flags int) (blockdev.File, error)
	Dump func(ctx context.Context, device, file string) error
	// ReadInUse reads the map of metadata that a device has open, with files whose names begin with
	// base. One that changes meanwhile may be refused.
	ReadInUse func(ctx context.Context, device, base string) (cachemap.Map, error)
	// Discard discards ranges of a device, each with begin and length in bytes.
	Discard func(ctx context.Context, path string, ranges [][2]uint64) error
	// Node is what the records call this node, and Boot the kernel's boot id.
	Node, Boot string
	// Dir is a folder for maps.
	Dir string

	maps maps
}

// Streams sends the caches of this node to others.
type Streams interface {
	// End ends what is sent of a move. On return nothing of it is read any more.
	// Errors: ErrUnavailable if that takes longer than ctx.
	End(ctx context.Context, m volume.MoveID) error
}

var _ volume.Lessor = (*Lessor)(nil)

// Export implements volume.Lessor; it is the table "What the source node does" of
// states.md.
func (l *Lessor) Export(ctx context.Context, r volume.LeaseRequest) (volume.Lease, error) {
	switch {
	case r.Method != "" && r.Method != volume.MethodClone && r.Method != volume.MethodStream:
		return volume.Lease{}, fmt.Errorf("%w: method %q is not known here", volume.ErrInvalid, r.Method)
	case r.Method == volume.MethodStream && l.Streams == nil:
		return volume.Lease{}, fmt.Errorf("%w: this node streams no caches", volume.ErrUnavailable)
	case r.Method != volume.MethodStream && (r.Purpose == volume.PurposePrewarm || r.Purpose == volume.PurposeRead):
		return volume.Lease{}, fmt.Errorf("%w: a cache in use is sent as a stream, and in no other way", volume.ErrInvalid)
	}
	if r.Purpose == volume.PurposeRead {
		// Readers that are staged together must not wait for each other's locks.
		if e, err := l.Host.Entry(r.Volume); err != nil || l.usedToRead(e, r) != nil {
			return volume.Lease{}, errors.Join(err, l.usedToRead(e, r))
		}
	}
	unlock, ok := l.Host.TryLock(r.Volume)
	if !ok {
		return volume.Lease{}, fmt.Errorf("%w: volume %s", volume.ErrBusy, r.Volume)
	}
	defer unlock()
	e, err := l.Host.Settled(ctx, r.Volume)
	if err != nil {
		return volume.Lease{}, err
	}
	rec, err := l.Host.Record(ctx, r.Volume)
	if err != nil {
		return volume.Lease{}, err
	}
	switch r.Purpose {
	case volume.PurposePrewarm:
		err = exportableLive(e, rec, r, l.Node)
	case volume.PurposeRead:
		err = l.readable(e, rec, r)
	case volume.PurposeMove, "":
		err = exportable(e, rec, r, l.Boot)
	default:
		err = fmt.Errorf("%w: purpose %q is not known here", volume.ErrInvalid, r.Purpose)
	}
	if err != nil {
		return volume.Lease{}, err
	}
	if e.Exported != nil && *e.Exported != r.Move {
		if err := l.End(ctx, e); err != nil {
			return volume.Lease{}, err
		}
	}
	if r.Purpose == volume.PurposePrewarm || r.Purpose == volume.PurposeRead {
		return l.leaseLive(ctx, e, r)
	}
	return l.exportCache(ctx, e, r)
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
	case rec.Identify(e.Activation()) != volume.IdentityCurrent && !state.BugTrustNodeName.On():
		return fmt.Errorf("%w: the cache of volume %s on this node is not of the volume's last stage here", volume.ErrNotFound, r.Volume)
	case e.Exported != nil && *e.Exported == r.Move && e.Boot != boot:
		return fmt.Errorf("%w: the lease was lost when this node restarted", volume.ErrUnavailable)
	}
	return nil
}

// exportCache exports the cache: metadata, then data, as one device.
func (l *Lessor) exportCache(ctx context.Context, e *state.Entry, r volume.LeaseRequest) (volume.Lease, error) {
	again := e.Exported != nil
	e.Exported, e.StreamedTo = &r.Move, ""
	if r.Method == volume.MethodStream {
		e.StreamedTo = r.To
	}
	if err := l.Host.Save(ctx, e, state.Retained); err != nil {
		return volume.Lease{}, err
	}
	faultExportJournaled.Hit()
	c, err := l.SSD.Find(ctx, e.ID)
	if err != nil {
		return volume.Lease{}, err
	}
	if !c.Facts.Whole || !c.Facts.Of(e) || !c.Facts.SuperblockClean || !c.Facts.StopProven(e) {
		return volume.Lease{}, fmt.Errorf("%w: the cache of volume %s is not whole and clean on the SSD", volume.ErrNotFound, e.ID)
	}
	lease, err := l.export(ctx, e, c, r, again)
	if err != nil {
		return lease, err
	}
	lease.Tracked = e.Tracked
	klog.FromContext(ctx).Info("Cache exported", "volume", e.ID, "generation", e.Fence.Generation, "to", r.To, "move", r.Move.Name)
	return lease, nil
}

// export makes one device of metadata and data, and serves it. again tells that the
// same lease may have been given before.
func (l *Lessor) export(ctx context.Context, e *state.Entry, c ssd.Cache, r volume.LeaseRequest, again bool) (volume.Lease, error) {
	dev, err := l.Stack.ExportedDevice(ctx, e, again, func() (devmapper.Table, error) { return l.exportedTable(ctx, e, c) })
	if err != nil {
		return volume.Lease{}, err
	}
	faultExportDevice.Hit()
	if r.Method == volume.MethodStream {
		return leaseOf(e, c, r.Move), nil
	}
	if l.Exporter == nil {
		return volume.Lease{}, fmt.Errorf("%w: this node exports no caches over iSCSI", volume.ErrUnavailable)
	}
	export, err := l.Exporter.Export(ctx, string(e.ID), dev.DevPath(), r.Initiator, r.Credentials)
	if err != nil {
		return volume.Lease{}, fmt.Errorf("%w: export of the cache of volume %s: %w", volume.ErrUnavailable, e.ID, err)
	}
	faultExportExported.Hit()
	lease := leaseOf(e, c, r.Move)
	lease.Source, lease.MetaBytes = export, c.Meta.SizeBytes
	return lease, nil
}

// leaseOf says of a cache what every lease says, however it is read.
func leaseOf(e *state.Entry, c ssd.Cache, m volume.MoveID) volume.Lease {
	return volume.Lease{Move: m, ChunkSectors: e.ChunkSectors, DataBytes: c.Data.SizeBytes, WWID: e.WWID, WrittenThrough: e.WrittenThrough}
}

// exportedTable is metadata, then data. Of the data only what the map names is shown (states.md,
// What the source node does).
func (l *Lessor) exportedTable(ctx context.Context, e *state.Entry, c ssd.Cache) (devmapper.Table, error) {
	meta, data, devno := uint64(c.Meta.SizeBytes)/devmapper.SectorSize, uint64(c.Data.SizeBytes)/devmapper.SectorSize, c.Data.DevNo()
	t := devmapper.Table{{Length: meta, Target: devmapper.LinearTarget{Device: c.Meta.DevNo()}}}
	switch {
	case e.Full:
		return append(t, cachemap.ShownFull(devno, meta, data, e.ChunkSectors)...), nil
	case l.Dump == nil:
		return nil, fmt.Errorf("%w: the map of volume %s cannot be read without its tools", volume.ErrUnavailable, e.ID)
	}
	m, err := l.retainedMap(ctx, e, c)
	if err != nil {
		return nil, fmt.Errorf("%w: map of volume %s: %w", volume.ErrUnavailable, e.ID, err)
	}
	return append(t, m.Shown(devno, meta, data)...), nil
}

// retainedMap reads the map of a retained cache.
func (l *Lessor) retainedMap(ctx context.Context, e *state.Entry, c ssd.Cache) (m *cachemap.Map, err error) {
	text := filepath.Join(l.Dir, string(e.ID)+".hot")
	defer func() { err = errors.Join(err, cachetools.RemoveFiles(text)) }()
	if err := l.Dump(ctx, c.Meta.DevPath(), text); err != nil {
		return nil, err
	}
	m, err = cachetools.ReadFile(text)
	if err == nil && m.ChunkSectors != e.ChunkSectors {
		err = fmt.Errorf("it has chunks of %d sectors, the journal says %d", m.ChunkSectors, e.ChunkSectors)
	}
	return m, err
}

// Release implements volume.Lessor.
func (l *Lessor) Release(ctx context.Context, id volume.ID, m volume.MoveID) error {
	return l.endLeaseOf(ctx, id, m, func(e *state.Entry) error {
		if e.State != state.Retained {
			return nil
		}
		// First: a retained cache that was discarded would be exported again, as zeroes.
		if err := l.Host.Save(ctx, e, state.Wiping); err != nil {
			return err
		}
		faultReleaseWiping.Hit()
		l.discardBlocks(ctx, e)
		faultReleaseDiscarded.Hit()
		if err := l.Host.Wipe(ctx, id, e); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Exported cache given up", "volume", id, "generation", e.Fence.Generation, "move", m.Name)
		return l.Host.ReportWiped(ctx, e)
	})
}

// EndLease implements volume.Lessor.
func (l *Lessor) EndLease(ctx context.Context, id volume.ID, m volume.MoveID) error {
	return l.endLeaseOf(ctx, id, m, func(*state.Entry) error { return nil })
}

// endLeaseOf ends the lease of one move, and does what follows under the same lock. A
// lease of another move, or none, is left alone.
func (l *Lessor) endLeaseOf(ctx context.Context, id volume.ID, m volume.MoveID, then func(*state.Entry) error) error {
	unlock, ok := l.Host.TryLock(id)
	if !ok {
		return fmt.Errorf("%w: volume %s", volume.ErrBusy, id)
	}
	defer unlock()
	e, err := l.Host.Settled(ctx, id)
	if err != nil || e == nil || e.Exported == nil || *e.Exported != m {
		return err
	}
	if err := l.End(ctx, e); err != nil {
		return err
	}
	return then(e)
}

// InUse implements volume.Lessor.
func (l *Lessor) InUse(ctx context.Context, id volume.ID) (bool, error) {
	e, err := l.Host.Entry(id)
	if err != nil || e == nil || e.StreamedTo != "" || l.Exporter == nil {
		return false, err // no pod waits for a stream
	}
	return l.Exporter.InUse(ctx, string(id))
}

// End ends the export. The cache stays.
func (l *Lessor) End(ctx context.Context, e *state.Entry) error {
	if e == nil || e.Exported == nil {
		return nil
	}
	m := *e.Exported
	if e.StreamedTo != "" && l.Streams != nil {
		l.maps.end(m)
		if err := l.Streams.End(ctx, m); err != nil {
			return fmt.Errorf("end of the lease of volume %s: %w", e.ID, err)
		}
	}
	if e.StreamedTo == "" && l.Exporter != nil {
		if err := l.Exporter.Unexport(ctx, string(e.ID)); err != nil {
			return fmt.Errorf("end of the lease of volume %s: %w", e.ID, err)
		}
	}
	faultReleaseExport.Hit()
	if err := l.Stack.Remove(ctx, e.ID, layout.Exported); err != nil {
		return err
	}
	faultReleaseDevice.Hit()
	e.Exported, e.StreamedTo = nil, ""
	if err := l.Host.Save(ctx, e, e.State); err != nil {
		return err
	}
	faultReleaseJournal.Hit()
	if e.State == state.Retained {
		l.SSD.Rest(ctx, e.ID)
	}
	l.maps.drop(m)
	return nil
}

// discardBlocks tells the SSD that the cache's blocks hold nothing any more. An SSD
// that cannot be told is no reason to keep the cache.
func (l *Lessor) discardBlocks(ctx context.Context, e *state.Entry) {
	c, err := l.SSD.Find(ctx, e.ID)
	if err == nil && c.Facts.Whole {
		err = l.Discard(ctx, c.Data.DevPath(), [][2]uint64{{0, uint64(c.Data.SizeBytes)}})
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cache was not discarded on the SSD", "volume", e.ID, "reason", err.Error())
	}
}

// Leases implements volume.Lessor.
func (l *Lessor) Leases(context.Context) (map[volume.ID]volume.MoveID, error) {
	entries, err := l.Host.Entries()
	if err != nil {
		return nil, err
	}
	out := map[volume.ID]volume.MoveID{}
	for i := range entries {
		if m, served := l.serves(&entries[i]); served {
			out[entries[i].ID] = m
		}
	}
	return out, nil
}

// Lease implements volume.Lessor.
func (l *Lessor) Lease(_ context.Context, id volume.ID) (volume.MoveID, bool, error) {
	e, err := l.Host.Entry(id)
	if err != nil || e == nil {
		return volume.MoveID{}, false, err
	}
	m, served := l.serves(e)
	return m, served, nil
}

// serves returns the lease of an entry. One of an earlier boot was lost with it.
func (l *Lessor) serves(e *state.Entry) (volume.MoveID, bool) {
	if e.Exported == nil || e.Boot != l.Boot {
		return volume.MoveID{}, false
	}
	return *e.Exported, true
}
