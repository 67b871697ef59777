package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Repair completes what a killed process or a stopped kernel left, as stated
// under "Repair" in states.md. It returns after one pass over the journal; a
// volume that cannot be repaired now is reported, and tried again by Run.
func (a *Attacher) Repair(ctx context.Context) error {
	// What cannot be read is left alone, and is no reason to leave the rest.
	entries, err := a.Journal.List()
	owned := a.owned(ctx)
	// Asked for at most once: each of many retained caches may need it.
	deleted := sync.OnceValue(func() []volume.Deletion {
		list, err := a.Pool.Deletions(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Nobody knows what was deleted")
		}
		return list
	})
	var ids []volume.ID
	for i := range entries {
		ids = append(ids, entries[i].ID)
	}
	err = errors.Join(err, a.repairs.Each(ctx, passes.Slow, passes.Patience, ids, func(ctx context.Context, id volume.ID) error {
		return a.repairOne(ctx, id, owned, deleted)
	}))
	there, orphansErr := a.wipeOrphans(ctx)
	if there != nil {
		for _, id := range ids {
			there[id] = true
		}
		a.keeps.only(there)
	}
	return errors.Join(err, orphansErr, a.dropStays(ctx))
}

// owned are the records that this node owns, as their watch shows them; none while it
// does not.
func (a *Attacher) owned(ctx context.Context) map[volume.ID]volume.Volume {
	if a.Owned == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ownedTimeout)
	defer cancel()
	list, err := a.Owned.List(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Each record is asked for", "reason", err.Error())
	}
	out := make(map[volume.ID]volume.Volume, len(list))
	for _, v := range list {
		out[v.ID] = v
	}
	return out
}

// repairOne brings one volume on, unless a request works on it. What it rests on
// records is judged by the API server's own answer, which is not asked for while the
// watch shows that there is nothing to do: this is done for every volume of every
// node, time and again (states.md, "Many nodes, many volumes").
func (a *Attacher) repairOne(ctx context.Context, id volume.ID, owned map[volume.ID]volume.Volume, deleted func() []volume.Deletion) error {
	e, unlock, err := a.lockSettled(ctx, id)
	defer unlock()
	if err != nil || e == nil {
		return err
	}
	if err := a.reportEnded(ctx, e); err != nil {
		return err
	}
	switch e.State {
	case state.Retained:
		if rec, known := owned[id]; known && a.wanted(e, &rec, deleted) && !unjustMark(e, rec) {
			return a.reportKept(ctx, e, &rec)
		}
		return a.checkRetainedCache(ctx, e, deleted)
	case state.Prewarmed:
		return a.checkPrewarm(ctx, e)
	}
	info, active, err := a.stack.Top(ctx, id)
	if err != nil {
		return err
	}
	due := needsRepair(e, e.Boot == a.Boot, active)
	if rec, known := owned[id]; !due && info.OpenCount == 0 && !(known && rec.Published && rec.Fence == e.Fence) {
		due, err = a.abandoned(ctx, e)
	}
	if !due || err != nil {
		return err
	}
	// The lock is given back between two looks at a flush, so that a stage
	// request can adopt the device (states.md).
	stepCtx, cancel := context.WithTimeout(ctx, repairStep)
	defer cancel()
	err = a.bringDown(stepCtx, id)
	if errors.Is(err, errKept) {
		return nil // the status of the pool says so
	}
	if errors.Is(err, volume.ErrBusy) {
		klog.FromContext(ctx).Info("Flush after an unclean stop goes on", "volume", id, "progress", err.Error())
		return nil
	}
	if err != nil && stepCtx.Err() != nil && ctx.Err() == nil {
		// The step's own time: on a busy machine one command may take as long.
		klog.FromContext(ctx).Info("Repair of a volume goes on later", "volume", id, "progress", err.Error())
		return nil
	}
	return err
}

// ownedTimeout is how long repair waits for a watch that has not begun.
const ownedTimeout = time.Second

// repairStep is how long repair holds a volume's lock at a time.
const repairStep = 5 * time.Second

// needsRepair tells an entry that nobody will bring on from one whose pod runs
// or whose request kubelet will repeat.
func needsRepair(e *state.Entry, sameBoot, topActive bool) bool {
	switch e.State {
	case state.Wiping, state.Releasing, state.Flushed, state.Flushing:
		return true
	case state.Staging, state.Staged:
		return !sameBoot && !topActive
	case state.Retained, state.Prewarmed:
		return false
	}
	return false
}

// abandoned reports whether a volume that is Staging or Staged and that nobody has
// open will not be unstaged: the kubelet unstages nothing whose stage failed for
// good. The record alone tells then that the volume is not wanted here any more.
func (a *Attacher) abandoned(ctx context.Context, e *state.Entry) (bool, error) {
	rec, err := a.Records.Get(ctx, e.ID)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return true, nil
	case err != nil:
		return false, err
	}
	return !rec.Published || rec.Fence != e.Fence, nil
}

// checkRetainedCache wipes a clean cache that can never be used again: its volume
// was deleted, has had another owner, or is not to be cached any more.
func (a *Attacher) checkRetainedCache(ctx context.Context, e *state.Entry, deleted func() []volume.Deletion) error {
	rec, err := a.findRecord(ctx, e.ID)
	switch {
	case err != nil:
		return err
	case a.wanted(e, rec, deleted):
		return errors.Join(a.takeBackRestored(ctx, e, rec), a.reportKept(ctx, e, rec))
	}
	if agrees, err := a.ssdAgrees(ctx, e); err != nil || !agrees {
		return err
	}
	klog.FromContext(ctx).Info("Retained cache is stale or too old", "volume", e.ID, "generation", e.Fence.Generation, "lastUsed", e.LastUsed())
	if err := a.leases.End(ctx, e); err != nil {
		return err
	}
	if err := a.wipe(ctx, e.ID, e); err != nil {
		return err
	}
	return a.reportRetainedCache(ctx, e, nil)
}

// reportKept reports a retained cache that unstage could not report, or a version before by
// another word. Only the last owner may.
func (a *Attacher) reportKept(ctx context.Context, e *state.Entry, rec *volume.Volume) error {
	if !e.RetainedCacheDue || rec != nil && rec.Fence.Node != a.Node {
		return nil
	}
	return a.reportRetainedCache(ctx, e, retainedCacheOf(e))
}

// takeBackRestored answers a record that the controller has restored: it could not
// know that this ownership was flushed. A Retained entry is the proof (I2).
func (a *Attacher) takeBackRestored(ctx context.Context, e *state.Entry, rec *volume.Volume) error {
	if rec == nil || !unjustMark(e, *rec) {
		return nil
	}
	klog.FromContext(ctx).Info("Record of a flushed volume says that it may be dirty", "volume", e.ID, "generation", e.Fence.Generation)
	if err := a.Records.MarkClean(ctx, e.ID, rec.Fence); err != nil {
		return fmt.Errorf("report volume %s clean: %w", e.ID, err)
	}
	return nil
}

// unjustMark tells a record that says of a flushed ownership that it may be dirty.
func unjustMark(e *state.Entry, rec volume.Volume) bool {
	return e.Clean && (rec.PossiblyDirty && rec.Fence == e.Fence && rec.Identify(e.Activation()) != volume.IdentityPast || remade(rec, e.Fence))
}

// wanted reports whether a retained cache can still be of use: to this node, which owns the
// volume under the same generation; to the owner after it, that has not started yet;
// or to one that has imported it. That its record is not there (nil), or has another
// UID, proves nothing.
func (a *Attacher) wanted(e *state.Entry, rec *volume.Volume, deleted func() []volume.Deletion) bool {
	if e.Exported != nil && e.Boot == a.Boot && rec != nil && rec.Fence.UID == e.Fence.UID {
		return true // the move says when it ends
	}
	if rec != nil && rec.Fence.UID == e.Fence.UID && rec.Identify(e.Activation()) == volume.IdentityPast && !state.BugTrustNodeName.On() {
		return false
	}
	if ttl := a.Warm.RetainedCacheTTL; ttl > 0 && a.Now().Sub(e.LastUsed()) > ttl {
		return false
	}
	if rec == nil || rec.Fence.UID != e.Fence.UID {
		return !covered(deleted(), e.ID, e.Fence)
	}
	if rec.Spec.Mode == volume.ModeNone {
		return false
	}
	if !e.Static && outdated(rec.Fence, e.Fence) {
		return true // its clean end is what the restored record will ask for
	}
	src := rec.WarmSource
	return rec.Fence == e.Fence || src != nil && src.Node == a.Node && src.Generation == e.Fence.Generation
}

// wipeOrphans removes caches that no journal entry knows. One that may hold
// unflushed writes is kept: only its tags are left to tell, and they say
// writeback. It returns the volumes of which the pool has something, nil if nobody
// knows.
func (a *Attacher) wipeOrphans(ctx context.Context) (map[volume.ID]bool, error) {
	view := a.Pool.View()
	if !view.Readable() {
		return nil, nil
	}
	lctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	lvs, err := a.LVM.LVs(lctx, view.VG)
	if err != nil {
		return nil, err
	}
	seen := map[volume.ID]bool{}
	problems := []error{a.sweepScratch(lctx, lvs)}
	for _, id := range layout.IDs(lvs) {
		seen[id] = true
		if err := a.wipeOrphan(lctx, id, ssd.Pick(lvs, id)); err != nil {
			problems = append(problems, err)
		}
	}
	return seen, errors.Join(problems...)
}

func (a *Attacher) wipeOrphan(ctx context.Context, id volume.ID, c ssd.Cache) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return nil
	}
	defer unlock()
	e, err := a.loadSettled(ctx, id)
	if err != nil || e.Cached() {
		return err
	}
	devices, err := a.DM.Info(ctx, layout.Device(id, layout.Data))
	if err != nil {
		return err
	}
	if _, used := devices[layout.Device(id, layout.Data)]; used {
		return nil // a killed change of an attached volume left it; the next one goes on
	}
	if keep, err := a.keepOrphan(ctx, id, e, c); keep || err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Orphaned cache wiped", "volume", id)
	return a.ssd.Remove(ctx, id)
}

// keepOrphan reports whether a cache that the journal does not speak of may hold writes
// that are still wanted.
func (a *Attacher) keepOrphan(ctx context.Context, id volume.ID, e *state.Entry, c ssd.Cache) (keep bool, err error) {
	if _, dirty := unflushed(nil, c.Facts); !dirty {
		return false, nil
	}
	rec, err := a.findRecord(ctx, id)
	if err != nil {
		return true, err
	}
	known, dirty := unflushed(believed(e, c.Facts, rec), c.Facts)
	if !dirty {
		return false, nil
	}
	p, err := a.prove(ctx, id, known, nil, c.Facts, rec, lunQuestion{})
	if err != nil {
		return true, err
	}
	k := volume.KeptCache{ID: id, Fence: known, SizeBytes: c.Data.SizeBytes + c.Meta.SizeBytes}
	switch decideOwnership(known, rec != nil && rec.Spec.Static != nil, rec, p) {
	case ownedLater, ownedAbandoned:
		a.keeps.drop(id)
		return false, nil
	case ownedHere:
		k.Why = "the node's journal does not know it: the writes are flushed when the volume is attached to this node"
	case ownedUnproven:
		k.Why = "the node's journal does not know it, and " + whyKept(known, false, rec)
	}
	a.keep(ctx, k)
	return true, nil
}

// removeUnclaimed removes what the pool has of a volume and its entry, which may be nil,
// does not speak of, unless it may hold writes that are still wanted.
func (a *Attacher) removeUnclaimed(ctx context.Context, id volume.ID, e *state.Entry) error {
	view := a.Pool.View()
	if view.VG == "" {
		return nil
	}
	c, err := a.ssd.Inspect(ctx, view.VG, id)
	if err != nil {
		return err
	}
	keep, err := a.keepOrphan(ctx, id, e, c)
	if err != nil {
		return err
	}
	if keep {
		return fmt.Errorf("%w: the pool has unflushed writes of volume %s under another ownership: %w", volume.ErrUnavailable, id, errKept)
	}
	return a.ssd.Remove(ctx, id)
}

// Run repeats Repair until ctx ends: flushes go on, stale retained caches go away,
// and what failed is tried again.
func (a *Attacher) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := a.Repair(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Repair is incomplete and will be repeated")
		}
		if err := a.CountUp(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Counts of some volumes are behind")
		}
		if err := a.Evacuate(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Devices that are to leave the pool still have retained caches")
		}
		a.hotSets.Pass(ctx)
		a.heats.Pass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// shutOut reports whether a flush that failed need not be waited for: no write is on the SSD
// alone, and this ownership is over, so that the server may never let the node in again. While
// the record says that this node may have unflushed writes, the server lets it in. A look that
// fails tells nothing.
func (a *Attacher) shutOut(ctx context.Context, e *state.Entry) bool {
	if e.MayBeDirty() {
		return false
	}
	if e.Marked {
		rec, err := a.findRecord(ctx, e.ID)
		if err != nil || rec != nil && rec.Fence == e.Fence && rec.PossiblyDirty {
			return false
		}
	}
	over, err := a.abandoned(ctx, e)
	return err == nil && over
}
