package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// prewarmEvery is the pause between two looks at the requests.
const prewarmEvery = 15 * time.Second

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
		return a.resumePrewarm(ctx, e)
	case prewarmNothing:
	}
	if e != nil && e.State == state.Prewarmed && e.Prewarm.Copying && prewarmCancelled(e, rec, a.Node) {
		klog.FromContext(ctx).Info("Prewarm is not wanted any more", "volume", id)
		return a.wipe(ctx, id, e)
	}
	return nil
}

// prewarmProblem says why this node copies no caches in use, or "".
func (a *Attacher) prewarmProblem() string {
	if a.Stream == nil {
		return "streams are not configured on this node"
	}
	return ""
}

// beginPrewarm asks the owner for its cache and begins to copy it. Failures end the
// request; only what nobody has been told of is tried again.
func (a *Attacher) beginPrewarm(ctx context.Context, rec volume.Volume, old *state.Entry) error {
	req := a.prewarmRequest(rec)
	ended, err := a.Moves.Ended(ctx, req)
	if err != nil {
		return err
	}
	lost := old != nil && old.State == state.Prewarmed
	if ended && !lost {
		return nil
	}
	if problem := a.prewarmProblem(); problem != "" {
		return a.refusePrewarm(ctx, req, old, problem)
	}
	if view := a.Pool.View(); !view.Ready {
		return fmt.Errorf("%w: pool: %s", volume.ErrUnavailable, view.Problem)
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
	e := &state.Entry{ID: rec.ID, Fence: req.Fence, Mode: rec.Spec.Mode, Names: state.NamesOf(rec, state.Names{}), Prewarm: &state.Prewarm{Request: req.Request, Copying: true}, Mirrored: a.Pool.View().For(rec.Spec.Mirror).Mirror, Checked: a.Pool.View().Integrity}
	if err := a.save(ctx, e, state.Prewarmed); err != nil {
		return err
	}
	faultPrewarmJournaled.Hit()
	err = a.leaseLive(ctx, e, req)
	if err == nil {
		err = a.goOn(ctx, e)
	}
	if err == nil || ctx.Err() != nil {
		return err // the next process goes on
	}
	klog.FromContext(ctx).Error(err, "Nothing is prewarmed", "volume", e.ID)
	a.endPrewarm(ctx, e, volume.MoveFailed, err.Error())
	return a.wipe(ctx, e.ID, e)
}

// refusePrewarm says in the CacheMigration why nothing is copied.
func (a *Attacher) refusePrewarm(ctx context.Context, req volume.MoveRequest, old *state.Entry, problem string) error {
	klog.FromContext(ctx).Info("Nothing is prewarmed", "volume", req.Volume, "from", req.Source.Node, "reason", problem)
	if old != nil && old.State == state.Prewarmed {
		if err := a.wipe(ctx, req.Volume, old); err != nil {
			return err
		}
	}
	ended, err := a.Moves.Ended(ctx, req)
	if err != nil || ended {
		return err
	}
	return a.Moves.Refuse(ctx, req, problem)
}

// prewarmRequest is what this node asks of the owner.
func (a *Attacher) prewarmRequest(rec volume.Volume) volume.MoveRequest {
	r := volume.MoveRequest{
		Volume: rec.ID, Purpose: volume.PurposePrewarm, Request: rec.Prewarm.Request,
		Fence:  volume.Fence{UID: rec.Fence.UID, Generation: rec.Fence.Generation, Node: a.Node},
		Source: &volume.WarmSource{Node: rec.Fence.Node, Generation: rec.Fence.Generation},
		Method: volume.MethodStream, Reason: "a cache in use is sent as a stream",
	}
	r.Bandwidth, r.Deadline = a.warmLimits(rec.Spec.WarmStart)
	return r
}

// leaseLive gets the lease of the owner's cache, and journals it.
func (a *Attacher) leaseLive(ctx context.Context, e *state.Entry, req volume.MoveRequest) error {
	lctx, cancel := context.WithTimeout(ctx, a.Warm.LeaseTimeout)
	defer cancel()
	p := e.Prewarm
	id, lease, err := a.Moves.Begin(lctx, req)
	p.Move = id
	switch {
	case err != nil:
		return err
	case lease.Tracked == nil || lease.Tracked.ID == "":
		return fmt.Errorf("%w: the owner does not note what is written meanwhile", volume.ErrUnavailable)
	case lease.Stream == nil:
		return fmt.Errorf("%w: the owner's answer names no stream", volume.ErrUnavailable)
	case lease.ChunkSectors == 0:
		return fmt.Errorf("%w: the owner's chunks have no size", volume.ErrUnavailable)
	}
	p.Tracking, p.ChunkSectors, p.ExportedBytes = lease.Tracked.ID, lease.ChunkSectors, lease.DataBytes
	p.Source, p.Bandwidth, p.Deadline = lease.Stream, req.Bandwidth, req.Deadline
	e.ChunkSectors, e.DataBytes = lease.ChunkSectors, ssd.RoundUp(lease.DataBytes, allocationUnit(a.Pool.View().For(e.Mirrored)))
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	faultPrewarmExported.Hit()
	return nil
}

// resumePrewarm goes on in the place of a process that has ended. If that cannot be, what there is
// must do.
func (a *Attacher) resumePrewarm(ctx context.Context, e *state.Entry) error {
	err := a.goOn(ctx, e)
	if err == nil || ctx.Err() != nil {
		return err
	}
	a.endPrewarm(ctx, e, volume.MoveEnded, "the node's plugin was restarted: "+err.Error())
	return a.save(ctx, e, e.State)
}

// goOn copies what is not there yet.
func (a *Attacher) goOn(ctx context.Context, e *state.Entry) error {
	if problem := a.prewarmProblem(); problem != "" {
		return fmt.Errorf("%w: %s", volume.ErrUnavailable, problem)
	}
	bctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	dst, err := a.prewarmTarget(bctx, e)
	if err != nil {
		return err
	}
	faultPrewarmAllocated.Hit()
	a.startCopy(ctx, e, dst)
	return nil
}

// prewarmTarget opens the logical volume that the data are copied to, and makes it if there is
// none.
func (a *Attacher) prewarmTarget(ctx context.Context, e *state.Entry) (blockdev.File, error) {
	view := a.Pool.View()
	c, err := a.ssd.Inspect(ctx, view.VG, e.ID)
	if err != nil {
		return nil, err
	}
	if c.Data.Name == "" {
		if err := a.allocatePrewarm(ctx, e); err != nil {
			return nil, err
		}
	}
	if c, err = a.ssd.ActivateData(ctx, view.VG, e.ID); err != nil {
		return nil, err
	}
	if c.Data.Name == "" || !c.Data.Active {
		return nil, fmt.Errorf("%w: logical volume %s is not active", volume.ErrUnavailable, layout.DataLV(e.ID))
	}
	return a.Blocks.Open(c.Data.DevPath(), unix.O_RDWR|unix.O_DIRECT)
}

// allocatePrewarm makes the logical volume that the data are copied to, which has none
// of them.
func (a *Attacher) allocatePrewarm(ctx context.Context, e *state.Entry) error {
	unlock, err := a.ssd.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	view := a.Pool.View().For(e.Mirrored)
	if err := cachetools.RemoveFiles(a.copiedFile(e.ID)); err != nil {
		return err
	}
	if err := a.ssd.Remove(ctx, e.ID); err != nil {
		return err
	}
	return a.createPlaced(ctx, e.ID, view, []lvm.CreateSpec{cacheSpecOf(e, e.Mirrored, false).dataSpec(view, layout.Tags(e.Fence, e.Mode))})
}

// startCopy lets the copy run beside whatever else this node does.
func (a *Attacher) startCopy(ctx context.Context, e *state.Entry, dst blockdev.File) {
	places := uint64(e.Prewarm.ExportedBytes) / (e.Prewarm.ChunkSectors * sectorSize)
	copied := volume.NewBits(places)
	copy(copied, a.readCopied(e.ID, e.Prewarm.Tracking))
	cctx, cancel := context.WithCancel(ctx)
	p := &prewarming{
		a: a, id: e.ID, Prewarm: *e.Prewarm, file: a.copiedFile(e.ID), cancel: cancel, dst: dst, copied: copied, places: places,
	}
	a.prewarms.set(e.ID, p)
	klog.FromContext(ctx).Info("Cache is prewarmed", "volume", e.ID, "move", e.Prewarm.Move.Name)
	go func() {
		err := p.run(cctx)
		a.copyEnded(ctx, e.ID, p, err)
	}()
}

// prewarmLimit is the bandwidth of one copy in bytes per second: its own, and its
// share of the node's. 0 is no limit.
func (a *Attacher) prewarmLimit(own int64) int64 {
	return a.hydrations.Limit(own, a.hydrations.Count()+a.streams.Count()+a.prewarms.count())
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
	if lerr != nil || e == nil || e.State != state.Prewarmed || e.Prewarm.Tracking != p.Tracking {
		a.prewarms.take(id)
		return
	}
	outcome, message := volume.MoveCompleted, "everything was copied; what the pod writes until the move is copied then"
	if err != nil && p.copied.Count() == 0 {
		log.Error(err, "Nothing is prewarmed")
		a.endPrewarm(ctx, e, volume.MoveFailed, err.Error())
		if err := a.wipe(ctx, id, e); err != nil {
			log.Error(err, "What was made for a copy could not be removed; it will be tried again")
		}
		return
	}
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
