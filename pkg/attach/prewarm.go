package attach

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// prewarmEvery is the pause between two looks at the requests.
	prewarmEvery = 15 * time.Second
	// mapTries is how often the map of a cache in use is read before it is given up: a
	// copy of metadata that change meanwhile may be torn.
	mapTries = 5
)

// prewarms are the copies of this process.
type prewarms struct {
	mu sync.Mutex
	m  map[volume.ID]*prewarming
}

func (p *prewarms) get(id volume.ID) *prewarming {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m[id]
}

func (p *prewarms) set(id volume.ID, r *prewarming) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m[id] = r
}

func (p *prewarms) take(id volume.ID) *prewarming {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.m[id]
	delete(p.m, id)
	return r
}

func (p *prewarms) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.m)
}

// RunPrewarms carries out the requests to prewarm this node until ctx ends.
func (a *Attacher) RunPrewarms(ctx context.Context) {
	if a.Requested == nil || a.warmProblemConfigured() != "" {
		return
	}
	changed := a.Requested.Changed()
	for {
		a.stepPrewarms(ctx)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(prewarmEvery):
		}
	}
}

// stepPrewarms looks at every request, and at every copy whose request may be gone.
func (a *Attacher) stepPrewarms(ctx context.Context) {
	log := klog.FromContext(ctx)
	recs, err := a.Requested.List(ctx)
	if err != nil {
		log.Error(err, "Requests to warm this node are not known")
		return
	}
	entries, err := a.Journal.List()
	if err != nil {
		log.Error(err, "Prewarms are not known")
	}
	ids := map[volume.ID]bool{}
	for i := range recs {
		ids[recs[i].ID] = true
	}
	for i := range entries {
		if e := &entries[i]; e.State == state.Prewarmed && e.Prewarm != nil && e.Prewarm.Copying {
			ids[e.ID] = true
		}
	}
	for id := range ids {
		if err := a.stepPrewarm(ctx, id); err != nil && ctx.Err() == nil {
			log.Error(err, "Request to warm this node will be looked at again", "volume", id)
		}
	}
}

// stepPrewarm takes the next step for one volume.
func (a *Attacher) stepPrewarm(ctx context.Context, id volume.ID) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return nil
	}
	defer unlock()
	e, err := a.loadSettled(ctx, id)
	if err != nil {
		return err
	}
	rec, err := a.Records.Get(ctx, id)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	step := decidePrewarm(prewarmFacts{Entry: e, Record: rec, Node: a.Node, Running: a.prewarms.get(id) != nil})
	switch step {
	case prewarmBegin:
		return a.beginPrewarm(ctx, rec, e)
	case prewarmResume:
		return a.resumePrewarm(ctx, rec, e)
	case prewarmNothing:
	}
	if e != nil && e.State == state.Prewarmed && e.Prewarm.Copying && prewarmCancelled(e, rec, a.Node) {
		klog.FromContext(ctx).Info("Prewarm is not wanted any more", "volume", id)
		return a.wipe(ctx, id, e)
	}
	return nil
}

// beginPrewarm asks the owner for its cache and begins to copy it. Failures end the
// request; only what nobody has been told of is tried again.
func (a *Attacher) beginPrewarm(ctx context.Context, rec volume.Volume, old *state.Entry) error {
	log := klog.FromContext(ctx).WithValues("volume", rec.ID)
	if problem := a.warmProblem(ctx); problem != "" {
		return fmt.Errorf("%w: %s", volume.ErrUnavailable, problem)
	}
	if view := a.Pool.View(); !view.Ready {
		return fmt.Errorf("%w: pool: %s", volume.ErrUnavailable, view.Problem)
	}
	req := a.prewarmRequest(rec)
	ended, err := a.Moves.Ended(ctx, req)
	if err != nil {
		return err
	}
	lost := old != nil && old.State == state.Prewarmed
	if ended && !lost {
		return nil
	}
	if old != nil {
		if err := a.wipe(ctx, rec.ID, old); err != nil {
			return err
		}
	} else if err := a.removeUnclaimed(ctx, rec.ID, nil); err != nil {
		return err
	}
	if ended {
		return nil // a killed process has not cleared away what came to nothing
	}
	e := &state.Entry{ID: rec.ID, Fence: req.Fence, Mode: rec.Spec.Mode, Names: state.NamesOf(rec, state.Names{}), Prewarm: &state.Prewarm{Request: req.Request, Copying: true}}
	if err := a.save(ctx, e, state.Prewarmed); err != nil {
		return err
	}
	faultPrewarmJournaled.Hit()
	bctx, cancel := context.WithTimeout(ctx, peerTimeout+a.CacheTimeout)
	defer cancel()
	source, m, err := a.importLive(bctx, e, req)
	if err == nil {
		err = a.startCopy(ctx, e, source, *m)
	}
	if err != nil && ctx.Err() == nil {
		log.Error(err, "Nothing is prewarmed", "from", rec.Fence.Node)
		a.endPrewarm(ctx, e, volume.MoveFailed, err.Error())
		return a.wipe(ctx, rec.ID, e)
	}
	return err
}

// prewarmRequest is what this node asks of the owner.
func (a *Attacher) prewarmRequest(rec volume.Volume) volume.MoveRequest {
	r := volume.MoveRequest{
		Volume: rec.ID, Purpose: volume.PurposePrewarm, Request: rec.Prewarm.Request,
		Fence:  volume.Fence{UID: rec.Fence.UID, Generation: rec.Fence.Generation, Node: a.Node},
		Source: &volume.WarmSource{Node: rec.Fence.Node, Generation: rec.Fence.Generation},
		Method: volume.MethodClone, Reason: "a cache in use can be read over iSCSI alone",
	}
	r.Bandwidth, r.Deadline = a.warmLimits(rec.Spec.WarmStart)
	return r
}

// importLive gets the lease of the owner's cache, connects it, reads its map and makes
// room for it.
func (a *Attacher) importLive(ctx context.Context, e *state.Entry, req volume.MoveRequest) (source string, m *cachemap.Map, err error) {
	lctx, cancel := context.WithTimeout(ctx, a.Warm.LeaseTimeout)
	defer cancel()
	p := e.Prewarm
	id, lease, err := a.Moves.Begin(lctx, req)
	p.Move = id
	if err != nil {
		return "", nil, err
	}
	if lease.Tracked == nil || lease.Tracked.ID == "" {
		return "", nil, fmt.Errorf("%w: the owner does not note what is written meanwhile", volume.ErrUnavailable)
	}
	p.Tracking, p.ChunkSectors, p.ExportedBytes = lease.Tracked.ID, lease.ChunkSectors, lease.DataBytes
	p.Peer, p.PeerOffset, p.Bandwidth, p.Deadline = &lease.Source, uint64(lease.MetaBytes)/sectorSize, req.Bandwidth, req.Deadline
	e.ChunkSectors, e.DataBytes = lease.ChunkSectors, ssd.RoundUp(lease.DataBytes, allocationUnit(a.Pool.View()))
	if err := a.save(ctx, e, e.State); err != nil {
		return "", nil, err
	}
	faultPrewarmExported.Hit()
	o, err := a.Transport.Connect(ctx, peerTarget(p.Peer), &lease.Credentials)
	if err != nil {
		return "", nil, transportError(err)
	}
	faultPrewarmConnected.Hit()
	if o.SizeBytes < lease.MetaBytes+lease.DataBytes {
		return "", nil, fmt.Errorf("%w: the lease has %d bytes, less than its node said", volume.ErrUnavailable, o.SizeBytes)
	}
	if err := a.allocatePrewarm(ctx, e); err != nil {
		return "", nil, err
	}
	faultPrewarmAllocated.Hit()
	m, err = a.liveMap(ctx, e, o.Paths[0])
	return o.Paths[0], m, err
}

// liveMap reads the map of a cache in use. It tells what is worth copying, and nothing
// else rests on it: what is right is decided by the record of writes.
func (a *Attacher) liveMap(ctx context.Context, e *state.Entry, device string) (m *cachemap.Map, err error) {
	raw := filepath.Join(a.Warm.Dir, string(e.ID)+".prewarm.raw")
	text := filepath.Join(a.Warm.Dir, string(e.ID)+".prewarm.xml")
	defer func() { err = errors.Join(err, cachetools.RemoveFiles(raw, text)) }()
	for try := 0; ; try++ {
		m, err = a.readLiveMap(ctx, e, device, raw, text)
		if err == nil || try >= mapTries || ctx.Err() != nil {
			return m, err
		}
		klog.FromContext(ctx).V(2).Info("Map of a cache in use is read again", "volume", e.ID, "reason", err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(a.PollInterval):
		}
	}
}

func (a *Attacher) readLiveMap(ctx context.Context, e *state.Entry, device, raw, text string) (*cachemap.Map, error) {
	if err := cachetools.CopyHead(ctx, device, raw, int64(e.Prewarm.PeerOffset)*sectorSize); err != nil {
		return nil, err
	}
	if err := devmapper.AddHints(raw); err != nil {
		return nil, err
	}
	if err := a.Tools.Dump(ctx, raw, text); err != nil {
		return nil, err
	}
	m, err := cachetools.ReadFile(text)
	if err == nil && int64(m.End())*sectorSize > e.Prewarm.ExportedBytes {
		err = fmt.Errorf("%w: the exported map has chunks up to sector %d, the lease has %d bytes of data", volume.ErrUnavailable, m.End(), e.Prewarm.ExportedBytes)
	}
	if err == nil && m.ChunkSectors != e.Prewarm.ChunkSectors {
		err = fmt.Errorf("%w: the exported map has chunks of %d sectors, its node said %d", volume.ErrUnavailable, m.ChunkSectors, e.Prewarm.ChunkSectors)
	}
	return m, err
}

// allocatePrewarm makes the logical volume that the data are copied to, which has none
// of them.
func (a *Attacher) allocatePrewarm(ctx context.Context, e *state.Entry) error {
	unlock, err := a.ssd.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	view := a.Pool.View()
	if err := cachetools.RemoveFiles(a.copiedFile(e.ID)); err != nil {
		return err
	}
	if err := a.ssd.Remove(ctx, e.ID); err != nil {
		return err
	}
	return a.createPlaced(ctx, e.ID, []lvm.CreateSpec{cacheSpecOf(e, false).dataSpec(view, layout.Tags(e.Fence, e.Mode))})
}

// startCopy lets the copy run beside whatever else this node does.
func (a *Attacher) startCopy(ctx context.Context, e *state.Entry, source string, m cachemap.Map) error {
	view := a.Pool.View()
	if err := a.LVM.Activate(ctx, view.VG, layout.DataLV(e.ID)); err != nil {
		return err
	}
	c, err := a.ssd.Inspect(ctx, view.VG, e.ID)
	if err != nil {
		return err
	}
	if c.Data.Name == "" || !c.Data.Active {
		return fmt.Errorf("%w: logical volume %s is not active", volume.ErrUnavailable, layout.DataLV(e.ID))
	}
	dst, err := openTarget(c.Data.DevPath())
	if err != nil {
		return err
	}
	blocks := uint64(e.Prewarm.ExportedBytes) / (e.Prewarm.ChunkSectors * sectorSize)
	copied := newBitmap(blocks)
	copy(copied, a.readCopied(e.ID, e.Prewarm.Tracking))
	cctx, cancel := context.WithCancel(ctx)
	p := &prewarming{
		request: e.Prewarm.Request, tracking: e.Prewarm.Tracking, file: a.copiedFile(e.ID), cancel: cancel, dst: dst, copied: copied,
	}
	j := copyJob{entry: e, source: source, runs: copyRuns(m, blocks, copied), limit: func() int64 { return a.prewarmLimit(e) }}
	for _, entry := range m.Entries {
		if entry.Cache < blocks && copied.has(entry.Cache) {
			j.done += int64(m.ChunkSectors) * sectorSize
		}
	}
	a.prewarms.set(e.ID, p)
	klog.FromContext(ctx).Info("Cache is prewarmed", "volume", e.ID, "move", e.Prewarm.Move.Name,
		"mapped", len(m.Entries), "runs", len(j.runs), "done", j.done)
	go func() {
		err := a.copyPrewarm(cctx, p, j)
		a.copyEnded(ctx, e.ID, p, err)
	}()
	return nil
}

// prewarmLimit is the bandwidth of one copy in bytes per second: its own, and its
// share of the node's. 0 is no limit.
func (a *Attacher) prewarmLimit(e *state.Entry) int64 {
	return a.hydrations.Limit(e.Prewarm.Bandwidth, a.hydrations.Count()+a.prewarms.count())
}

// copyEnded journals the end of a copy. A process that ends leaves it to the next.
func (a *Attacher) copyEnded(ctx context.Context, id volume.ID, p *prewarming, err error) {
	log := klog.FromContext(ctx).WithValues("volume", id)
	if serr := p.stop(); serr != nil {
		log.Error(serr, "What was copied last counts for nothing")
	}
	for ctx.Err() == nil && a.prewarms.get(id) == p {
		if unlock, ok := a.Locks.TryLock(string(id)); ok {
			defer unlock()
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(a.PollInterval):
		}
	}
	if ctx.Err() != nil || a.prewarms.get(id) != p {
		return // whoever has taken it has ended it
	}
	e, lerr := a.load(id)
	if lerr != nil || e == nil || e.State != state.Prewarmed || e.Prewarm.Tracking != p.tracking {
		a.prewarms.take(id)
		return
	}
	outcome, message := volume.MoveCompleted, "everything was copied; what the pod writes until the move is copied then"
	if err != nil {
		log.Error(err, "Prewarm ended early")
		outcome, message = volume.MoveEnded, "a part was copied: "+err.Error()
	}
	a.endPrewarm(ctx, e, outcome, message)
	if err := a.save(ctx, e, e.State); err != nil {
		log.Error(err, "End of a copy was not journalled")
	}
	faultPrewarmEnded.Hit()
}

// resumePrewarm goes on with a copy of an earlier process, as long as its session
// lives; otherwise what there is must do.
func (a *Attacher) resumePrewarm(ctx context.Context, rec volume.Volume, e *state.Entry) error {
	o, found, err := a.Transport.Lookup(ctx, peerTarget(e.Prewarm.Peer))
	switch {
	case err == nil && found:
		if err = a.goOn(ctx, e, o.Paths[0]); err == nil {
			return nil
		}
	case err == nil && !slices.ContainsFunc(a.readCopied(e.ID, e.Prewarm.Tracking), func(b byte) bool { return b != 0 }):
		// The secret of the session was lost with the process; nothing else was.
		e.Prewarm.Move = volume.MoveID{}
		return a.beginPrewarm(ctx, rec, e)
	}
	message := "the node's plugin was restarted, and the owner does not serve any more"
	if err != nil {
		message += ": " + err.Error()
	}
	a.endPrewarm(ctx, e, volume.MoveEnded, message)
	return a.save(ctx, e, e.State)
}

// goOn copies from a session that is there.
func (a *Attacher) goOn(ctx context.Context, e *state.Entry, source string) error {
	c, err := a.ssd.Inspect(ctx, a.Pool.View().VG, e.ID)
	if err != nil {
		return err
	}
	if c.Data.Name == "" {
		if err := a.allocatePrewarm(ctx, e); err != nil {
			return err
		}
	}
	m, err := a.liveMap(ctx, e, source)
	if err != nil {
		return err
	}
	return a.startCopy(ctx, e, source, *m)
}

// endPrewarm ends a copy and what it has outside of LVM. On return nothing writes to
// the logical volume any more. The caller saves the entry.
func (a *Attacher) endPrewarm(ctx context.Context, e *state.Entry, o volume.MoveOutcome, message string) {
	if e == nil || e.Prewarm == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), peerTimeout)
	defer cancel()
	log := klog.FromContext(ctx).WithValues("volume", e.ID, "move", e.Prewarm.Move.Name)
	if p := a.prewarms.take(e.ID); p != nil {
		if err := p.stop(); err != nil {
			log.Error(err, "What was copied last counts for nothing")
		}
	}
	if e.Prewarm.Peer != nil {
		if err := a.Transport.Disconnect(ctx, peerTarget(e.Prewarm.Peer)); err != nil {
			log.Error(err, "Session with the owner was not ended", "peer", e.Prewarm.Peer.IQN)
		}
		e.Prewarm.Peer = nil
	}
	faultPrewarmLeft.Hit()
	if !e.Prewarm.Copying || e.Prewarm.Move.Name == "" {
		e.Prewarm.Copying = false
		return
	}
	e.Prewarm.Copying = false
	if err := a.Moves.Finish(ctx, e.Prewarm.Move, o, message); err != nil {
		log.Error(err, "End of a copy could not be reported")
	}
	faultPrewarmReported.Hit()
	log.Info("Prewarm ended", "outcome", o, "message", message)
}

// dropPrewarm ends a copy whose data are about to be wiped.
func (a *Attacher) dropPrewarm(ctx context.Context, e *state.Entry) {
	if e == nil || e.Prewarm == nil {
		return
	}
	a.endPrewarm(ctx, e, volume.MoveEnded, "the copy was given up")
	if err := cachetools.RemoveFiles(a.copiedFile(e.ID)); err != nil {
		klog.FromContext(ctx).Error(err, "Note of what was copied was not removed", "volume", e.ID)
	}
}
