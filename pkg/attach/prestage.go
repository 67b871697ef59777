package attach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// prestageEvery is the pause between two looks that nothing has woken.
	prestageEvery = 30 * time.Second
	// prestagesAtATime bounds how many volumes are prestaged beside each other. The
	// stages of the others do without.
	prestagesAtATime = 4
	// prestageTimeout bounds one of them: its volume is locked, and the stage may find a
	// way that is shorter.
	prestageTimeout = time.Minute
	// plugPause is how long the stage of a volume over another driver is not prestaged: on nodes of
	// one processor that delayed the attachment by more than it saves (docs/benchmarks.md, Streams).
	plugPause = time.Second
)

// prestages are the stages that this process has begun before they were asked for
// (states.md, The warm move). They are lost with it, which leaves what a killed stage
// leaves.
type prestages struct {
	mu sync.Mutex
	m  map[volume.ID]*staging
	// under are those that are under way; their volumes are locked. What is announced
	// of a volume meanwhile goes through the channel, which holds one request.
	under map[volume.ID]chan volume.StageRequest
	// tooLate are the fences of those whose maps were not there in time. Their stages do not ask the
	// other node again.
	tooLate map[volume.ID]volume.Fence
}

func (p *prestages) put(id volume.ID, s *staging) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil {
		p.m = map[volume.ID]*staging{}
	}
	p.m[id] = s
}

func (p *prestages) take(id volume.ID) *staging {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.m[id]
	delete(p.m, id)
	return s
}

// begin reports whether one more may begin; end must follow.
func (p *prestages) begin(id volume.ID) (announced <-chan volume.StageRequest, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.under[id] != nil || len(p.under) >= prestagesAtATime {
		return nil, false
	}
	if p.under == nil {
		p.under = map[volume.ID]chan volume.StageRequest{}
	}
	ch := make(chan volume.StageRequest, 1)
	p.under[id] = ch
	return ch, true
}

// announce never waits. Nobody listens unless the volume is being prestaged.
func (p *prestages) announce(req volume.StageRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.under[req.ID] <- req:
	default:
	}
}

func (p *prestages) end(id volume.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.under, id)
}

// late notes that the maps of a volume were not there in time, and staged that its stage is over.
func (p *prestages) late(id volume.ID, f volume.Fence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tooLate == nil {
		p.tooLate = map[volume.ID]volume.Fence{}
	}
	p.tooLate[id] = f
}

func (p *prestages) staged(id volume.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.tooLate, id)
}

func (p *prestages) wasLate(id volume.ID, f volume.Fence) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tooLate[id] == f
}

// keep forgets the others.
func (p *prestages) keep(ids map[volume.ID]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.m, func(id volume.ID, _ *staging) bool { return !ids[id] })
	maps.DeleteFunc(p.tooLate, func(id volume.ID, _ volume.Fence) bool { return !ids[id] })
}

// mayPrestage reports whether the stage of a volume may begin before it is asked for: it
// is going to begin from a peer, and nothing of the volume is here that it would have to
// judge.
func mayPrestage(e *state.Entry, rec volume.Volume, node string) bool {
	switch {
	case !rec.Published || rec.Fence.Node != node || rec.Deleting || rec.WarmSource == nil || rec.Spec.CapacityBytes <= 0:
		return false
	case e != nil:
		return e.State == state.Retained && e.Fence != rec.Fence && !outdated(rec.Fence, e.Fence)
	}
	return true
}

// worthPrestaging reports whether a plan is one for which that pays.
func (p stagePlan) worthPrestaging() bool {
	return p.Refuse == nil && p.Cache == planCreate && p.Warm != nil && p.Warm.Peer != nil && !p.Keep
}

// RunPrestages begins the stages of volumes that come with a cache, as soon as their
// records name this node, until ctx ends.
func (a *Attacher) RunPrestages(ctx context.Context) {
	if a.Owned == nil || a.warmProblemConfigured() != "" {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	changed := a.Owned.Changed()
	for {
		a.beginPrestages(ctx, &wg)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(prestageEvery):
		}
	}
}

// Announce implements volume.Attacher.
func (a *Attacher) Announce(req volume.StageRequest) { a.prestages.announce(req) }

// Prestage begins the stages that are due now, and waits until they are ready.
func (a *Attacher) Prestage(ctx context.Context) {
	var wg sync.WaitGroup
	a.beginPrestages(ctx, &wg)
	wg.Wait()
}

func (a *Attacher) beginPrestages(ctx context.Context, wg *sync.WaitGroup) {
	for _, rec := range a.toPrestage(ctx) {
		announced, ok := a.prestages.begin(rec.ID)
		if !ok {
			continue
		}
		wg.Go(func() {
			defer a.prestages.end(rec.ID)
			bounded, cancel := context.WithTimeout(ctx, prestageTimeout)
			defer cancel()
			if rec.Spec.Origin != nil && !waitForPlug(bounded, announced) {
				return
			}
			if err := a.prestage(bounded, rec, announced); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Stage could not be prepared", "volume", rec.ID)
			}
		})
	}
}

// waitForPlug leaves the processors to another driver's disk, which is being plugged into this machine
// when the record names it. It reports false if kubelet asks for the stage meanwhile, which then does all
// of it.
func waitForPlug(ctx context.Context, announced <-chan volume.StageRequest) bool {
	select {
	case <-announced:
		return false
	case <-ctx.Done():
		return false
	case <-time.After(plugPause):
		return true
	}
}

// toPrestage are the volumes whose stage may be begun, as the watch shows them.
func (a *Attacher) toPrestage(ctx context.Context) []volume.Volume {
	recs, err := a.Owned.List(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("No stage is prepared", "reason", err.Error())
		return nil
	}
	var due []volume.Volume
	owned := map[volume.ID]bool{}
	for _, rec := range recs {
		owned[rec.ID] = true
		if rec.WarmSource == nil {
			continue
		}
		// An entry that cannot be read is the stage's to complain of.
		if e, err := a.load(rec.ID); err == nil && mayPrestage(e, rec, a.Node) {
			due = append(due, rec)
		}
	}
	a.prestages.keep(owned)
	return due
}

// prestage takes the steps of a stage for which the address of the origin is not needed:
// it leaves what a stage leaves that was killed before it connected the origin. If the
// request comes meanwhile, it is what a stage leaves that was killed after that.
func (a *Attacher) prestage(ctx context.Context, rec volume.Volume, announced <-chan volume.StageRequest) error {
	unlock, ok := a.Locks.TryLock(string(rec.ID))
	if !ok {
		return nil
	}
	defer unlock()
	facts, cache, err := a.gatherStage(ctx, volume.StageRequest{ID: rec.ID, Publication: volume.Publication{Fence: rec.Fence}}, nil)
	if err != nil {
		return err
	}
	plan := decideStage(facts)
	if facts.TopActive || !mayPrestage(facts.Entry, facts.Record, a.Node) || !plan.worthPrestaging() {
		return nil
	}
	s := &staging{plan: plan, rec: facts.Record, entry: facts.Entry, cache: cache}
	s.req.ID, s.req.Publication.Fence = rec.ID, rec.Fence
	wait, err := a.begin(ctx, s)
	if err != nil {
		return err
	}
	connected, late := a.connectAnnounced(ctx, s, announced)
	defer connected()
	wait(late)
	if s.plan.Cache != planCreate {
		return nil // the old cache could not be wiped
	}
	if err := a.prepareDevices(ctx, s); err != nil {
		if errors.Is(err, errNotReady) {
			a.prestages.late(rec.ID, rec.Fence)
		}
		return err
	}
	connected()
	faultPrestageDone.Hit()
	a.prestages.put(rec.ID, s)
	klog.FromContext(ctx).V(2).Info("Stage prepared", "volume", rec.ID, "generation", rec.Fence.Generation, "data", s.data != "")
	return nil
}

// connectAnnounced connects the origin while the stage is prestaged, once the request is
// announced that has its address and credentials: with a storage server that is not
// next door that takes as long as all the rest. The returned function waits for a
// connection that has begun, and lets none begin any more; the channel is closed when there is
// one, or none can be had: the stage waits.
func (a *Attacher) connectAnnounced(ctx context.Context, s *staging, announced <-chan volume.StageRequest) (wait func(), connected <-chan struct{}) {
	over, done, there := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.connected = there
	go func() {
		defer close(done)
		select {
		case <-over:
		case <-ctx.Done():
		case req := <-announced:
			s.asked = time.Now()
			if req.Publication.Fence != s.req.Publication.Fence {
				return
			}
			if err := a.connectEarly(ctx, s, req); err != nil {
				// The stage meets the same, and says so.
				klog.FromContext(ctx).V(2).Info("Origin is not prestaged", "volume", req.ID, "reason", err.Error())
				return
			}
			close(there)
		}
	}()
	return sync.OnceFunc(func() {
		close(over)
		<-done
	}), done
}

// connectEarly has the journal know the session before there is one.
func (a *Attacher) connectEarly(ctx context.Context, s *staging, req volume.StageRequest) error {
	if err := s.update(func(e *state.Entry) error {
		e.Source = req.Publication.Source
		return a.save(ctx, e, state.Staging)
	}); err != nil {
		return err
	}
	faultPrestageAnnounced.Hit()
	_, err := a.Transport.Connect(ctx, transport.Target{Source: req.Publication.Source}, req.Credentials)
	if err == nil {
		faultPrestageConnected.Hit()
	}
	return err
}

// prepareDevices makes the cache and its data device for an origin of the size that the
// record says.
func (a *Attacher) prepareDevices(ctx context.Context, s *staging) error {
	if s.seed.peer == nil && s.seed.list == nil || mayBeCoarse(a.Pool.View()) {
		return nil // who else it begins from is the origin
	}
	ctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	return s.update(func(e *state.Entry) (err error) {
		s.preparing = true
		defer func() { s.preparing = false }()
		s.origin = stack.Origin{Sectors: uint64(s.rec.Spec.CapacityBytes) / sectorSize}
		e.OriginBytes = int64(s.origin.Sectors) * sectorSize // noted on the SSD, for a rescue
		if err := a.provideCache(ctx, s); err != nil {
			return err
		}
		if e.Hydration == nil || e.Hydration.Peer == nil && !e.Streams() {
			return nil
		}
		if s.data, err = a.createDataDevice(ctx, e, s.cache, s.origin); err == nil && e.Streams() {
			_, err = a.stack.LevelData(ctx, e, s.cache.Data)
		}
		return err
	})
}

// precedes reports whether the journal's entry is the one that the prestaged stage, which
// may be nil, has written last.
func (s *staging) precedes(e *state.Entry, f volume.Fence) bool {
	return s != nil && e != nil && e.State == state.Staging && s.entry.Fence == f && s.entry.UpdatedAt.Equal(e.UpdatedAt)
}

// fits reports whether a prestaged stage is the one that is planned now.
func (s *staging) fits(p stagePlan) bool {
	return p.worthPrestaging() && *p.Warm.Peer == *s.plan.Warm.Peer && p.Warm.Method == s.plan.Warm.Method && p.Mode == s.plan.Mode
}

// resume continues with a stage that was prestaged.
func (a *Attacher) resume(ctx context.Context, s, p *staging) error {
	s.plan, s.entry, s.cache, s.seed, s.preallocated, s.plannedFor, s.data = p.plan, p.entry, p.cache, p.seed, p.preallocated, p.plannedFor, p.data
	s.entry.Source = s.req.Publication.Source
	return a.save(ctx, s.entry, state.Staging)
}

// checkPrestaged gives up what was prestaged for an origin of another size.
func (a *Attacher) checkPrestaged(ctx context.Context, s *staging) error {
	if s.plannedFor == 0 || s.plannedFor == int64(s.origin.Sectors)*sectorSize {
		return nil
	}
	klog.FromContext(ctx).Info("Cache is made anew for the origin's size", "volume", s.req.ID, "bytes", int64(s.origin.Sectors)*sectorSize)
	if err := a.stack.RemoveUpper(ctx, s.req.ID); err != nil {
		return err
	}
	s.plannedFor, s.data, s.cache, s.preallocated = 0, "", ssd.Cache{}, nil
	if err := a.ssd.Remove(ctx, s.req.ID); err != nil {
		return fmt.Errorf("cache of volume %s for another size: %w", s.req.ID, err)
	}
	return nil
}
