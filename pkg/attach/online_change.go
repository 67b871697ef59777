package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/cachefault"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// changeRetry is the pause before something is tried again that failed.
	changeRetry = time.Minute
	// changeBusy is the pause between two looks while something is under way.
	changeBusy = time.Second
	// changeReport is the least time between two reports of a flush's progress.
	changeReport = 5 * time.Second
	// changeSteps is more than any change has: a step that changes nothing must not
	// be taken for ever while requests wait for the volume.
	changeSteps = 16
)

// changing is what is remembered of a volume between two passes. It is lost with
// the process, which costs a report and a try.
type changing struct {
	report   volume.AppliedReport
	reported time.Time
	retryAt  time.Time
	// failedSpec is the version of the spec that retryAt speaks of.
	failedSpec int64
}

// RunChanges makes attached volumes what their records ask for, until ctx ends. It
// looks at all of them every now and then, and at once when Deps.Owned says that
// a record has changed, or a volume was staged.
func (a *Attacher) RunChanges(ctx context.Context, every time.Duration) {
	changed := a.Owned.Changed()
	for {
		pause := every
		busy, err := a.Change(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Attached volumes could not be compared with their records")
		}
		if busy {
			pause = changeBusy
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-a.staged:
		case <-time.After(pause):
		}
	}
}

// Change takes the steps that are due and reports whether one of them is under way.
// Two commands find the volumes that need none, whatever their number. It is not
// for concurrent use.
func (a *Attacher) Change(ctx context.Context) (busy bool, err error) {
	records, err := a.Owned.List(ctx)
	if err != nil || len(records) == 0 {
		return false, err
	}
	a.answerHolds(ctx, records)
	status, err := a.DM.StatusAll(ctx)
	if err != nil {
		return false, err
	}
	infos, err := a.DM.Info(ctx, layout.DevicePrefix)
	if err != nil {
		return false, err
	}
	leaving := a.leaving(ctx)
	known := map[volume.ID]bool{}
	var due []volume.ID
	for _, rec := range records {
		if status[layout.Device(rec.ID, layout.Top)].Silent || a.changers.Working(rec.ID) {
			known[rec.ID] = true
			continue
		}
		e, err := a.load(rec.ID)
		if err != nil || e == nil || e.State != state.Staged {
			continue
		}
		known[rec.ID] = true
		if state.NamesOf(rec, e.Names) != e.Names {
			a.keepNames(ctx, rec)
		}
		if _, left := a.detached.LoadAndDelete(rec.ID); left {
			delete(a.changing, rec.ID) // the record says Detached since, and is to say more
		}
		m := a.changing[rec.ID]
		if m == nil {
			m = &changing{}
			a.changing[rec.ID] = m
		}
		f := a.changeFacts(ctx, e, rec, status, infos, leaving[e.ID])
		step := decideChange(f)
		resting := step == changeDone || step == changeImpossible
		idle := step == changeNothing || resting && m.report == appliedReport(f, step)
		if idle && e.EndedMove == nil {
			continue
		}
		if !idle && !resting && m.failedSpec == rec.SpecGeneration && a.Now().Before(m.retryAt) {
			continue
		}
		due = append(due, rec.ID)
	}
	memory := maps.Clone(a.changing) // one that is worked on longer is left alone by the next pass
	var again atomic.Bool
	err = a.changers.Each(ctx, passes.Slow, passes.Patience, due, func(ctx context.Context, id volume.ID) error {
		if a.changeOne(ctx, id, memory[id]) {
			again.Store(true)
		}
		return nil
	})
	for id := range a.changing {
		if !known[id] {
			delete(a.changing, id)
		}
	}
	a.detached.Range(func(id, _ any) bool {
		if !known[id.(volume.ID)] {
			a.detached.Delete(id)
		}
		return true
	})
	return again.Load(), err
}

// keepNames keeps the names of a record; metrics alone need them.
func (a *Attacher) keepNames(ctx context.Context, rec volume.Volume) {
	unlock, ok := a.Locks.TryLock(string(rec.ID))
	if !ok {
		return
	}
	defer unlock()
	e, err := a.load(rec.ID)
	if err == nil && e != nil && e.Boot == a.Boot {
		e.Names = state.NamesOf(rec, e.Names)
		err = a.save(ctx, e, e.State)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Names of a volume were not kept", "volume", rec.ID)
	}
}

// changeFacts gathers from what has been read for all volumes.
func (a *Attacher) changeFacts(ctx context.Context, e *state.Entry, rec volume.Volume, status map[string]devmapper.CacheStatus, infos map[string]devmapper.Info, leaving bool) changeFacts {
	f := changeFacts{Entry: e, Record: rec}
	f.Status, f.LiveCache = layout.CacheStatus(status, e.ID)
	top := infos[layout.Device(e.ID, layout.Top)]
	f.LiveOrigin = top.HasLive && !f.LiveCache
	_, data := infos[layout.Device(e.ID, layout.Data)]
	_, path := infos[layout.Device(e.ID, layout.Path)]
	f.Leftover = f.LiveOrigin && (data || path || e.Hydration != nil)
	if f.LiveCache {
		f.Drops = a.dropsFlushes(ctx, e, top)
		f.Broken = cmp.Or(cachefault.Broken(f.Status), a.cacheFaults.Why(e.ID))
		f.Coarse = a.stack.LiveBlocks(e.ID, infos)
		f.Single = rec.Spec.Mirror && !e.Mirrored
		f.Leaving = leaving
		f.Unchecked = a.Pool.View().Integrity && !e.Checked
	}
	view := a.Pool.View().For(rec.Spec.Mirror || f.LiveCache && e.Mirrored)
	switch problem := a.CacheProblem(ctx); {
	case f.Broken != "" || f.Status.Fail:
		f.Problem, f.ProblemReason = cmp.Or(f.Broken, "the status of the cache cannot be read"), v1alpha1.ReasonCacheDeviceError
		return f
	case rec.Spec.Mode == volume.ModeNone:
		return f
	case problem != "":
		f.Problem, f.ProblemReason = problem, v1alpha1.ReasonKernelTargetMissing
	case !view.Ready:
		f.Problem, f.ProblemReason = view.Problem, v1alpha1.ReasonPoolMissing
	case rec.Spec.Mirror && !view.Mirror && !(f.LiveCache && e.Mirrored):
		f.Problem, f.ProblemReason = notMirrored(a.Node), v1alpha1.ReasonNotMirrored
	case view.Integrity && a.integrityProblem(ctx, view) != "" && !(f.LiveCache && e.Checked):
		f.Problem, f.ProblemReason = a.integrityProblem(ctx, view), integrityReason(view)
	case !e.Cached() && a.Now().Before(e.NoCacheBefore):
		f.Problem, f.ProblemReason = "the SSD failed the volume's cache; another one is tried later", v1alpha1.ReasonCacheDeviceError
	case f.LiveOrigin:
		if f.Problem = stack.Coarse(view.LogicalBlock, a.stack.BlocksOf(infos[layout.Device(e.ID, layout.Origin)].DevNo())); f.Problem != "" {
			f.ProblemReason = v1alpha1.ReasonBlockSizeTooLarge
		}
	}
	bytes := e.OriginBytes
	if f.LiveCache && f.Status.OriginSectors > 0 {
		bytes = int64(f.Status.OriginSectors) * sectorSize
	}
	want, err := planGeometry(rec.Spec, bytes, allocationUnit(view))
	switch {
	case bytes == 0:
		f.Problem, f.ProblemReason = "the size of the origin is not known before the next attachment", v1alpha1.ReasonApplying
	case err != nil:
		f.Problem, f.ProblemReason = err.Error(), v1alpha1.ReasonRejected
	case view.Ready:
		f.Want = want
	}
	f.withhold(view)
	if f.waitsForHydration() {
		f.Problem, f.ProblemReason = "the cache grows when its hydration is complete", v1alpha1.ReasonApplying
	}
	return f
}

// withhold has a volume that asks for writeback asked for writethrough, as long as its writes
// have to be on the origin.
func (f *changeFacts) withhold(view pool.View) {
	e := f.Entry
	if f.Record.Spec.Mode != volume.ModeWriteback {
		return
	}
	if f.Record.Hold != nil {
		f.Held, f.Record.Spec.Mode = true, volume.ModeWritethrough
		if f.LiveCache {
			f.Problem, f.ProblemReason = fmt.Sprintf("writes go through to the storage server until the volume is cut for %s", f.Record.Hold.Name), v1alpha1.ReasonApplying
		}
	}
	if view.Degraded != "" && (view.Mirror || f.LiveCache && e.Mirrored) {
		f.Degraded, f.Record.Spec.Mode = view.Degraded, volume.ModeWritethrough
		f.Problem, f.ProblemReason = "writes go through to the storage server until the mirror is whole: "+view.Degraded, v1alpha1.ReasonMirrorDegraded
	}
	if !e.Source.Fenced() {
		f.Record.Spec.Mode = volume.ModeWritethrough
		f.Problem, f.ProblemReason = unfenced(e.Source), v1alpha1.ReasonRejected
		if o := f.Record.Spec.Origin; o != nil && o.AcceptTwoWriters {
			f.Problem, f.ProblemReason = "writes go through until the next attachment, from which on spec.origin.withoutFence counts", v1alpha1.ReasonApplying
		}
	}
	if e.Streams() {
		f.Problem, f.ProblemReason = "writes go through to the storage server until the cache of the node before is copied", v1alpha1.ReasonApplying
	}
}

// changeOne leads one volume along the table until it is done or must wait. It
// reports whether something is under way.
func (a *Attacher) changeOne(ctx context.Context, id volume.ID, m *changing) (busy bool) {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return true
	}
	defer unlock()
	log := klog.FromContext(ctx).WithValues("volume", id)
	ctx = klog.NewContext(ctx, log)
	for range changeSteps {
		f, err := a.gatherChange(ctx, id)
		if err == nil && f.Entry != nil {
			err = a.reportEnded(ctx, f.Entry)
		}
		if err != nil {
			log.Error(err, "Volume could not be compared with its record")
			return false
		}
		step := decideChange(f)
		switch step {
		case changeNothing:
			return false
		case changeDone, changeImpossible:
			a.reportApplied(ctx, id, m, appliedReport(f, step))
			return false
		default:
		}
		log.Info("Changing attached volume", "step", step, "asked", f.Record.Spec.ModeName(), "journal", f.Entry.Mode, "dirty", f.Status.Dirty)
		wait, err := a.takeStep(ctx, f, step)
		if err != nil {
			a.changeFailed(ctx, f, m, step, err)
			return false
		}
		if wait {
			a.reportApplied(ctx, id, m, appliedReport(f, step))
			return true
		}
	}
	log.Info("Change of an attached volume takes many steps and goes on later")
	return true
}

// gatherChange gathers what one volume needs, the record from the API server.
func (a *Attacher) gatherChange(ctx context.Context, id volume.ID) (changeFacts, error) {
	rec, err := a.Records.Get(ctx, id)
	if errors.Is(err, volume.ErrNotFound) {
		return changeFacts{}, nil
	}
	if err != nil {
		return changeFacts{}, err
	}
	e, err := a.loadSettled(ctx, id)
	if err != nil || e == nil {
		return changeFacts{}, err
	}
	return a.changeOf(ctx, e, rec)
}

// changeOf gathers the rest, for a record that is known.
func (a *Attacher) changeOf(ctx context.Context, e *state.Entry, rec volume.Volume) (changeFacts, error) {
	status, err := a.stack.Statuses(ctx, e)
	if err != nil {
		return changeFacts{}, err
	}
	infos, err := a.DM.Info(ctx, layout.Device(e.ID, layout.Top))
	if err != nil {
		return changeFacts{}, err
	}
	return a.changeFacts(ctx, e, rec, status, infos, a.leaving(ctx)[e.ID]), nil
}

// appliedReport says what step means to those who changed the record.
func appliedReport(f changeFacts, step changeStep) volume.AppliedReport {
	r := volume.AppliedReport{State: volume.AppliedPending, Reason: v1alpha1.ReasonApplying, SpecGeneration: f.Record.SpecGeneration}
	switch step {
	case changeDone:
		r.State, r.Reason = volume.AppliedDone, v1alpha1.ReasonApplied
		r.Message = fmt.Sprintf("mode %s", volume.ModeName(f.Entry.Mode, f.Entry.Unsafe))
		if f.Entry.Cached() {
			r.Message += fmt.Sprintf(", a cache of %s", quantity.Text(f.Entry.DataBytes))
		}
	case changeImpossible:
		r.Reason, r.Message = f.ProblemReason, f.Problem
	case changeClean:
		r.Reason = v1alpha1.ReasonFlushing
		r.Message = fmt.Sprintf("%s of the cache are still dirty", quantity.Text(int64(f.Status.DirtyBytes())))
	default:
		r.Message = step.words()
	}
	return r
}

// words say what a step does, in a sentence that begins with the node.
func (c changeStep) words() string {
	switch c {
	case changeSweep:
		return "what is left of an earlier cache is removed"
	case changeCache:
		return "the cache is made"
	case changeUncache:
		return "the cache is given back"
	case changeRecord, changeMark:
		return "the record is told of writes that may be unflushed"
	case changeUnmark, changeFlushed:
		return "the record is told that the storage server has every write"
	case changeRestore:
		return "the cache takes up its work again"
	case changeWriteback:
		return "the cache begins to take writes"
	case changeGrow:
		return "the cache gets more room"
	case changeUnsafe:
		return "flushes begin to end at the cache"
	case changeSafe:
		return "flushes are passed on again"
	case changeTell:
		return "the record is told of an unclean stop"
	case changeNothing, changeClean, changeImpossible, changeDone:
	}
	return "nothing is left to do"
}

// reportApplied writes a report that is news. Nobody's data wait for it.
func (a *Attacher) reportApplied(ctx context.Context, id volume.ID, m *changing, r volume.AppliedReport) {
	progress := m.report.Reason == r.Reason && r.State == volume.AppliedPending && m.report.SpecGeneration == r.SpecGeneration
	if m.report == r || progress && a.Now().Sub(m.reported) < changeReport {
		return
	}
	if err := a.Records.ReportApplied(ctx, id, a.Node, r); err != nil {
		klog.FromContext(ctx).Error(err, "State of a change could not be reported")
		return
	}
	m.report, m.reported = r, a.Now()
}

// changeFailed reports a step that failed, and lets it rest for a while.
func (a *Attacher) changeFailed(ctx context.Context, f changeFacts, m *changing, step changeStep, err error) {
	klog.FromContext(ctx).Error(err, "Change of an attached volume failed and will be tried again", "step", step, "pause", changeRetry)
	m.retryAt, m.failedSpec = a.Now().Add(changeRetry), f.Record.SpecGeneration
	r := appliedReport(f, step)
	r.Message = err.Error()
	switch {
	case errors.Is(err, lvm.ErrNoSpace):
		r.Reason = v1alpha1.ReasonPoolFull
	case errors.Is(err, errShare):
		r.Reason = v1alpha1.ReasonNamespaceShareFull
	case errors.Is(err, stack.ErrBlockSize):
		r.Reason = v1alpha1.ReasonBlockSizeTooLarge
	case errors.Is(err, volume.ErrInvalid):
		r.Reason = v1alpha1.ReasonRejected
	}
	a.reportApplied(ctx, f.Entry.ID, m, r)
}
