package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/hydration"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// hydrationMetaBytes is the size of a clone's metadata: a bit for each of a few
	// million regions, twice, and their tree.
	hydrationMetaBytes = 4 << 20
	// peerTimeout bounds everything that a stage does with a peer.
	peerTimeout = 45 * time.Second
)

// warmProblem says why no cache can begin from elsewhere, or "".
func (a *Attacher) warmProblem(ctx context.Context) string {
	if s := a.warmProblemConfigured(); s != "" {
		return s
	}
	if a.WarmProblem != nil {
		return a.WarmProblem(ctx)
	}
	return ""
}

func (a *Attacher) warmProblemConfigured() string {
	if a.Warm.Dir == "" || a.Moves == nil || a.Tools == nil {
		return "warm moves are not configured"
	}
	return ""
}

// mapFile holds the map that a hydration began with.
func (a *Attacher) mapFile(id volume.ID) string {
	return filepath.Join(a.Warm.Dir, string(id)+".xml")
}

func (a *Attacher) readMap(id volume.ID) (*cachemap.Map, error) {
	m, err := cachetools.ReadFile(a.mapFile(id))
	if err != nil {
		return nil, fmt.Errorf("map of volume %s: %w", id, err)
	}
	return m, nil
}

// writeMap replaces the map file. A hydration under way needs it after any crash of the
// process, and none after one of the machine: then the SSD has the map.
func (a *Attacher) writeMap(id volume.ID, m cachemap.Map) error {
	if err := cachetools.WriteFile(a.mapFile(id), m); err != nil {
		return fmt.Errorf("map of volume %s: %w", id, err)
	}
	return nil
}

// dumpMap reads the map of inactive metadata into the map file.
func (a *Attacher) dumpMap(ctx context.Context, id volume.ID, device string) (*cachemap.Map, error) {
	if a.Tools == nil || a.Warm.Dir == "" {
		return nil, fmt.Errorf("%w: the map of volume %s cannot be read without its tools", volume.ErrUnavailable, id)
	}
	if err := a.Tools.Dump(ctx, device, a.mapFile(id)); err != nil {
		return nil, fmt.Errorf("map of volume %s: %w", id, err)
	}
	return a.readMap(id)
}

// seed is where a new cache begins: the peer's map, the chunks that it streams, or the hot
// set; none of them means cold.
type seed struct {
	peer *cachemap.Map
	list *volume.ChunkList
	hot  *cachemap.HotSet
	// whole is true if what begins from the origin is filled with all that there is room for.
	whole bool
	// lease is that of peer, or of list.
	lease volume.Lease
}

// beginHydration asks for the beginning of a new cache while the origin is connected.
// The returned function waits for it; until then the entry belongs to the hydration. A stream
// is not waited for once the channel is closed: the pod starts no later than without it. Where
// something was prewarmed there is no channel to heed.
func (a *Attacher) beginHydration(ctx context.Context, s *staging) (wait func(late <-chan struct{})) {
	if s.plan.Cache != planCreate || s.plan.Warm == nil {
		return func(<-chan struct{}) {}
	}
	reads := len(s.plan.Warm.Readers) > 0
	hurries := reads || s.plan.Warm.Method == volume.MethodStream && !s.plan.Keep
	bounded, cancel := context.WithTimeout(ctx, peerTimeout)
	ctx, late := context.WithCancelCause(bounded)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		a.findSeed(ctx, s)
	}()
	return func(over <-chan struct{}) {
		if hurries {
			select {
			case <-done:
			case <-over:
				if reads {
					a.awaitReader(ctx, s, done)
				}
				late(errNotReady)
			}
		}
		<-done
	}
}

// findSeed tries the peer, then the hot set. What fails is logged: the cache then
// begins colder (I6).
func (a *Attacher) findSeed(ctx context.Context, s *staging) {
	s.seed.whole = s.plan.Warm.Preload
	if len(s.plan.Warm.Readers) > 0 {
		// Before the others are asked, which may take all of the time that there is.
		hot := a.loadHot(ctx, s)
		if !a.askReaders(ctx, s) {
			s.seed.hot = hot
		}
		return
	}
	if s.plan.Warm.Peer != nil {
		var m *cachemap.Map
		var err error
		if s.plan.Warm.Method == volume.MethodStream {
			err = a.importStream(ctx, s, s.plan.Warm)
		} else {
			m, err = a.importCache(ctx, s)
		}
		if err == nil {
			s.seed.peer = m
			return
		}
		a.endImport(ctx, s, s.plan.Warm.Peer.Node, err)
	}
	s.seed.hot = a.loadHot(ctx, s)
}

// endImport ends a move of which nothing came.
func (a *Attacher) endImport(ctx context.Context, s *staging, from string, err error) {
	end := a.dropHydration
	if errors.Is(err, errNotReady) || errors.Is(context.Cause(ctx), errNotReady) {
		err, end = errNotReady, a.endLater
	}
	klog.FromContext(ctx).Error(err, "The other node's cache cannot be had", "volume", s.req.ID, "from", from)
	s.own.Lock()
	defer s.own.Unlock()
	end(ctx, s.entry, volume.MoveFailed, err.Error())
}

// beginLease asks for the lease of another node's cache, and journals what note takes of its answer.
func (a *Attacher) beginLease(ctx context.Context, s *staging, w *warmPlan, note func(h *state.Hydration, l *volume.Lease) error) (*volume.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Warm.LeaseTimeout)
	defer cancel()
	req := a.moveRequest(s.rec, s.entry.Fence, w)
	id, lease, err := a.Moves.Begin(ctx, req)
	return lease, s.update(func(e *state.Entry) error {
		e.Hydration.Move = id
		if err != nil {
			return err
		}
		if err := note(e.Hydration, lease); err != nil {
			return err
		}
		e.Hydration.Bandwidth, e.Hydration.Deadline = req.Bandwidth, req.Deadline
		s.seed.lease, e.WrittenThrough = *lease, e.Mode == volume.ModeWritethrough && lease.WrittenThrough
		return a.save(ctx, e, e.State)
	})
}

// importCache gets the lease of the old node's retained cache, connects it and reads its map.
func (a *Attacher) importCache(ctx context.Context, s *staging) (*cachemap.Map, error) {
	e := s.entry
	lease, err := a.beginLease(ctx, s, s.plan.Warm, func(h *state.Hydration, l *volume.Lease) error {
		h.Peer, h.PeerOffset, h.PeerSectors = &l.Source, uint64(l.MetaBytes)/sectorSize, uint64(l.DataBytes)/sectorSize
		return nil
	})
	if err != nil {
		return nil, err
	}
	faultHydrationExported.Hit()
	o, err := a.Transport.Connect(ctx, peerTarget(e.Hydration.Peer), &lease.Credentials)
	if err != nil {
		return nil, transportError(err)
	}
	faultHydrationConnected.Hit()
	if uint64(o.SizeBytes)/sectorSize < e.Hydration.PeerOffset+e.Hydration.PeerSectors {
		return nil, fmt.Errorf("%w: the lease has %d bytes, less than its node said", volume.ErrUnavailable, o.SizeBytes)
	}
	m, err := a.dumpMap(ctx, e.ID, o.Paths[0])
	switch {
	case err != nil:
		return nil, err
	case m.ChunkSectors != lease.ChunkSectors:
		return nil, fmt.Errorf("%w: the exported map has chunks of %d sectors, its node said %d", volume.ErrUnavailable, m.ChunkSectors, lease.ChunkSectors)
	case m.Dirty > 0:
		return nil, fmt.Errorf("%w: the exported map has %d dirty chunks", volume.ErrUnavailable, m.Dirty)
	case m.End() > e.Hydration.PeerSectors:
		return nil, fmt.Errorf("%w: the exported map has chunks up to sector %d, the lease has %d sectors of data", volume.ErrUnavailable, m.End(), e.Hydration.PeerSectors)
	}
	return m, nil
}

// moveRequest is what the volume's owner asks of a move. Without a plan, or a source in it,
// the cache is filled from the origin.
func (a *Attacher) moveRequest(rec volume.Volume, f volume.Fence, w *warmPlan) volume.MoveRequest {
	r := volume.MoveRequest{Volume: rec.ID, Fence: f, Patience: a.Warm.Patience, Method: volume.MethodHotSet}
	if rec.ReadOnly {
		r.Purpose = volume.PurposeRead
	}
	if w != nil && w.Peer != nil {
		r.Source, r.Method, r.Reason = w.Peer, w.Method, w.Reason
	}
	r.Bandwidth, r.Deadline = a.warmLimits(rec.Spec.WarmStart)
	return r
}

// warmLimits are a volume's own limits of a copy, or the node's.
func (a *Attacher) warmLimits(w volume.WarmStart) (bandwidth int64, deadline time.Time) {
	return cmp.Or(w.Bandwidth, a.Warm.Bandwidth), a.Now().Add(cmp.Or(w.Deadline, a.Warm.Deadline))
}

// peerTarget is the transport's form of a lease. A dead peer must fail soon: the
// origin remap table is waiting.
func peerTarget(peer *volume.ISCSI) transport.Target {
	return transport.Target{Source: volume.Source{ISCSI: *peer}, FailFast: true}
}

// seedGeometry turns a seed into a map and a geometry for the new cache. It returns
// false if the cache begins cold.
func (a *Attacher) seedGeometry(ctx context.Context, s *staging, g *geometry, unit int64) (*cachemap.Map, bool) {
	e := s.entry
	if l := s.seed.list; l != nil {
		if data := ssd.RoundUp(s.seed.lease.DataBytes, unit); e.Prewarm != nil && g.fits(data) {
			g.dataBytes, g.metaBytes = data, ssd.RoundUp(devmapper.MetadataBytes(uint64(data)/sectorSize/g.chunkSectors), unit)
		}
		m, err := a.streamGeometry(s, g, unit, l.Blocks, l.ChunkSectors)
		if err == nil {
			return m, true
		}
		klog.FromContext(ctx).Error(err, "Cache begins without the other node's", "volume", e.ID)
		a.dropHydration(ctx, e, volume.MoveFailed, err.Error())
		s.seed.list = nil
	}
	if m := s.seed.peer; m != nil {
		data := ssd.RoundUp(int64(e.Hydration.PeerSectors)*sectorSize, unit)
		blocks := uint64(data) / (m.ChunkSectors * sectorSize)
		if g.fits(data) {
			*g = geometry{chunkSectors: m.ChunkSectors, dataBytes: data, metaBytes: ssd.RoundUp(devmapper.MetadataBytes(blocks), unit)}
			e.Hydration.RegionSectors = cachemap.RegionSectors(m.ChunkSectors)
			return m, true
		}
		a.dropHydration(ctx, e, volume.MoveFailed, fmt.Sprintf("the exported cache has %d bytes, the volume's cache is to have %d", data, g.dataBytes))
		s.seed.peer = nil
	}
	if s.seed.hot == nil && !s.seed.whole {
		return nil, false
	}
	m, err := a.seedFromOrigin(ctx, s, *g)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cache begins cold", "volume", e.ID)
		a.dropHydration(ctx, e, volume.MoveFailed, err.Error())
		return nil, false
	}
	return m, m != nil
}

// seedFromOrigin makes the map of a cache that is filled from the origin.
func (a *Attacher) seedFromOrigin(ctx context.Context, s *staging, g geometry) (*cachemap.Map, error) {
	e := s.entry
	var hot cachemap.HotSet
	if s.seed.hot != nil {
		hot = *s.seed.hot
	}
	m := hot.Map(g.chunkSectors, uint64(g.dataBytes)/(g.chunkSectors*sectorSize), s.origin.Sectors)
	if s.seed.whole {
		m = m.Fill(s.origin.Sectors)
	}
	if len(m.Entries) == 0 {
		return nil, nil
	}
	h := &state.Hydration{RegionSectors: cachemap.RegionSectors(m.ChunkSectors), Preload: s.seed.whole}
	req := a.originRequest(s.rec, e.Fence, h)
	h.Bandwidth, e.Hydration = req.Bandwidth, h
	if s.plan.Warm.Method == volume.MethodStream {
		h.RegionSectors, h.Stream, e.Mode = 0, &state.Stream{}, volume.ModeWritethrough
		ordered, err := streamedFromOrigin(m, s.seed.whole, s.origin.Sectors)
		if err == nil {
			err = a.streamOver(e, &ordered)
		}
		if err != nil {
			return nil, err
		}
		m = ordered
	} else if err := a.writeMap(e.ID, m); err != nil {
		return nil, err
	}
	id, _, err := a.Moves.Begin(ctx, req)
	if err != nil {
		// The object only shows what goes on.
		klog.FromContext(ctx).Error(err, "Hydration from the origin is not shown", "volume", e.ID)
	}
	e.Hydration.Move = id
	return &m, nil
}

// createClone makes the data device of a hydration: the path, for a peer the multipath
// device that waits while the path is down, and the clone.
func (a *Attacher) createClone(ctx context.Context, e *state.Entry, c ssd.Cache, o stack.Origin) (devno string, err error) {
	m := c.HydrationMap
	if m == nil {
		// Activated again: the SSD's own map, because the one that the hydration began
		// with may be older than what was promoted since (states.md).
		if m, err = a.dumpMap(ctx, e.ID, c.Meta.DevPath()); err != nil {
			return "", err
		}
	}
	if c.Hydration.Name == "" {
		return "", fmt.Errorf("%w: the unfinished hydration of volume %s has lost its logical volume %s", volume.ErrUnavailable, e.ID, layout.HydrationLV(e.ID))
	}
	sectors := uint64(c.Data.SizeBytes) / sectorSize
	table, err := a.pathTable(ctx, e, m, o, sectors)
	if err != nil {
		return "", err
	}
	path, err := a.stack.EnsureReadOnly(ctx, layout.Device(e.ID, layout.Path), layout.UUID(e.Fence, layout.Path), table)
	if err != nil {
		return "", err
	}
	faultHydrationPath.Hit()
	source := path
	if e.Hydration.Peer != nil {
		// Whoever reads the devices from here on may wait for the peer. What is remembered
		// is of devices of before.
		a.hydrations.Forget(e.ID)
		a.hydrations.Begin(e.ID, time.Time{})
		waits := devmapper.MultipathTarget{QueueIfNoPath: true, Bio: true, Paths: []string{path.DevNo()}}
		source, err = a.stack.EnsureReadOnly(ctx, layout.Device(e.ID, layout.Source), layout.UUID(e.Fence, layout.Source), devmapper.Table{{Length: sectors, Target: waits}})
		if err != nil {
			return "", err
		}
	}
	faultHydrationSource.Hit()
	clone := devmapper.CloneTarget{
		Metadata: c.Hydration.DevNo(), Destination: c.Data.DevNo(), Source: source.DevNo(), RegionSectors: e.Hydration.RegionSectors,
		NoHydration: true, NoDiscardPassdown: true, HydrationThreshold: e.Hydration.Regions(hydration.CopyBeside), HydrationBatch: e.Hydration.Regions(hydration.CopyUnit),
	}
	dev, err := a.stack.EnsureDevice(ctx, layout.Device(e.ID, layout.Data), layout.UUID(e.Fence, layout.Data), devmapper.Table{{Length: sectors, Target: clone}})
	if err != nil {
		return "", err
	}
	faultHydrationClone.Hit()
	if err := a.Blocks.Discard(ctx, dev.DevPath(), byteRanges(m.Unmapped(sectors))); err != nil {
		return "", err
	}
	// What is here already needs no copy either.
	return dev.DevNo(), a.Blocks.Discard(ctx, dev.DevPath(), byteRanges(c.HydrationHave))
}

// byteRanges are offsets and lengths in bytes.
func byteRanges(in []cachemap.Range) [][2]uint64 {
	out := make([][2]uint64, len(in))
	for i, r := range in {
		out[i] = [2]uint64{r.Start * sectorSize, r.Length * sectorSize}
	}
	return out
}

// pathTable is the table of the path device: the peer while there is one.
func (a *Attacher) pathTable(ctx context.Context, e *state.Entry, m *cachemap.Map, o stack.Origin, sectors uint64) (devmapper.Table, error) {
	if e.Hydration.Peer == nil {
		return m.RemapTable(o.DevNo, o.Sectors, sectors, nil), nil
	}
	peer, found, err := a.Transport.Lookup(ctx, peerTarget(e.Hydration.Peer))
	if err != nil {
		return nil, transportError(err)
	}
	if !found {
		return nil, fmt.Errorf("%w: the session with the peer of volume %s is gone", volume.ErrUnavailable, e.ID)
	}
	n := min(e.Hydration.PeerSectors, sectors)
	t := devmapper.Table{{Length: n, Target: devmapper.LinearTarget{Device: peer.DevNos[0], Offset: e.Hydration.PeerOffset}}}
	return cachemap.Pad(t, peer.DevNos[0], uint64(peer.SizeBytes)/sectorSize, sectors), nil
}

// dropHydration gives a hydration up that was not activated: the cache may begin otherwise.
func (a *Attacher) dropHydration(ctx context.Context, e *state.Entry, o volume.MoveOutcome, message string) {
	a.endHydration(ctx, e, o, message)
	e.Hydration = nil
}

// undoHydration takes back a hydration that did not become active, so that the same stage can
// begin cold. The journal forgets it first.
func (a *Attacher) undoHydration(ctx context.Context, s *staging, cause error) error {
	if err := a.stack.RemoveUpper(ctx, s.req.ID); err != nil {
		return err
	}
	end := a.dropHydration
	if errors.Is(cause, errNotReady) {
		end = a.endLater
	}
	end(ctx, s.entry, volume.MoveFailed, cause.Error())
	s.plannedFor, s.data, s.preallocated = 0, "", nil
	s.seed = seed{}
	s.entry.Anew()
	s.entry.Checked = a.Pool.View().Integrity
	if err := a.save(ctx, s.entry, state.Staging); err != nil {
		return err
	}
	return a.ssd.Remove(ctx, s.req.ID)
}

// endHydration ends what a hydration has outside of the device mapper and LVM. The volume's
// data do not depend on it, so that what fails is logged: a peer lets go by its
// deadline, and a session that is left is ended with the next hydration or reboot.
func (a *Attacher) endHydration(ctx context.Context, e *state.Entry, o volume.MoveOutcome, message string) {
	if e == nil || e.Hydration == nil {
		return
	}
	// Also for a request that has run out of time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peerTimeout)
	defer cancel()
	log := klog.FromContext(ctx).WithValues("volume", e.ID, "move", e.Hydration.Move.Name)
	a.leavePeer(ctx, e)
	a.removeMap(ctx, e.ID)
	a.hydrations.Forget(e.ID)
	if e.Hydration.Move.Name == "" || a.Moves == nil {
		return
	}
	if a.MoveEnded != nil {
		a.MoveEnded(e.Hydration.Began(), o)
	}
	if err := a.Moves.Finish(ctx, e.Hydration.Move, o, message); err != nil {
		log.Error(err, "End of a move could not be reported")
	}
	log.Info("Move ended", "outcome", o, "message", message)
}

// removeMap removes the map that a hydration began with.
func (a *Attacher) removeMap(ctx context.Context, id volume.ID) {
	if err := os.Remove(a.mapFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Map of a hydration was not removed", "volume", id)
	}
}

// leavePeer ends the session with the peer.
func (a *Attacher) leavePeer(ctx context.Context, e *state.Entry) {
	if e.Hydration.Peer == nil {
		return
	}
	if err := a.Transport.Disconnect(ctx, peerTarget(e.Hydration.Peer)); err != nil {
		klog.FromContext(ctx).Error(err, "Session with the peer was not ended", "volume", e.ID, "peer", e.Hydration.Peer.IQN)
	}
	e.Hydration.Peer = nil
}

// resumeHydration shows again the hydration of a cache that is activated again.
func (a *Attacher) resumeHydration(ctx context.Context, s *staging) error {
	e := s.entry
	if e.Hydration == nil || e.Hydration.Whole || a.Moves == nil {
		return nil
	}
	id, _, err := a.Moves.Begin(ctx, a.originRequest(s.rec, e.Fence, e.Hydration))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Hydration that goes on is not shown", "volume", e.ID)
	}
	e.Hydration.Move = id
	return a.save(ctx, e, e.State)
}
