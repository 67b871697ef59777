package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/hotset"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// deviceRest is how long a pod runs uncached after its SSD failed before a cache
// is tried again below it.
const deviceRest = 10 * time.Minute

// staging is one stage under way.
type staging struct {
	req    volume.StageRequest
	plan   stagePlan
	rec    volume.Volume
	entry  *state.Entry
	cache  ssd.Cache
	origin stack.Origin
	// reserved and inherited are knownReservation.
	reserved, inherited bool
	// activation is that of this stage.
	activation volume.Activation
	// ended is the end of a move that an earlier stage here has not reported.
	ended *state.EndedMove
	// seed is where a new cache begins.
	seed seed
	// preallocated are the volumes of a new cache, nil if none were made yet.
	preallocated *preallocated
	// plannedFor is the size of the origin for which cache is what the plan needs, 0 if it
	// is not yet, and data the number of the data device over it, "" if there is none.
	plannedFor int64
	data       string
	// own is held by who changes or journals the entry while two may; preparing tells that it is
	// held by who prepares the devices.
	own       sync.Mutex
	preparing bool
	// givenUp is true if unflushed writes of this ownership are not missed.
	givenUp bool
	// asked is when kubelet asked for it. connected is closed once the origin is connected: asked is not
	// changed after that.
	asked     time.Time
	connected <-chan struct{}
}

// abandoned tells a cache whose unflushed writes need not be flushed.
func (s *staging) abandoned() bool { return s.plan.Cache == planRecover && s.givenUp }

// unmarked tells a cache that is recovered below a record that says clean, and that is not marked
// before it is active: to mark it would take the consent back, or is refused while it is held.
func (s *staging) unmarked() bool {
	return s.plan.Cache == planRecover && !s.rec.PossiblyDirty && (s.givenUp || s.rec.Hold != nil)
}

// update changes the entry while two may.
func (s *staging) update(change func(*state.Entry) error) error {
	s.own.Lock()
	defer s.own.Unlock()
	return change(s.entry)
}

// beside does what takes long and leaves the entry alone: who waits for the entry has it meanwhile.
func (s *staging) beside(f func() error) error {
	if s.preparing {
		s.own.Unlock()
		defer s.own.Lock()
	}
	return f()
}

// Stage implements volume.Attacher.
func (a *Attacher) Stage(ctx context.Context, req volume.StageRequest) error {
	asked := time.Now()
	facts, s, prestaged, err := a.gatherAndDecide(ctx, req)
	if err != nil {
		return err
	}
	s.asked = asked
	plan := s.plan
	klog.FromContext(ctx).Info("Stage decided", "volume", req.ID, "plan", plan.Cache, "mode", plan.Mode,
		"wipe", plan.Wipe, "reason", plan.Reason, "generation", req.Publication.Fence.Generation)
	if plan.Mark {
		// With the stage that they are of, or a later consent would be taken for an earlier one.
		e := facts.Entry
		plan.Refuse = errors.Join(plan.Refuse, a.Records.SetActivation(ctx, e.ID, e.Fence, e.Activation()), a.Records.MarkPossiblyDirty(ctx, e.ID, e.Fence))
	}
	if plan.Refuse != nil {
		return plan.Refuse
	}
	if facts.Record.Abandoned {
		// Before the mount, which may fail by what was lost.
		a.notifyAbandoned(ctx, req.ID, req.Publication.Fence, nil)
	}
	if plan.Cache == planAdopt {
		if err = a.adopt(ctx, s); err != nil {
			_, leaveErr := a.leaveVanished(ctx, s.entry) // the next call builds it anew
			err = errors.Join(err, leaveErr)
		}
	} else {
		err = a.build(ctx, s, prestaged)
	}
	if err != nil {
		return err
	}
	if err := a.leaveCoarse(ctx, s); err != nil {
		return err
	}
	if err := a.mountStaged(ctx, s); err != nil {
		return err
	}
	a.prestages.staged(req.ID)
	a.reportStaged(ctx, s)
	a.poll()
	return nil
}

// gatherAndDecide begins a stage, from what was prestaged of it if there is such a thing
// and it is still what is needed: then the SSD is not asked again what it has.
func (a *Attacher) gatherAndDecide(ctx context.Context, req volume.StageRequest) (f stageFacts, s, prestaged *staging, err error) {
	prestaged = a.prestages.take(req.ID)
	f, cache, err := a.gatherStage(ctx, req, prestaged)
	if err != nil {
		return f, nil, nil, err
	}
	plan := decideStage(f)
	if prestaged != nil && (!f.Prestaged || !prestaged.fits(plan)) {
		prestaged = nil
		if f.Prestaged {
			if f, cache, err = a.gatherStage(ctx, req, nil); err != nil {
				return f, nil, nil, err
			}
			plan = decideStage(f)
		}
	}
	s = &staging{req: req, plan: plan, rec: f.Record, entry: f.Entry, cache: cache, givenUp: f.Proof.GivenUp}
	s.reserved, s.inherited = a.knownReservation(s.entry, s.rec, req.Publication.Fence)
	return f, s, prestaged, nil
}

// build makes the top device according to the plan, from what was prestaged if that is
// not nil.
func (a *Attacher) build(ctx context.Context, s, prestaged *staging) (err error) {
	id, wait := s.req.ID, func(<-chan struct{}) {}
	if prestaged != nil {
		err = a.resume(ctx, s, prestaged)
	} else {
		wait, err = a.begin(ctx, s)
	}
	if err != nil {
		return err
	}
	s.origin, err = a.connect(ctx, s)
	now := make(chan struct{})
	close(now)
	s.connected = now
	wait(now)
	if err == nil {
		err = a.checkPrestaged(ctx, s)
	}
	if err == nil {
		err = a.checkLUNIdentity(ctx, s)
	}
	if err == nil {
		err = a.checkPool(ctx, s)
	}
	if err != nil {
		return err
	}
	faultStageConnected.Hit()
	s.entry.OriginBytes = int64(s.origin.Sectors) * sectorSize
	if s.rec.WarmSource != nil {
		// From here on the origin may become newer than any retained cache.
		if err := a.Records.TakeWarmSource(ctx, id, s.entry.Fence); err != nil {
			return err
		}
	}
	faultStageTaken.Hit()
	s.entry.Raw = s.req.Block
	if s.plan.Cache != planUncached {
		if err := a.buildCached(ctx, s); err != nil {
			return err
		}
	}
	if s.plan.Cache == planUncached {
		if err := a.stack.CreateTop(ctx, s.entry, devmapper.LinearTable(s.origin.Sectors, s.origin.DevNo)); err != nil {
			return err
		}
	}
	faultStageActivated.Hit()
	if err := a.confirmActivation(ctx, s.entry, s.rec); err != nil {
		return err
	}
	faultStageConfirmed.Hit()
	if err := a.recordStay(id, s.entry.Fence); err != nil {
		return err
	}
	faultStageNoted.Hit()
	a.stack.BeginCounting(ctx, s.entry)
	if err := a.save(ctx, s.entry, state.Staged); err != nil {
		return err
	}
	if s.entry.Streams() {
		a.streams.Begin(id)
	} else if s.entry.Hydration != nil {
		a.hydrations.Begin(id, a.Now())
	}
	if s.plan.Keep {
		if err := cachetools.RemoveFiles(a.copiedFile(id)); err != nil {
			klog.FromContext(ctx).Error(err, "Note of what was copied was not removed", "volume", id)
		}
	}
	faultStageStaged.Hit()
	return nil
}

// begin ends what the volume left here, writes the journal, and begins to make the
// logical volumes and to ask where the cache may begin from. The returned function waits
// for both, for a stream only until its channel is closed; until then the entry belongs to them.
func (a *Attacher) begin(ctx context.Context, s *staging) (wait func(late <-chan struct{}), err error) {
	if e := s.entry; e != nil && s.plan.Cache != planRecover {
		// The next entry would not know it; that of a recovery does.
		if err := a.tellTorn(ctx, e); err != nil {
			return nil, err
		}
	}
	// What another fence left, or a call that was killed half way: the parts
	// below a top device that is not there would keep the cache from its wipe.
	if err := a.removeEarlier(ctx, s); err != nil {
		return nil, err
	}
	if err := a.leaveEarlier(ctx, s); err != nil {
		return nil, err
	}
	if err := a.pendActivation(ctx, s); err != nil {
		return nil, err
	}
	if s.plan.Wipe {
		a.wipeForStage(ctx, s)
		faultStageWiped.Hit()
	}
	if err := a.saveIntent(ctx, s); err != nil {
		return nil, err
	}
	faultStageJournaled.Hit()
	allocated, found := a.beginAllocate(ctx, s), a.beginHydration(ctx, s)
	return func(late <-chan struct{}) {
		s.preallocated = allocated()
		found(late)
	}, nil
}

// leaveEarlier ends what an earlier stay of the volume on this node has outside of
// the device mapper: a lease to others, a session with a peer, one with the target of an
// earlier admission. The journal is about to forget that one.
func (a *Attacher) leaveEarlier(ctx context.Context, s *staging) error {
	e := s.entry
	if e == nil {
		return nil
	}
	s.ended = e.EndedMove
	if e.State != state.Retained && !e.Source.Same(s.req.Publication.Source) {
		if err := a.disconnect(ctx, e); err != nil {
			return err
		}
	}
	if err := a.leases.End(ctx, e); err != nil {
		return err
	}
	a.endPrewarm(ctx, e, volume.MoveEnded, "the volume came to this node before everything was copied")
	switch {
	case e.Hydration == nil:
	case s.plan.Cache == planReuse || s.plan.Cache == planRecover || s.plan.Warm != nil && s.plan.Warm.Peer != nil:
		a.leavePeer(ctx, e)
	default:
		a.endHydration(ctx, e, volume.MoveFailed, "the volume was staged anew")
	}
	return nil
}

// wipeForStage destroys a cache that must not be used. If that fails the volume
// is attached uncached: the journal no longer knows the cache, so that it can
// only be wiped later (I3, I6). The entry goes when the intent is written over it: a stage
// that is killed before that leaves one that tells of the mark in the record (I8).
func (a *Attacher) wipeForStage(ctx context.Context, s *staging) {
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	if err := a.empty(cctx, s.req.ID, s.entry); err != nil {
		klog.FromContext(ctx).Error(err, "Stale cache could not be wiped", "volume", s.req.ID)
		if s.plan.Cache != planUncached {
			s.plan = uncached(s.plan, v1alpha1.ReasonCacheDeviceError, err.Error())
		}
	}
	s.cache = ssd.Cache{}
	s.entry = nil
}

// saveIntent writes the Staging entry.
func (a *Attacher) saveIntent(ctx context.Context, s *staging) error {
	prior := s.entry
	e := &state.Entry{
		ID: s.req.ID, ActivationID: s.activation.ID, ActivationCount: s.activation.Count, CountedAt: a.Now().UTC(), Fence: s.req.Publication.Fence, Source: s.req.Publication.Source, Mode: s.plan.Mode,
		Static: s.rec.Spec.Static != nil, Abandoned: s.rec.Abandoned, EndedMove: s.ended,
		// A stage that ends before it reserves the LUN anew leaves what is known of it.
		Reserved: s.reserved, Inherited: s.inherited, ReadOnly: s.rec.ReadOnly,
	}
	if prior != nil {
		e.Names, e.Unfenced = prior.Names, prior.Unfenced && prior.Fence == e.Fence
	}
	e.Names, e.HotSetAt = state.NamesOf(s.rec, e.Names), a.Now().Add(hotset.First-a.Warm.HotSetEvery).UTC()
	if s.plan.Reason == v1alpha1.ReasonCacheDeviceError {
		e.NoCacheBefore = a.Now().Add(deviceRest)
	}
	e.Checked = s.plan.Cache == planCreate && a.Pool.View().Integrity || s.plan.Cache != planCreate && s.plan.Cache != planUncached && s.cache.Data.Checked
	switch {
	case s.plan.Cache == planReuse:
		e.WWID, e.WrittenThrough = prior.WWID, prior.WrittenThrough
		e.ChunkSectors, e.DataBytes, e.MetaBytes, e.Clean = prior.ChunkSectors, prior.DataBytes, prior.MetaBytes, true
		e.Marked, e.Hydration = prior.Marked, prior.Hydration.Again()
	case s.plan.Cache == planRecover:
		e.Activated, e.Marked, e.Recovered = true, true, true
		e.Torn = prior == nil && s.rec.Spec.Unsafe // the journal is lost that could deny it
		if prior != nil {
			e.Torn = prior.Torn || prior.Unsafe
			e.WWID = prior.WWID
			e.ChunkSectors, e.DataBytes, e.MetaBytes, e.Hydration = prior.ChunkSectors, prior.DataBytes, prior.MetaBytes, prior.Hydration.Again()
		}
	default:
		// Of what another node had, its lease tells.
		e.WrittenThrough = s.plan.Mode == volume.ModeWritethrough && (s.plan.Warm == nil || s.plan.Warm.Peer == nil)
		switch w := s.plan.Warm; {
		case w != nil && len(w.Readers) > 0:
			e.Hydration = fromReader(w.Readers[0])
		case w != nil && w.Peer != nil:
			e.Hydration = &state.Hydration{From: w.Peer}
			if w.Method == volume.MethodStream {
				e.Hydration.Stream = &state.Stream{}
			}
			if s.plan.Keep {
				e.Prewarm = prior.Prewarm
			}
		}
		// What was marked under this fence must be unmarked at the end, even
		// if this attachment runs uncached.
		e.Marked = s.rec.PossiblyDirty
	}
	s.entry = e
	return a.save(ctx, e, state.Staging)
}

// adopt keeps an active top device and ends a flush that was under way.
func (a *Attacher) adopt(ctx context.Context, s *staging) error {
	e := s.entry
	var err error
	if s.origin, err = a.lookupOrigin(ctx, s.req.ID, e.Source); err != nil {
		return err
	}
	if err := a.stack.QueuePaths(ctx, e.ID); err != nil {
		return err
	}
	e.OriginBytes = int64(s.origin.Sectors) * sectorSize
	e.Abandoned = s.rec.Abandoned
	if err := a.confirmActivation(ctx, e, s.rec); err != nil {
		return err
	}
	// Whoever made the device may have been killed before it noted that.
	if err := a.recordStay(e.ID, e.Fence); err != nil {
		return err
	}
	if e.WWID == "" {
		e.WWID = s.origin.WWID // attached by an earlier version
	}
	if e.Streams() {
		a.streams.Begin(e.ID)
	} else if e.Hydration != nil {
		a.hydrations.Begin(e.ID, time.Time{})
	}
	if e.Counting == "" {
		a.stack.BeginCounting(ctx, e)
	}
	if !e.Cached() {
		return a.save(ctx, e, state.Staged)
	}
	if err := a.drainUnmarked(ctx, s); err != nil {
		return err
	}
	if err := a.markDirty(ctx, e); err != nil {
		return err
	}
	e.Activate(e.Mode)
	e.Raw = s.req.Block
	if err := a.save(ctx, e, state.Staged); err != nil {
		return err
	}
	// Whoever made the device may have been killed before.
	a.stack.RefuseDiscards(ctx, e)
	if e.Streams() {
		return nil // its tables are the stream's
	}
	return a.swapPolicy(ctx, e, false)
}

// drainUnmarked flushes a cache that takes writes below a record that says clean and is held:
// nobody may mark it, and no pod may write before it is marked or flushed (I2).
func (a *Attacher) drainUnmarked(ctx context.Context, s *staging) error {
	e := s.entry
	if s.rec.Hold == nil || s.rec.PossiblyDirty || e.Mode != volume.ModeWriteback {
		return nil
	}
	held := changeFacts{Entry: e, Record: s.rec}
	held.Record.Spec.Mode = volume.ModeWritethrough
	wait, err := a.cleanLive(ctx, held)
	if err == nil && wait {
		err = fmt.Errorf("%w: volume %s is held for %s, and its cache is flushed first", volume.ErrBusy, e.ID, s.rec.Hold.Name)
	}
	return err
}

// mountStaged formats and mounts a filesystem volume.
func (a *Attacher) mountStaged(ctx context.Context, s *staging) error {
	if s.req.Block {
		return a.handOutRaw(ctx, s)
	}
	info, found, err := a.stack.Top(ctx, s.req.ID)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w: device %s vanished while the volume was staged", volume.ErrUnavailable, layout.Device(s.req.ID, layout.Top))
	}
	if devno, mounted, err := a.FS.Source(ctx, s.req.StagingPath); err != nil || mounted {
		if err := checkMounted(s.req.StagingPath, devno, info, err); err != nil {
			return err
		}
		return a.growInherited(ctx, s, info.DevPath())
	}
	if err := a.ensureFilesystem(ctx, s, info.DevPath()); err != nil {
		return err
	}
	faultStageFormatted.Hit()
	if err := a.FS.Mount(ctx, info.DevPath(), s.req.StagingPath, s.req.FSType, s.mountOptions()); err != nil {
		return s.explainMount(err)
	}
	faultStageMounted.Hit()
	return a.growInherited(ctx, s, info.DevPath())
}

// mountOptions are those that were asked for; what many read is mounted so.
func (s *staging) mountOptions() []string {
	if !s.entry.ReadOnly || slices.Contains(s.req.MountOptions, "ro") {
		return s.req.MountOptions
	}
	return append(slices.Clone(s.req.MountOptions), "ro")
}

// explainMount says what may be wrong with a filesystem that many are to read. Its device cannot be
// written to, so that the kernel mounts it only if there is nothing to recover (ext4_load_journal in
// fs/ext4/super.c, xlog_recover in fs/xfs/xfs_log_recover.c).
func (s *staging) explainMount(err error) error {
	if !s.entry.ReadOnly {
		return err
	}
	return fmt.Errorf("%w (volume %s is read by many nodes, and none of them may write to it: a filesystem that was not unmounted, or frozen, when it was cut or detached has a journal to recover, and is mounted only with the mount option noload of ext4 or norecovery of xfs, which shows it as it was without that; or use the volume once with ReadWriteOnce, which recovers it)", err, s.req.ID)
}

// growInherited gives the filesystem of a volume that was made from a smaller one all of the
// volume. Kubernetes does not ask for it: it has expanded nothing.
func (a *Attacher) growInherited(ctx context.Context, s *staging, device string) error {
	if s.rec.Spec.Parent == nil || s.req.ReadOnly || s.entry.ReadOnly || slices.Contains(s.req.MountOptions, "ro") {
		return nil
	}
	return a.FS.Grow(ctx, device, s.req.StagingPath)
}

// checkMounted judges a look at what is mounted at path: it must be the volume.
func checkMounted(path, devno string, want devmapper.Info, err error) error {
	if err != nil {
		return err
	}
	if devno != want.DevNo() {
		return fmt.Errorf("%w: %s has device %s mounted, expected %s", volume.ErrInUse, path, devno, want.DevNo())
	}
	return nil
}
