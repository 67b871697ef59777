package attach

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// countEvery is how often the count grows while unflushed writes may be made.
const countEvery = 10 * time.Minute

// identityOf is what the record says of journal and SSD together: the worse of the two.
// The record shows the ownership of each of them, or they are not asked.
func identityOf(e *state.Entry, c ssd.Facts, rec volume.Volume) volume.Identity {
	out := volume.IdentityCurrent
	for _, is := range []volume.Identity{journalIdentity(e, rec), cacheIdentity(c, rec)} {
		if is == volume.IdentityPast || out == volume.IdentityCurrent {
			out = is
		}
	}
	return out
}

func journalIdentity(e *state.Entry, rec volume.Volume) volume.Identity {
	if e == nil || e.Fence != rec.Fence {
		return volume.IdentityCurrent
	}
	return rec.Identify(e.Activation())
}

func cacheIdentity(c ssd.Facts, rec volume.Volume) volume.Identity {
	if !c.Whole || c.SuperblockBlank || c.Fence != rec.Fence {
		return volume.IdentityCurrent
	}
	return rec.Identify(c.Activation())
}

// pastWrites tells unflushed writes of disks that are not the ones that the volume was
// last staged with: an image of them from before, or another machine of the same name.
// While the record says that writes may be unflushed, nobody knows whether these are
// among them.
func pastWrites(e *state.Entry, c ssd.Facts, rec volume.Volume) bool {
	if identityOf(e, c, rec) != volume.IdentityPast || state.BugTrustNodeName.On() {
		return false
	}
	if e != nil && e.Fence == rec.Fence && e.Cached() {
		return e.MayBeDirty()
	}
	return c.Whole && c.Mode == volume.ModeWriteback && !c.Stopped && !c.SuperblockBlank && c.Fence == rec.Fence
}

// believed is the journal as far as it may be believed beside the SSD: one that comes out
// of an image says nothing of an SSD that does not.
func believed(e *state.Entry, c ssd.Facts, rec *volume.Volume) *state.Entry {
	if outlived(e, c, rec) && !state.BugTrustNodeName.On() {
		return nil
	}
	return e
}

// outlived tells a journal that is older than the SSD. Whatever a step changes, the journal
// has first; so an SSD that is ahead of it proves that. Of two stages under one ownership
// the record knows which was the last; rec is nil if there is none.
func outlived(e *state.Entry, c ssd.Facts, rec *volume.Volume) bool {
	switch {
	case e == nil || !c.Whole || c.SuperblockBlank || c.Fence.UID != e.Fence.UID:
		return false
	case c.Fence.Generation != e.Fence.Generation:
		return c.Fence.Generation > e.Fence.Generation
	case c.ActivationID == e.ActivationID:
		return c.ActivationCount > e.ActivationCount
	case rec == nil:
		return c.Mode == volume.ModeWriteback && !c.Stopped // what may be dirty is kept
	}
	return journalIdentity(e, *rec) == volume.IdentityPast && c.Fence == rec.Fence && cacheIdentity(c, *rec) != volume.IdentityPast
}

// ssdAgrees reports whether the SSD holds the cache that the journal speaks of, or none: a
// state directory that was restored from an image alone says nothing of what is there. The
// journal is forgotten then, and the cache is judged as one that lost its own.
func (a *Attacher) ssdAgrees(ctx context.Context, e *state.Entry) (bool, error) {
	view := a.Pool.View()
	if view.VG == "" {
		return true, nil
	}
	found, err := a.ssd.Inspect(ctx, view.VG, e.ID)
	if err != nil {
		return false, fmt.Errorf("cache of volume %s: %w", e.ID, err)
	}
	c := found.Facts
	if !c.Whole || c.Of(e) {
		return true, nil
	}
	klog.FromContext(ctx).Info("Journal speaks of another cache than is on the SSD, and is forgotten", "volume", e.ID, "activation", e.ActivationID, "ssd", c.ActivationID)
	return false, a.forget(e.ID)
}

// forgetOld forgets a journal entry that is older than the SSD, whose cache is judged as
// one that lost its own (states.md, Whose disks these are). The record is read only if it
// may tell.
func (a *Attacher) forgetOld(ctx context.Context, e *state.Entry, c ssd.Facts) (old bool, err error) {
	if !c.Whole || c.Of(e) {
		return false, nil
	}
	rec, err := a.findRecord(ctx, e.ID)
	if err != nil || believed(e, c, rec) != nil {
		return false, err
	}
	klog.FromContext(ctx).Info("Journal is older than the SSD, and is forgotten", "volume", e.ID, "generation", e.Fence.Generation, "ssd", c.Fence.Generation)
	return true, a.forget(e.ID)
}

// errPast says what stands against a volume whose unflushed writes are elsewhere.
func errPast(node string, id volume.ID) error {
	return fmt.Errorf("the disks of node %s are not those with which volume %s was last attached: they were restored from an image, or are those of another machine of the same name; "+
		"the unflushed writes on them are kept as they are, and are not flushed. Bring the other disks back, or give the writes up (kubectl nearflash abandon; docs/troubleshooting.md says how)", node, id)
}

// newActivation is a stage that is about to begin. One that a killed stage began is gone
// on with, and so is that of a cache with unflushed writes.
func newActivation(s *staging) (a volume.Activation, fresh bool) {
	e, f, rec := s.entry, s.req.Publication.Fence, s.rec
	switch {
	case s.plan.Cache == planRecover && e != nil:
		return e.Activation(), false
	case s.plan.Cache == planRecover:
		return s.cache.Facts.Activation(), false
	case e != nil && e.Fence == f && e.ActivationID != "" && rec.Pending == e.Activation():
		return e.Activation(), false
	}
	count := max(rec.Activation.Count, rec.Pending.Count)
	if e != nil {
		count = max(count, e.ActivationCount)
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails (crypto/rand)
	return volume.Activation{ID: hex.EncodeToString(id[:]), Generation: f.Generation, Count: count + 1}, true
}

// pendActivation makes the record know of a stage before anything on this node does.
func (a *Attacher) pendActivation(ctx context.Context, s *staging) error {
	next, fresh := newActivation(s)
	if fresh {
		held, err := a.Records.PendActivation(ctx, s.req.ID, s.req.Publication.Fence, next)
		if err != nil {
			return err
		}
		if !held {
			next = volume.Activation{} // as an earlier version
		}
	}
	s.activation = next
	faultStagePending.Hit()
	return nil
}

// confirmActivation makes it the record's, now that the devices are there.
func (a *Attacher) confirmActivation(ctx context.Context, e *state.Entry, rec volume.Volume) error {
	if e.ActivationID == "" || rec.Activation == e.Activation() {
		return nil
	}
	return a.Records.SetActivation(ctx, e.ID, e.Fence, e.Activation())
}

// countUp lets the count grow in the journal. The SSD follows, and then the record:
// whatever is an image of this node's disks as they were before is of the past from then
// on.
func (a *Attacher) countUp(ctx context.Context, e *state.Entry) error {
	if e.ActivationID == "" {
		return nil
	}
	e.ActivationCount, e.CountedAt = e.ActivationCount+1, a.Now().UTC()
	return a.save(ctx, e, e.State)
}

// recordCount brings the count to the record, which refuses that of disks of the past.
func (a *Attacher) recordCount(ctx context.Context, e *state.Entry) error {
	return a.Records.SetActivation(ctx, e.ID, e.Fence, e.Activation())
}

// CountUp lets the counts of all volumes grow that are due: those whose caches may take
// writes that are nowhere else.
func (a *Attacher) CountUp(ctx context.Context) error {
	entries, err := a.Journal.List()
	var due []volume.ID
	for i := range entries {
		if a.countDue(&entries[i]) {
			due = append(due, entries[i].ID)
		}
	}
	return errors.Join(err, a.counting.Each(ctx, passes.Slow, passes.Patience, due, func(ctx context.Context, id volume.ID) error {
		if err := a.countOne(ctx, id); err != nil {
			return fmt.Errorf("count of volume %s: %w", id, err)
		}
		return nil
	}))
}

func (a *Attacher) countDue(e *state.Entry) bool {
	age := a.Now().Sub(e.CountedAt)
	return e.State == state.Staged && e.MayBeDirty() && e.ActivationID != "" && e.Boot == a.Boot && (age < 0 || age >= countEvery)
}

func (a *Attacher) countOne(ctx context.Context, id volume.ID) error {
	e, unlock, err := a.lockSettled(ctx, id)
	defer unlock()
	if err != nil || e == nil || !a.countDue(e) || a.ssd.Degraded() {
		return err
	}
	if err := a.countUp(ctx, e); err != nil {
		return err
	}
	faultCountJournaled.Hit()
	if err := a.ssd.TagCounted(ctx, e); err != nil {
		return err
	}
	faultCountTagged.Hit()
	err = a.recordCount(ctx, e)
	if errors.Is(err, volume.ErrFenced) || errors.Is(err, volume.ErrNotFound) {
		klog.FromContext(ctx).V(2).Info("Record does not count this node's stage", "volume", id, "reason", err.Error())
		return nil
	}
	return err
}
