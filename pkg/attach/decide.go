package attach

import (
	"cmp"
	"fmt"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// stageFacts are everything that decideStage rests on.
type stageFacts struct {
	Entry *state.Entry
	// SameBoot is true when the entry was written by the running kernel.
	SameBoot bool
	// TopActive is true when device nf-<vol> exists with a live table, and
	// TopOurs when its UUID is that of the record.
	TopActive, TopOurs bool
	Cache              ssd.Facts
	// Fence is the publication's, Record the API object's view.
	Fence  volume.Fence
	Record volume.Volume
	// Node is this node's name.
	Node string
	// CanMirror is true of a pool that can keep two copies.
	CanMirror bool
	// PoolChecked is true of a pool that asks for checksums. IntegrityProblem says why they cannot be
	// had, or is empty, and IntegrityReason is its word of api/v1alpha1.
	PoolChecked                       bool
	IntegrityProblem, IntegrityReason string
	// PoolProblem and KernelProblem say why no cache can be had, or are empty.
	PoolProblem, KernelProblem string
	// Method is how a cache that begins from elsewhere is filled, "" if it cannot be, and
	// MethodReason why so.
	Method       volume.MoveMethod
	MethodReason string
	// Streams is true if a cache may be filled by stream here, whatever Method is.
	Streams bool
	// StayedBefore is true when the volume was attached here under this ownership before,
	// whatever has become of its entry.
	StayedBefore bool
	// Prestaged is true when this process has prestaged this very stage and nothing has
	// happened to the volume since. What it has made on the SSD was never activated;
	// Cache is empty then.
	Prestaged bool
	// Proof is gathered if the record leaves a doubt about unflushed writes.
	Proof proof
	// CacheProblem says why the SSD does not tell what it holds of this volume
	// although the pool is there, or is empty.
	CacheProblem string
}

// cachePlan says what stage does about the cache.
type cachePlan string

const (
	// planUncached attaches the origin directly.
	planUncached cachePlan = "Uncached"
	// planAdopt keeps the active top device.
	planAdopt cachePlan = "Adopt"
	// planReuse activates a clean retained cache: the warm start.
	planReuse cachePlan = "Reuse"
	// planRecover activates a writeback cache after an unclean stop.
	planRecover cachePlan = "Recover"
	// planCreate makes an empty cache: the cold start.
	planCreate cachePlan = "Create"
)

// stagePlan is the decision of decideStage.
type stagePlan struct {
	// Refuse, when set, fails the request; nothing on the node is touched.
	Refuse error
	// Mark is true if the record calls writes clean that this node knows of: it is told, so
	// that an administrator finds there what to decide.
	Mark bool
	// Wipe destroys the cache found on the SSD before anything else.
	Wipe  bool
	Cache cachePlan
	Mode  volume.CacheMode
	// Keep is true if prewarmed data are not wiped yet.
	Keep bool
	// Warm is set for planCreate when the cache is to begin from somewhere.
	Warm *warmPlan
	// NotWarm says why the retained cache that the record names is not read, or is empty.
	NotWarm string
	// NotPreloaded says why a cache that is to be preloaded is not, or is empty.
	NotPreloaded string
	// Reason and Message explain planUncached.
	Reason, Message string
}

// warmPlan says where a new cache begins.
type warmPlan struct {
	// Peer is the retained cache to begin from; nil if there is none, and the hot set is
	// asked.
	Peer *volume.WarmSource
	// Method is how the cache is filled, MethodClone or MethodStream, and Reason why so.
	Method volume.MoveMethod
	Reason string
	// Preload is true if a cache that begins from no peer is filled with all that it has room for.
	Preload bool
	// Readers are the nodes that are asked first, one after the other, for what they have of a volume
	// that many read. Peer is nil then.
	Readers []volume.WarmSource
}

// decideStage is the table "What stage decides" of states.md, in its order.
func decideStage(f stageFacts) stagePlan {
	if err := fenceError(f); err != nil {
		return stagePlan{Refuse: err}
	}
	if e := f.Entry; e != nil && e.Lost != nil && e.Fence == f.Fence {
		return stagePlan{Refuse: fmt.Errorf("%w: the LUN was reserved for key %s while node %s had volume %s under generation %d: publish it anew",
			volume.ErrFenced, e.Lost.To, f.Node, e.ID, f.Fence.Generation)}
	}
	if err := foreignWrites(f); err != nil {
		return stagePlan{Refuse: err}
	}
	sameFence := f.Entry != nil && f.Entry.Fence == f.Fence
	if f.TopActive && f.TopOurs && sameFence && f.SameBoot {
		return stagePlan{Cache: planAdopt, Mode: f.Entry.Mode}
	}
	var plan stagePlan
	switch past := pastWrites(f.Entry, f.Cache, f.Record); {
	case past && f.Record.PossiblyDirty:
		return stagePlan{Refuse: fmt.Errorf("%w: %w", volume.ErrFenced, errPast(f.Node, f.Record.ID))}
	case past:
		// Flushed, or given up, after these disks were as they are (I3).
	case recoverable(f, sameFence):
		plan.Cache, plan.Mode = planRecover, volume.ModeWriteback
		return plan
	case lostDirty(f, sameFence):
		return stagePlan{Mark: !f.Record.PossiblyDirty, Refuse: fmt.Errorf(
			"%w: node %s holds unflushed writes of generation %d on an SSD that cannot be read now (%s): bring the SSD back; docs/troubleshooting.md says how to give the writes up",
			volume.ErrFenced, f.Node, f.Fence.Generation, orUnknown(cmp.Or(f.PoolProblem, f.CacheProblem)))}
	}
	return decideClean(f, plan, sameFence)
}

// decideClean completes a plan for which no unflushed write is at risk.
func decideClean(f stageFacts, plan stagePlan, sameFence bool) stagePlan {
	mode := f.Record.Asked()
	plan.Mode = mode
	switch {
	case mode == volume.ModeNone:
		plan.Wipe = f.Cache.Exists()
		return uncached(plan, v1alpha1.ReasonModeNone, "the volume's cacheMode is none")
	case f.KernelProblem != "":
		// A retained cache that could be read again later would be stale by then: the
		// pod is about to write past it. The journal forgets it, so that it can
		// only be wiped (I3).
		return uncached(plan, v1alpha1.ReasonKernelTargetMissing, f.KernelProblem)
	case f.PoolProblem != "":
		return uncached(plan, v1alpha1.ReasonPoolMissing, f.PoolProblem)
	case f.Record.Spec.Mirror && !f.CanMirror:
		plan.Wipe = f.Cache.Exists()
		return uncached(plan, v1alpha1.ReasonNotMirrored, notMirrored(f.Node))
	case f.IntegrityProblem != "":
		plan.Wipe = f.Cache.Exists()
		return uncached(plan, f.IntegrityReason, f.IntegrityProblem)
	case f.CacheProblem != "":
		// What cannot be read is of no use to anybody: gone, it leaves its place
		// to the cache of the next attachment. Of what is not even known to be there,
		// nobody can tell whether it is dirty.
		plan.Wipe = f.Cache.Exists()
		return uncached(plan, v1alpha1.ReasonCacheDeviceError, f.CacheProblem)
	case reusable(f, sameFence):
		plan.Cache = planReuse
		return plan
	}
	plan.Cache = planCreate
	plan.Warm = decideWarm(f, sameFence)
	if from := f.Record.Spec.WarmStart.From; f.Method == "" && f.Record.WarmSource != nil && (from == volume.WarmPeer || from == "") {
		plan.NotWarm = f.MethodReason
	}
	if f.Method == "" && preloads(f.Record) {
		plan.NotPreloaded = f.MethodReason
	}
	peer := plan.Warm != nil && plan.Warm.Peer != nil
	if peer && plan.Warm.Method == volume.MethodStream {
		// Until there is one map, nothing may be dirty (The stream). What the record asks for
		// comes after that.
		plan.Mode = volume.ModeWritethrough
	}
	plan.Keep = peer && prewarmKept(f.Entry, f.Fence) && !f.Cache.Leaving
	plan.Wipe = f.Cache.Exists() && !plan.Keep
	return plan
}

// notMirrored says why a volume that asks for a mirror has no cache.
func notMirrored(node string) string {
	return "the volume asks for redundancy mirror, and the pool of node " + node + " has one SSD, or keeps checksums: give it a second one and no integrity, or take the demand away"
}

// reusable reports whether the cache found is a clean retained cache of this fence (I3, I4).
func reusable(f stageFacts, sameFence bool) bool {
	current := sameFence && f.Cache.Fence == f.Fence && !f.Cache.Apart && (identityOf(f.Entry, f.Cache, f.Record) == volume.IdentityCurrent || state.BugTrustNodeName.On())
	clean := f.Entry.Cached() && f.Entry.Clean && f.Cache.SuperblockClean && retainedStates[f.Entry.State] && f.Cache.StopProven(f.Entry)
	switch {
	case f.Record.Spec.Mirror && !f.Cache.Mirrored, f.Cache.Leaving, f.PoolChecked && !f.Cache.Checked:
		return false
	case f.Entry == nil || !f.Cache.Whole || f.Entry.Streams() || f.Entry.Hydration != nil && !f.Entry.Hydration.Whole && !f.Cache.Hydration:
		return false
	case bugAnyGeneration.On() && clean, bugCrashedCache.On() && current && f.Entry.Cached():
		return true
	}
	return current && clean
}

// decideWarm says where a new cache begins. A retained cache is believed only before
// anything was activated under this ownership (states.md, The warm move): while the
// record still has it, or while a hydration that was intended was not activated.
func decideWarm(f stageFacts, sameFence bool) *warmPlan {
	if f.Record.Spec.WarmStart.From == volume.WarmOff || f.Method == "" {
		return nil
	}
	plan := &warmPlan{Method: f.Method, Reason: f.MethodReason, Preload: preloads(f.Record)}
	if f.Record.Spec.WarmStart.From == volume.WarmOrigin {
		return plan
	}
	if f.Record.ReadOnly {
		plan.Readers = otherReaders(f)
		return plan
	}
	src := f.Record.WarmSource
	switch {
	case f.StayedBefore, sameFence && (f.Entry.Activated || f.Entry.State != state.Staging || !f.Entry.Cached()):
		src = nil // its pod may have written past any retained cache
	case src == nil && sameFence && f.Entry.Hydration != nil:
		src = f.Entry.Hydration.From
	}
	if src != nil && src.Generation == f.Fence.Generation-1 && src.Node != f.Node {
		plan.Peer = src
	}
	return plan
}

// maxReadersAsked is how many other readers a stage asks for their cache.
const maxReadersAsked = 3

// otherReaders are those whose cache a new reader may begin from, the one that came first first: it has
// had the most time to cache something (states.md, Readers).
func otherReaders(f stageFacts) []volume.WarmSource {
	if !f.Streams {
		return nil
	}
	var others []volume.WarmSource
	for _, node := range f.Record.Readers {
		if node != f.Node && len(others) < maxReadersAsked {
			others = append(others, volume.WarmSource{Node: node, Generation: f.Fence.Generation})
		}
	}
	return others
}

// retainedStates are the states in which a clean cache may be found at stage.
// Staging is one of them because a stage may be repeated before it activated
// anything; Entry.Clean tells.
var retainedStates = map[state.State]bool{state.Retained: true, state.Flushed: true, state.Staging: true}

// recoverable reports a writeback cache of this very fence whose stop was
// unclean, or whose journal is gone while it may be dirty.
func recoverable(f stageFacts, sameFence bool) bool {
	if f.Cache.Inactive || f.CacheProblem != "" && f.Proof.GivenUp {
		return false // it cannot be read; lostDirty refuses what may be dirty
	}
	return dirtyHere(f, sameFence)
}

// dirtyHere reports that the SSD has unflushed writes of this fence, by the journal, or by the tags without one.
func dirtyHere(f stageFacts, sameFence bool) bool {
	c := f.Cache
	switch {
	case !c.Whole || c.Fence != f.Fence || c.SuperblockBlank:
		return false
	case f.Entry == nil:
		return c.Mode == volume.ModeWriteback && (f.Record.PossiblyDirty || !c.Stopped && !f.Proof.GivenUp)
	}
	return sameFence && f.Entry.MayBeDirty()
}

// lostDirty reports unflushed writes of this fence that cannot be reached, and that nobody
// has given up.
func lostDirty(f stageFacts, sameFence bool) bool {
	if f.Entry == nil && f.Cache.Inactive && dirtyHere(f, sameFence) {
		return true
	}
	if f.Entry == nil || !sameFence || journalIdentity(f.Entry, f.Record) == volume.IdentityPast && !state.BugTrustNodeName.On() {
		// What is not of the stage that made the writes says nothing of them.
		return f.Record.PossiblyDirty
	}
	return f.Entry.MayBeDirty() && !f.Cache.SuperblockBlank && !f.Proof.GivenUp
}

// fenceError checks I1: the record must name this node as published owner of
// the generation that the publication carries.
func fenceError(f stageFacts) error {
	r := f.Record
	if r.Fence == f.Fence && r.Published && f.Fence.Node == f.Node {
		return nil
	}
	return fmt.Errorf("%w: asked to attach generation %d for node %q, but the record shows generation %d, owner %q, published %t",
		volume.ErrFenced, f.Fence.Generation, f.Fence.Node, r.Fence.Generation, r.Fence.Node, r.Published)
}

func uncached(p stagePlan, reason, message string) stagePlan {
	p.Cache, p.Mode, p.Reason, p.Message = planUncached, volume.ModeNone, reason, message
	p.Keep, p.Warm = false, nil
	return p
}

func orUnknown(s string) string {
	if s == "" {
		return "cache not found"
	}
	return s
}

// downFacts are what decideDown rests on.
type downFacts struct {
	Entry *state.Entry
	// SameBoot is true when the entry was written by the running kernel.
	SameBoot  bool
	TopActive bool
	Cache     ssd.Facts
	// Past is true if the unflushed writes are those of other disks than the last ones.
	Past bool
	// Taken is true if the LUN's reservation was lost to another node of nearflash, or if
	// nothing here is dirty and it was lost to anybody.
	Taken bool
	// Record is gathered for an entry that may be dirty, and nil if there is none; Proof
	// is what else tells whether its writes are still wanted.
	Record *volume.Volume
	Proof  proof
}

// dirty reports whether writes may be on this node alone.
func (f downFacts) dirty() bool {
	_, dirty := unflushed(f.Entry, f.Cache)
	return dirty
}

// owned is what becomes of them.
func (f downFacts) owned() ownership {
	return decideOwnership(f.Entry.Fence, f.Entry.Static, f.Record, f.Proof)
}

// abandoned tells that they are flushed if they can be read, and are not missed otherwise.
func (f downFacts) abandoned() bool { return f.dirty() && f.owned() == ownedAbandoned }

// downAction is the next thing unstage or repair does with a volume.
type downAction string

const (
	downNothing downAction = "Nothing"
	// downFlush loads the cleaner table, or proves at once that nothing is
	// dirty, and goes on to downRelease.
	downFlush downAction = "Flush"
	// downRecover activates a writeback cache in order to flush it.
	downRecover downAction = "Recover"
	// downRelease takes a flushed cache down and keeps it as retained cache.
	downRelease downAction = "Release"
	// downDetach takes down an uncached volume and forgets it.
	downDetach downAction = "Detach"
	// downWipe takes down what is left and destroys the cache.
	downWipe downAction = "Wipe"
	// downKeep leaves everything as it is until somebody decides.
	downKeep downAction = "Keep"
)

// decideDown is the table "What unstage and repair decide" of states.md.
func decideDown(f downFacts) downAction {
	if f.Entry == nil {
		return downNothing
	}
	switch f.Entry.State {
	case state.Retained, state.Prewarmed:
		return downNothing
	case state.Flushed:
		if !f.TopActive && !f.SameBoot && !f.Cache.Stopped {
			return downWipe // nothing is dirty, and what is cached may not have reached the SSD (I4)
		}
		return downRelease
	case state.Releasing:
		return downDetach
	case state.Wiping:
		return downWipe
	case state.Staging, state.Staged, state.Flushing:
		return decideActive(f)
	}
	return downNothing
}

// decideActive decides for the states in which a cache may have been active.
func decideActive(f downFacts) downAction {
	e := f.Entry
	var owned ownership
	if f.dirty() {
		owned = f.owned()
	}
	switch {
	case !e.Cached():
		return downDetach
	case f.Taken, owned == ownedLater:
		// A flush would write over what the newer owner wrote (I3).
		return downWipe
	case owned == ownedUnproven:
		return downKeep
	case f.TopActive:
		return downFlush
	case f.Past && owned == ownedAbandoned:
		return downWipe
	case f.Past:
		return downKeep
	case e.State == state.Staging && e.Clean:
		return downRelease
	case owned == ownedAbandoned && !f.Cache.Whole:
		return downWipe
	case e.MayBeDirty() && !f.Cache.SuperblockBlank:
		return downRecover
	default:
		return downWipe
	}
}
