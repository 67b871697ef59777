package hydration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// tick is the pause between two looks at hydrations under way: how long a pod may
	// wait for a lost peer before anybody notices, and the unit of the rate limit.
	tick = 400 * time.Millisecond
	// idlePause is the pause while there is none, and between two looks at the journal for
	// those that are not known.
	idlePause = 15 * time.Second
	// ReportEvery is the least time between two reports of one hydration.
	ReportEvery = 5 * time.Second
	// minPulse is the shortest time that a copy is let run.
	minOnTime = 5 * time.Millisecond
	// patience is how long a look waits for the steps that it has begun.
	patience = 5 * time.Second
	// burst is how long a hydration may save up what it was not allowed to copy.
	burst = time.Second
)

// Run leads hydrations to their end until ctx ends: it takes the steps of states.md,
// The warm move, and is what replaces a peer that is lost.
func (r *Runner) Run(ctx context.Context) {
	for {
		pause := r.Turn(ctx)
		select {
		case <-ctx.Done():
			return
		case <-r.memory.wake:
		case <-time.After(pause):
		}
	}
}

// Turn is one turn of Run. It returns how long it may rest then.
func (r *Runner) Turn(ctx context.Context) (pause time.Duration) {
	if r.memory.findDue(r.Now()) {
		r.find(ctx)
	}
	if r.stepAll(ctx) == 0 {
		return idlePause
	}
	return tick
}

// find finds the hydrations that the journal knows, also of caches that it denies: while a
// step takes one away, the pod may still wait for the peer.
func (r *Runner) find(ctx context.Context) {
	entries, err := r.Host.Entries()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Not every hydration under way is known")
	}
	for i := range entries {
		if e := &entries[i]; e.Hydration != nil && !e.Streams() && e.State != state.Retained {
			r.memory.begin(e.ID, time.Time{})
		}
	}
}

// stepAll looks at every hydration once and returns how many there are.
func (r *Runner) stepAll(ctx context.Context) int {
	ids := r.memory.ids()
	if len(ids) == 0 {
		return 0
	}
	log := klog.FromContext(ctx)
	poll, err := r.poll(ctx, ids)
	if err != nil {
		log.Error(err, "State of the hydrations is not known")
		return len(ids)
	}
	if poll.settling {
		return len(ids)
	}
	// A lost peer may hold up one of them for seconds. What it took is logged by the volume.
	_ = r.work.Each(ctx, 0, patience, ids, func(ctx context.Context, id volume.ID) error {
		if err := r.step(ctx, id, poll); err != nil && ctx.Err() == nil {
			log.Error(err, "Hydration does not go on, it will be tried again", "volume", id)
		}
		return nil
	})
	return len(ids)
}

// snapshot is what one look at the kernel shows of all hydrations.
type snapshot struct {
	clones map[string]devmapper.CloneStatus
	// fresh is false if clones are what the last look has seen.
	fresh bool
	paths map[string]devmapper.MultipathStatus
	// infos are of all devices; nil if nothing but the progress is of interest.
	infos  map[string]devmapper.Info
	active int
	// settling is true if there is nothing to do yet but to see that the paths are
	// there; the rest is not known then.
	settling bool
}

// settling tells a hydration whose pod is being started.
func (r *Runner) settling(memo *account) bool {
	if memo == nil {
		return false
	}
	r.memory.mu.Lock()
	since := memo.since
	r.memory.mu.Unlock()
	return r.Now().Sub(since) < r.Settle
}

// poll needs one command while nothing happens but copying, and that now and then.
func (r *Runner) poll(ctx context.Context, ids []volume.ID) (l snapshot, err error) {
	l.active, l.paths, l.settling = len(ids), map[string]devmapper.MultipathStatus{}, true
	for _, id := range ids {
		switch st, err := r.Devices.MultipathStatus(ctx, layout.Device(id, layout.Source)); {
		case err == nil:
			l.paths[layout.Device(id, layout.Source)] = st
		case !errors.Is(err, devmapper.ErrNotExist) && !errors.Is(err, devmapper.ErrParse):
			return l, err
		}
		path, waits := l.paths[layout.Device(id, layout.Source)]
		l.settling = l.settling && waits && path.HasPath() && r.settling(r.memory.memo(id))
	}
	if l.settling {
		return l, nil
	}
	if l.clones = r.memory.remembered(r.Now()); l.clones == nil {
		switch l.clones, err = r.Devices.CloneStatusAll(ctx); {
		case ctx.Err() != nil:
			return l, ctx.Err()
		case err != nil:
			// Whoever waits for a lost path waits all the same.
			klog.FromContext(ctx).Error(err, "How much was copied is not known")
			l.clones = silentClones(ids)
		default:
			l.fresh = true
		}
		r.memory.remember(l.clones)
	}
	plain := true
	for _, id := range ids {
		memo := r.memory.memo(id)
		_, clone := l.clones[layout.Device(id, layout.Data)]
		path, waits := l.paths[layout.Device(id, layout.Source)]
		plain = plain && memo != nil && memo.known && clone && (!waits || path.HasPath())
	}
	if !plain {
		l.infos, err = r.Devices.Info(ctx, layout.DevicePrefix)
	}
	return l, err
}

// silentClones are clones of which nothing is known but that there may be one.
func silentClones(ids []volume.ID) map[string]devmapper.CloneStatus {
	out := map[string]devmapper.CloneStatus{}
	for _, id := range ids {
		out[layout.Device(id, layout.Data)] = devmapper.CloneStatus{Silent: true}
	}
	return out
}

// step takes one step of one hydration.
func (r *Runner) step(ctx context.Context, id volume.ID, poll snapshot) error {
	memo := r.memory.memo(id)
	e, err := r.Host.Entry(id)
	if err != nil || memo == nil || r.Now().Before(memo.retryAt) {
		return err
	}
	if e == nil || e.Hydration == nil || e.Streams() || e.State == state.Retained {
		r.memory.forget(id)
		return nil
	}
	f, err := r.gather(ctx, e, memo, poll)
	if err != nil {
		return err
	}
	if !e.Cached() && !f.Clone {
		// Nothing of it is in anybody's way; whoever took the cache away clears the rest.
		r.memory.forget(id)
		return nil
	}
	step := decide(f)
	if step != stepNothing {
		memo.idle = false
	}
	infos := poll.infos
	if infos == nil && (step == stepRemap || step == stepRevive) {
		if infos, err = r.Devices.Info(ctx, layout.Device(id, layout.Top)); err != nil {
			return err
		}
	}
	switch step {
	case stepRemap:
		err = r.remapPath(ctx, e, infos)
		memo.forgetDevice()
		r.memory.poke() // the peer may be waiting for this node to leave
	case stepRevive:
		err = r.Devices.Message(ctx, layout.Device(id, layout.Source), 0, "reinstate_path", infos[layout.Device(id, layout.Path)].DevNo())
	case stepNothing:
	case stepEnable:
		err = r.hydrate(ctx, id, memo)
	default:
		err = r.lockedStep(ctx, id, step, memo)
	}
	if err != nil {
		memo.retryAt = r.Now().Add(time.Second)
		return fmt.Errorf("step %s: %w", step, err)
	}
	r.report(ctx, e, f, memo)
	return nil
}

// gather gathers what decide needs, and reckons up the rate.
func (r *Runner) gather(ctx context.Context, e *state.Entry, memo *account, poll snapshot) (facts, error) {
	f := facts{Entry: e}
	if f.Status, f.Clone = poll.clones[layout.Device(e.ID, layout.Data)]; e.Hydration.RegionSectors == 0 {
		f.Clone = false // it has no shape yet: what was seen is the clone of a stage before
	}
	if !f.Clone {
		memo.forgetDevice()
		f.Linear = poll.infos[layout.Device(e.ID, layout.Data)].HasLive
		return f, nil
	}
	if !memo.known {
		onOrigin, err := r.Stack.OnOrigin(ctx, e, poll.infos)
		if err != nil {
			return f, err
		}
		memo.known, memo.onOrigin = true, onOrigin
	}
	f.OnOrigin = memo.onOrigin
	if poll.fresh && e.State == state.Staged && !f.Status.Silent { // until then, discards count as copied
		f.OverBudget = r.reckon(e, memo, f.Status, poll.active)
	}
	if f.Settling = r.settling(memo); f.Settling {
		memo.idle = true
	}
	if !f.Status.Silent {
		r.yield(ctx, e, memo, poll.active)
	}
	path, waits := poll.paths[layout.Device(e.ID, layout.Source)]
	if !waits {
		return f, nil
	}
	f.Expired = !e.Hydration.Deadline.IsZero() && r.Now().After(e.Hydration.Deadline)
	f.PathFailed = !path.HasPath()
	f.SourceStopped = !f.OnOrigin && r.sourceStopped(ctx, e)
	return f, nil
}

// sourceStopped reports whether the peer has said that it does not serve any more. Whoever
// cannot be asked has not.
func (r *Runner) sourceStopped(ctx context.Context, e *state.Entry) bool {
	if r.Moves == nil || e.Hydration.Peer == nil || e.Hydration.Move.Name == "" {
		return false
	}
	exported, err := r.Moves.Exported(ctx, e.Hydration.Move)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Whether the peer still serves is not known", "volume", e.ID, "reason", err.Error())
		return false
	}
	return !exported
}

// remapPath replaces the peer by the origin remap table. It takes no lock
// and writes no journal: whoever holds the volume's lock may be waiting for just
// this. What is loaded tells what was done.
func (r *Runner) remapPath(ctx context.Context, e *state.Entry, infos map[string]devmapper.Info) error {
	log := klog.FromContext(ctx).WithValues("volume", e.ID)
	began := r.Now()
	origin, path, data := infos[layout.Device(e.ID, layout.Origin)], infos[layout.Device(e.ID, layout.Path)], infos[layout.Device(e.ID, layout.Data)]
	if !origin.HasLive || !path.HasLive || !data.HasLive {
		return fmt.Errorf("%w: devices of the hydration are missing", volume.ErrUnavailable)
	}
	m, err := r.Host.ReadMap(e.ID)
	if err != nil {
		return err
	}
	sectors, err := r.Stack.DeviceSectors(ctx, layout.Device(e.ID, layout.Origin))
	if err != nil {
		return err
	}
	length, err := r.Stack.DeviceSectors(ctx, layout.Device(e.ID, layout.Path))
	if err != nil {
		return err
	}
	name := layout.Device(e.ID, layout.Path)
	if err := r.Devices.LoadReadOnly(ctx, name, m.RemapTable(origin.DevNo(), sectors, length, nil)); err != nil {
		return fmt.Errorf("load table of %s: %w", name, err)
	}
	if err := r.same(ctx, e, origin); err != nil {
		return errors.Join(err, r.Devices.Clear(ctx, name))
	}
	if err := r.Stack.SwapIn(ctx, name, r.Devices.Resume); err != nil {
		return err
	}
	faultHydrationRemapped.Hit()
	if err := r.Devices.Message(ctx, layout.Device(e.ID, layout.Source), 0, "reinstate_path", path.DevNo()); err != nil {
		return err
	}
	log.Info("The peer is replaced by the origin", "took", r.Now().Sub(began))
	return nil
}

// same tells, without the volume's lock, whether what was loaded is of the hydration that
// there is. Map and origin were read before, and a large table takes seconds to load: the
// volume may have been staged anew meanwhile, which the journal says before there is a
// device of it. The loaded table holds the origin, so that its number is nobody else's.
func (r *Runner) same(ctx context.Context, e *state.Entry, origin devmapper.Info) error {
	now, err := r.Host.Entry(e.ID)
	if err != nil {
		return err
	}
	infos, err := r.Devices.Info(ctx, origin.Name)
	if err != nil {
		return err
	}
	if now == nil || now.Hydration == nil || now.Hydration.Peer == nil || now.Hydration.Move != e.Hydration.Move || now.ActivationID != e.ActivationID || now.Fence != e.Fence ||
		infos[origin.Name].DevNo() != origin.DevNo() {
		return fmt.Errorf("%w: the volume was staged anew while its peer was to be replaced", volume.ErrUnavailable)
	}
	return nil
}

// lockedStep takes a step that no request may run beside.
func (r *Runner) lockedStep(ctx context.Context, id volume.ID, step stepKind, memo *account) error {
	e, unlock, err := r.Host.Lock(ctx, id)
	defer unlock()
	if err != nil || e == nil || e.Hydration == nil || e.State != state.Staged || !e.Cached() {
		return err
	}
	switch step {
	case stepEnable:
		return r.Devices.Message(ctx, layout.Device(id, layout.Data), 0, "enable_hydration")
	case stepRest:
		return r.Devices.Message(ctx, layout.Device(id, layout.Data), 0, "disable_hydration")
	case stepLeave:
		return r.leaveRemapped(ctx, e, memo)
	case stepSwap:
		return r.swapClone(ctx, e)
	case stepSweep:
		return r.sweepIfSwapped(ctx, e)
	case stepNothing, stepRemap, stepRevive:
	}
	return nil
}

// leaveRemapped ends the session with a peer whose place the origin has taken. It looks
// again, as swapClone does: a stage may have made the devices anew, on a peer.
func (r *Runner) leaveRemapped(ctx context.Context, e *state.Entry, memo *account) error {
	memo.forgetDevice()
	if onOrigin, err := r.Stack.OnOrigin(ctx, e, nil); err != nil || !onOrigin {
		return err
	}
	r.Host.LeavePeer(ctx, e)
	faultHydrationLeft.Hit()
	memo.reported = time.Time{}
	return r.Host.Save(ctx, e, e.State)
}

// swapClone puts the SSD itself below the live cache, when everything is copied. It looks
// again: what the step rests on was seen without the lock, and a stage may have made
// another clone since then.
func (r *Runner) swapClone(ctx context.Context, e *state.Entry) error {
	name := layout.Device(e.ID, layout.Data)
	t, err := r.Devices.Table(ctx, name)
	if err != nil {
		return err
	}
	clone, ok := devmapper.CloneTarget{}, false
	if len(t) == 1 {
		clone, ok = t[0].Target.(devmapper.CloneTarget)
	}
	if !ok {
		return fmt.Errorf("device %s is no clone", name)
	}
	if status, found, err := r.Devices.CloneStatus(ctx, name); err != nil || !found || !status.Complete() {
		return err
	}
	if err := r.Stack.Reload(ctx, name, devmapper.LinearTable(t[0].Length, clone.Destination)); err != nil {
		return err
	}
	faultHydrationSwapped.Hit()
	return r.sweep(ctx, e)
}

// sweepIfSwapped is sweep if the SSD itself is below the cache. As in swapClone: what
// the clone of a stage that has just ended did not copy yet must not be called whole.
func (r *Runner) sweepIfSwapped(ctx context.Context, e *state.Entry) error {
	t, err := r.Devices.Table(ctx, layout.Device(e.ID, layout.Data))
	if err != nil {
		return err
	}
	if len(t) != 1 {
		return nil
	}
	if _, linear := t[0].Target.(devmapper.LinearTarget); !linear {
		return nil
	}
	return r.sweep(ctx, e)
}

// sweep removes what a complete hydration leaves, and lets the peer go. The journal says
// so first: if the node stops before it knows of the end, the cache needs no clone, and
// the clone's metadata are gone.
func (r *Runner) sweep(ctx context.Context, e *state.Entry) error {
	if !e.Hydration.Whole {
		e.Hydration.Whole = true
		if err := r.Host.Save(ctx, e, e.State); err != nil {
			return err
		}
	}
	faultHydrationWhole.Hit()
	if err := r.Stack.Remove(ctx, e.ID, layout.Source, layout.Path); err != nil {
		return err
	}
	if err := r.SSD.RemoveHydration(ctx, e.ID); err != nil {
		return err
	}
	faultHydrationRemoved.Hit()
	took := time.Duration(0)
	if memo := r.memory.memo(e.ID); memo != nil && !memo.state.Began.IsZero() {
		took = r.Now().Sub(memo.state.Began)
	}
	r.Host.Drop(ctx, e, volume.MoveCompleted, fmt.Sprintf("everything was copied, %s", took.Round(time.Millisecond)))
	faultHydrationReported.Hit()
	return r.Host.Save(ctx, e, e.State)
}

// report writes progress that is news. Nobody's data wait for it.
func (r *Runner) report(ctx context.Context, e *state.Entry, f facts, memo *account) {
	if r.Moves == nil || !f.Clone || e.Hydration.Move.Name == "" || r.Now().Sub(memo.reported) < ReportEvery {
		return
	}
	memo.reported = r.Now()
	r.memory.mu.Lock()
	s := memo.state
	r.memory.mu.Unlock()
	p := volume.MoveProgress{TotalBytes: s.TotalBytes, HydratedBytes: s.HydratedBytes, Rate: s.Rate, From: s.From}
	p.Estimate()
	if err := r.Moves.Progress(ctx, e.Hydration.Move, p); err != nil && !errors.Is(err, volume.ErrNotFound) {
		klog.FromContext(ctx).Error(err, "Progress of a move could not be reported", "volume", e.ID)
	}
}
