package attach

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
	// hydrationTick is the pause between two looks at hydrations under way: how long a pod may
	// wait for a lost peer before anybody notices, and the unit of the rate limit.
	hydrationTick = 400 * time.Millisecond
	// hydrationIdle is the pause while there is none, and between two looks at the journal for
	// those that are not known.
	hydrationIdle = 15 * time.Second
	// hydrationReport is the least time between two reports of one hydration.
	hydrationReport = 5 * time.Second
	// minPulse is the shortest time that a copy is let run.
	minOnTime = 5 * time.Millisecond
	// hydrationPatience is how long a look waits for the steps that it has begun.
	hydrationPatience = 5 * time.Second
	// hydrationBurst is how long a hydration may save up what it was not allowed to copy.
	hydrationBurst = time.Second
)

// RunHydrations leads hydrations to their end until ctx ends: it takes the steps of states.md,
// The warm move, and is what replaces a peer that is lost.
func (a *Attacher) RunHydrations(ctx context.Context) {
	for {
		pause := a.turnHydrations(ctx)
		select {
		case <-ctx.Done():
			return
		case <-a.hydrations.wake:
		case <-time.After(pause):
		}
	}
}

// turnHydrations is one turn of RunHydrations. It returns how long it may rest then.
func (a *Attacher) turnHydrations(ctx context.Context) (pause time.Duration) {
	if a.hydrations.findDue(a.Now()) {
		a.findHydrations(ctx)
	}
	if a.stepHydrations(ctx) == 0 {
		return hydrationIdle
	}
	return hydrationTick
}

// findHydrations finds the hydrations that the journal knows, also of caches that it denies: while a
// step takes one away, the pod may still wait for the peer.
func (a *Attacher) findHydrations(ctx context.Context) {
	entries, err := a.Journal.List()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Not every hydration under way is known")
	}
	for i := range entries {
		if e := &entries[i]; e.Hydration != nil && e.State != state.Retained {
			a.hydrations.begin(e.ID, time.Time{})
		}
	}
}

// stepHydrations looks at every hydration once and returns how many there are.
func (a *Attacher) stepHydrations(ctx context.Context) int {
	ids := a.hydrations.ids()
	if len(ids) == 0 {
		return 0
	}
	log := klog.FromContext(ctx)
	poll, err := a.pollHydrations(ctx, ids)
	if err != nil {
		log.Error(err, "State of the hydrations is not known")
		return len(ids)
	}
	if poll.settling {
		return len(ids)
	}
	// A lost peer may hold up one of them for seconds. What it took is logged by the volume.
	_ = a.hydrating.Each(ctx, 0, hydrationPatience, ids, func(ctx context.Context, id volume.ID) error {
		if err := a.stepHydration(ctx, id, poll); err != nil && ctx.Err() == nil {
			log.Error(err, "Hydration does not go on, it will be tried again", "volume", id)
		}
		return nil
	})
	return len(ids)
}

// hydrationPoll is what one look at the kernel shows of all hydrations.
type hydrationPoll struct {
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
func (a *Attacher) settling(memo *hydrationMemo) bool {
	if memo == nil {
		return false
	}
	a.hydrations.mu.Lock()
	since := memo.since
	a.hydrations.mu.Unlock()
	return a.Now().Sub(since) < a.Warm.Settle
}

// pollHydrations needs one command while nothing happens but copying, and that now and then.
func (a *Attacher) pollHydrations(ctx context.Context, ids []volume.ID) (l hydrationPoll, err error) {
	l.active, l.paths, l.settling = len(ids), map[string]devmapper.MultipathStatus{}, true
	for _, id := range ids {
		switch st, err := a.DM.MultipathStatus(ctx, layout.Device(id, layout.Source)); {
		case err == nil:
			l.paths[layout.Device(id, layout.Source)] = st
		case !errors.Is(err, devmapper.ErrNotExist) && !errors.Is(err, devmapper.ErrParse):
			return l, err
		}
		path, waits := l.paths[layout.Device(id, layout.Source)]
		l.settling = l.settling && waits && path.HasPath() && a.settling(a.hydrations.memo(id))
	}
	if l.settling {
		return l, nil
	}
	if l.clones = a.hydrations.remembered(a.Now()); l.clones == nil {
		switch l.clones, err = a.DM.CloneStatusAll(ctx); {
		case ctx.Err() != nil:
			return l, ctx.Err()
		case err != nil:
			// Whoever waits for a lost path waits all the same.
			klog.FromContext(ctx).Error(err, "How much was copied is not known")
			l.clones = silentClones(ids)
		default:
			l.fresh = true
		}
		a.hydrations.remember(l.clones)
	}
	plain := true
	for _, id := range ids {
		memo := a.hydrations.memo(id)
		_, clone := l.clones[layout.Device(id, layout.Data)]
		path, waits := l.paths[layout.Device(id, layout.Source)]
		plain = plain && memo != nil && memo.known && clone && (!waits || path.HasPath())
	}
	if !plain {
		l.infos, err = a.DM.Info(ctx, layout.DevicePrefix)
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

// stepHydration takes one step of one hydration.
func (a *Attacher) stepHydration(ctx context.Context, id volume.ID, poll hydrationPoll) error {
	memo := a.hydrations.memo(id)
	e, err := a.load(id)
	if err != nil || memo == nil || a.Now().Before(memo.retryAt) {
		return err
	}
	if e == nil || e.Hydration == nil || e.State == state.Retained {
		a.hydrations.forget(id)
		return nil
	}
	f, err := a.hydrationFacts(ctx, e, memo, poll)
	if err != nil {
		return err
	}
	if !e.Cached() && !f.Clone {
		// Nothing of it is in anybody's way; whoever took the cache away clears the rest.
		a.hydrations.forget(id)
		return nil
	}
	step := decideHydration(f)
	if step != hydrationNothing {
		memo.idle = false
	}
	infos := poll.infos
	if infos == nil && (step == hydrationRemap || step == hydrationRevive) {
		if infos, err = a.DM.Info(ctx, layout.Device(id, layout.Top)); err != nil {
			return err
		}
	}
	switch step {
	case hydrationRemap:
		err = a.remapPath(ctx, e, infos)
		memo.forgetDevice()
		a.hydrations.poke() // the peer may be waiting for this node to leave
	case hydrationRevive:
		err = a.DM.Message(ctx, layout.Device(id, layout.Source), 0, "reinstate_path", infos[layout.Device(id, layout.Path)].DevNo())
	case hydrationNothing:
	case hydrationEnable:
		err = a.hydrate(ctx, id, memo)
	default:
		err = a.lockedHydrationStep(ctx, id, step, memo)
	}
	if err != nil {
		memo.retryAt = a.Now().Add(time.Second)
		return fmt.Errorf("step %s: %w", step, err)
	}
	a.reportHydration(ctx, e, f, memo)
	return nil
}

// hydrationFacts gathers what decideHydration needs, and reckons up the rate.
func (a *Attacher) hydrationFacts(ctx context.Context, e *state.Entry, memo *hydrationMemo, poll hydrationPoll) (hydrationFacts, error) {
	f := hydrationFacts{Entry: e}
	if f.Status, f.Clone = poll.clones[layout.Device(e.ID, layout.Data)]; e.Hydration.RegionSectors == 0 {
		f.Clone = false // it has no shape yet: what was seen is the clone of a stage before
	}
	if !f.Clone {
		memo.forgetDevice()
		f.Linear = poll.infos[layout.Device(e.ID, layout.Data)].HasLive
		return f, nil
	}
	if !memo.known {
		onOrigin, err := a.stack.OnOrigin(ctx, e, poll.infos)
		if err != nil {
			return f, err
		}
		memo.known, memo.onOrigin = true, onOrigin
	}
	f.OnOrigin = memo.onOrigin
	if poll.fresh && e.State == state.Staged && !f.Status.Silent { // until then, discards count as copied
		f.OverBudget = a.reckon(e, memo, f.Status, poll.active)
	}
	if f.Settling = a.settling(memo); f.Settling {
		memo.idle = true
	}
	if !f.Status.Silent {
		a.yield(ctx, e, memo, poll.active)
	}
	path, waits := poll.paths[layout.Device(e.ID, layout.Source)]
	if !waits {
		return f, nil
	}
	f.Expired = !e.Hydration.Deadline.IsZero() && a.Now().After(e.Hydration.Deadline)
	f.PathFailed = !path.HasPath()
	f.SourceStopped = !f.OnOrigin && a.sourceStopped(ctx, e)
	return f, nil
}

// sourceStopped reports whether the peer has said that it does not serve any more. Whoever
// cannot be asked has not.
func (a *Attacher) sourceStopped(ctx context.Context, e *state.Entry) bool {
	if a.Moves == nil || e.Hydration.Peer == nil || e.Hydration.Move.Name == "" {
		return false
	}
	exported, err := a.Moves.Exported(ctx, e.Hydration.Move)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Whether the peer still serves is not known", "volume", e.ID, "reason", err.Error())
		return false
	}
	return !exported
}

// remapPath replaces the peer by the origin remap table. It takes no lock
// and writes no journal: whoever holds the volume's lock may be waiting for just
// this. What is loaded tells what was done.
func (a *Attacher) remapPath(ctx context.Context, e *state.Entry, infos map[string]devmapper.Info) error {
	log := klog.FromContext(ctx).WithValues("volume", e.ID)
	began := a.Now()
	origin, path, data := infos[layout.Device(e.ID, layout.Origin)], infos[layout.Device(e.ID, layout.Path)], infos[layout.Device(e.ID, layout.Data)]
	if !origin.HasLive || !path.HasLive || !data.HasLive {
		return fmt.Errorf("%w: devices of the hydration are missing", volume.ErrUnavailable)
	}
	m, err := a.readMap(e.ID)
	if err != nil {
		return err
	}
	sectors, err := a.stack.DeviceSectors(ctx, layout.Device(e.ID, layout.Origin))
	if err != nil {
		return err
	}
	length, err := a.stack.DeviceSectors(ctx, layout.Device(e.ID, layout.Path))
	if err != nil {
		return err
	}
	name := layout.Device(e.ID, layout.Path)
	if err := a.DM.LoadReadOnly(ctx, name, m.RemapTable(origin.DevNo(), sectors, length, nil)); err != nil {
		return fmt.Errorf("load table of %s: %w", name, err)
	}
	if err := a.sameHydration(ctx, e, origin); err != nil {
		return errors.Join(err, a.DM.Clear(ctx, name))
	}
	if err := a.stack.SwapIn(ctx, name, a.DM.Resume); err != nil {
		return err
	}
	faultHydrationRemapped.Hit()
	if err := a.DM.Message(ctx, layout.Device(e.ID, layout.Source), 0, "reinstate_path", path.DevNo()); err != nil {
		return err
	}
	log.Info("The peer is replaced by the origin", "took", a.Now().Sub(began))
	return nil
}

// sameHydration tells, without the volume's lock, whether what was loaded is of the hydration that
// there is. Map and origin were read before, and a large table takes seconds to load: the
// volume may have been staged anew meanwhile, which the journal says before there is a
// device of it. The loaded table holds the origin, so that its number is nobody else's.
func (a *Attacher) sameHydration(ctx context.Context, e *state.Entry, origin devmapper.Info) error {
	now, err := a.load(e.ID)
	if err != nil {
		return err
	}
	infos, err := a.DM.Info(ctx, origin.Name)
	if err != nil {
		return err
	}
	if now == nil || now.Hydration == nil || now.Hydration.Peer == nil || now.Hydration.Move != e.Hydration.Move || now.ActivationID != e.ActivationID || now.Fence != e.Fence ||
		infos[origin.Name].DevNo() != origin.DevNo() {
		return fmt.Errorf("%w: the volume was staged anew while its peer was to be replaced", volume.ErrUnavailable)
	}
	return nil
}

// lockedHydrationStep takes a step that no request may run beside.
func (a *Attacher) lockedHydrationStep(ctx context.Context, id volume.ID, step hydrationStep, memo *hydrationMemo) error {
	e, unlock, err := a.lockSettled(ctx, id)
	defer unlock()
	if err != nil || e == nil || e.Hydration == nil || e.State != state.Staged || !e.Cached() {
		return err
	}
	switch step {
	case hydrationEnable:
		return a.DM.Message(ctx, layout.Device(id, layout.Data), 0, "enable_hydration")
	case hydrationRest:
		return a.DM.Message(ctx, layout.Device(id, layout.Data), 0, "disable_hydration")
	case hydrationLeave:
		return a.leaveRemapped(ctx, e, memo)
	case hydrationSwap:
		return a.swapClone(ctx, e)
	case hydrationSweep:
		return a.sweepIfSwapped(ctx, e)
	case hydrationNothing, hydrationRemap, hydrationRevive:
	}
	return nil
}

// leaveRemapped ends the session with a peer whose place the origin has taken. It looks
// again, as swapClone does: a stage may have made the devices anew, on a peer.
func (a *Attacher) leaveRemapped(ctx context.Context, e *state.Entry, memo *hydrationMemo) error {
	memo.forgetDevice()
	if onOrigin, err := a.stack.OnOrigin(ctx, e, nil); err != nil || !onOrigin {
		return err
	}
	a.leavePeer(ctx, e)
	faultHydrationLeft.Hit()
	memo.reported = time.Time{}
	return a.save(ctx, e, e.State)
}

// swapClone puts the SSD itself below the live cache, when everything is copied. It looks
// again: what the step rests on was seen without the lock, and a stage may have made
// another clone since then.
func (a *Attacher) swapClone(ctx context.Context, e *state.Entry) error {
	name := layout.Device(e.ID, layout.Data)
	t, err := a.DM.Table(ctx, name)
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
	if status, found, err := a.DM.CloneStatus(ctx, name); err != nil || !found || !status.Complete() {
		return err
	}
	if err := a.stack.Reload(ctx, name, devmapper.LinearTable(t[0].Length, clone.Destination)); err != nil {
		return err
	}
	faultHydrationSwapped.Hit()
	return a.sweepHydration(ctx, e)
}

// sweepIfSwapped is sweepHydration if the SSD itself is below the cache. As in swapClone: what
// the clone of a stage that has just ended did not copy yet must not be called whole.
func (a *Attacher) sweepIfSwapped(ctx context.Context, e *state.Entry) error {
	t, err := a.DM.Table(ctx, layout.Device(e.ID, layout.Data))
	if err != nil {
		return err
	}
	if len(t) != 1 {
		return nil
	}
	if _, linear := t[0].Target.(devmapper.LinearTarget); !linear {
		return nil
	}
	return a.sweepHydration(ctx, e)
}

// sweepHydration removes what a complete hydration leaves, and lets the peer go. The journal says
// so first: if the node stops before it knows of the end, the cache needs no clone, and
// the clone's metadata are gone.
func (a *Attacher) sweepHydration(ctx context.Context, e *state.Entry) error {
	if !e.Hydration.Whole {
		e.Hydration.Whole = true
		if err := a.save(ctx, e, e.State); err != nil {
			return err
		}
	}
	faultHydrationWhole.Hit()
	if err := a.stack.Remove(ctx, e.ID, layout.Source, layout.Path); err != nil {
		return err
	}
	if err := a.LVM.RemoveLVs(ctx, a.Pool.View().VG, layout.HydrationLVs(e.ID)...); err != nil {
		return err
	}
	faultHydrationRemoved.Hit()
	took := time.Duration(0)
	if memo := a.hydrations.memo(e.ID); memo != nil && !memo.state.Began.IsZero() {
		took = a.Now().Sub(memo.state.Began)
	}
	a.dropHydration(ctx, e, volume.MoveCompleted, fmt.Sprintf("everything was copied, %s", took.Round(time.Millisecond)))
	faultHydrationReported.Hit()
	return a.save(ctx, e, e.State)
}

// reportHydration writes progress that is news. Nobody's data wait for it.
func (a *Attacher) reportHydration(ctx context.Context, e *state.Entry, f hydrationFacts, memo *hydrationMemo) {
	if a.Moves == nil || !f.Clone || e.Hydration.Move.Name == "" || a.Now().Sub(memo.reported) < hydrationReport {
		return
	}
	memo.reported = a.Now()
	a.hydrations.mu.Lock()
	s := memo.state
	a.hydrations.mu.Unlock()
	p := volume.MoveProgress{TotalBytes: s.TotalBytes, HydratedBytes: s.HydratedBytes, Rate: s.Rate, From: s.From}
	if s.Rate > 0 {
		p.Remaining = time.Duration(float64(s.TotalBytes-s.HydratedBytes) / float64(s.Rate) * float64(time.Second))
	}
	if err := a.Moves.Progress(ctx, e.Hydration.Move, p); err != nil && !errors.Is(err, volume.ErrNotFound) {
		klog.FromContext(ctx).Error(err, "Progress of a move could not be reported", "volume", e.ID)
	}
}
