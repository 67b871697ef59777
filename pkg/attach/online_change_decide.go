package attach

import (
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// changeFacts are what decideChange rests on.
type changeFacts struct {
	Entry *state.Entry
	// Record is the API object's view.
	Record volume.Volume
	// LiveCache is true when the top device's table is a cache, and Status its
	// state; LiveOrigin when it is linear over the origin.
	LiveCache, LiveOrigin bool
	Status                devmapper.CacheStatus
	// Degraded says what the pool's mirror lacks, or is empty. The mode that Record
	// asks for is writethrough then if it was writeback.
	Degraded string
	// Held is true if a hold has a volume that asks for writeback asked for writethrough.
	Held bool
	// Broken says in which way the cache fails, or is empty.
	Broken string
	// Coarse says why the live cache's logical blocks are too large, or is empty.
	Coarse string
	// Single is true if the live cache has one copy, and two are asked for.
	Single bool
	// Leaving is true if the live cache has a part on an SSD that is to leave the pool.
	Leaving bool
	// Unchecked is true if the live cache has no checksums, and the pool asks for them.
	Unchecked bool
	// Drops says that the top device of a live cache ends flushes.
	Drops bool
	// Leftover is true if the data device, or a hydration, exists below a linear top device.
	Leftover bool
	// Want is the cache's shape by the record; the zero value when none is asked
	// for. Problem says why no cache can be had, or is empty; ProblemReason is its
	// word of api/v1alpha1.
	Want                   geometry
	Problem, ProblemReason string
}

// changeStep is one step of the table "What changes while the volume is attached"
// in states.md.
type changeStep string

const (
	changeNothing   changeStep = "Nothing"
	changeSweep     changeStep = "Sweep"
	changeCache     changeStep = "Cache"
	changeUncache   changeStep = "Uncache"
	changeRecord    changeStep = "Record"
	changeClean     changeStep = "Clean"
	changeUnmark    changeStep = "Unmark"
	changeMark      changeStep = "Mark"
	changeRestore   changeStep = "Restore"
	changeWriteback changeStep = "Writeback"
	changeGrow      changeStep = "Grow"
	changeFlushed   changeStep = "Flushed"
	changeUnsafe    changeStep = "Unsafe"
	changeSafe      changeStep = "Safe"
	changeTell      changeStep = "Tell"
	// changeImpossible: what is asked for cannot be had now; the message says why.
	changeImpossible changeStep = "Impossible"
	changeDone       changeStep = "Done"
)

// decideChange is that table, in its order.
func decideChange(f changeFacts) changeStep {
	e := f.Entry
	switch {
	case e == nil || e.State != state.Staged || e.Fence != f.Record.Fence || !f.Record.Published:
		return changeNothing
	case e.Lost != nil:
		// A table of any other kind would take the pod's writes again (I1).
		return changeNothing
	case e.Torn:
		return changeTell
	case f.LiveOrigin:
		return decideUncached(f)
	case !f.LiveCache:
		return changeNothing
	case e.FailoverCause != "" && !e.Cached():
		return changeNothing // see The cache device fails
	case f.Broken != "" || f.Status.Fail:
		return changeImpossible
	case f.Drops && !e.Unsafe:
		return changeSafe // nobody has noted that it does
	case e.Mode != volume.ModeWriteback && !e.Streams() && f.Status.Dirty > 0:
		return changeClean // the journal denies it
	case !e.Cached():
		// A step was killed; the table that is live is writethrough (states.md).
		if f.Record.Spec.Mode == volume.ModeNone || needsNewCache(f) {
			return changeUncache
		}
		return changeRecord
	}
	return decideCached(f)
}

// decideUncached decides for a volume that runs past its cache.
func decideUncached(f changeFacts) changeStep {
	switch {
	case f.Entry.Cached():
		// No step leaves this. Whatever did, what the cache may hold is kept.
		return changeNothing
	case f.Leftover:
		return changeSweep
	case f.Record.Hold != nil && f.Entry.Marked:
		// Whatever was marked before is on the origin, or nothing would run past the cache.
		return changeUnmark
	case f.Record.Spec.Mode == volume.ModeNone:
		return flushedOr(f, changeDone)
	case f.Problem != "":
		return flushedOr(f, changeImpossible)
	}
	return flushedOr(f, changeCache)
}

// decideCached decides for a volume whose cache is live and journalled.
func decideCached(f changeFacts) changeStep {
	e, asked := f.Entry, f.Record.Spec.Mode
	if e.Mode == volume.ModeWriteback && !f.Record.PossiblyDirty && f.Record.Hold == nil {
		// Given up while the node was cut off and its pod went on, or restored. While it is
		// held nobody may mark it: it is flushed instead.
		return changeMark
	}
	newCache := asked == volume.ModeNone || needsNewCache(f)
	switch {
	case e.Mode == volume.ModeWriteback:
		if asked != volume.ModeWriteback || newCache || f.flushDue() {
			return changeClean
		}
	case e.Marked && (asked != volume.ModeWriteback || f.Coarse != "" || f.Single || f.Leaving || f.Unchecked):
		return changeUnmark
	case newCache:
		return changeUncache
	}
	switch {
	case e.Streams() && f.Problem != "":
		return flushedOr(f, changeImpossible)
	case e.Streams():
		// Until there is one map its tables are the stream's (The stream).
		return flushedOr(f, changeDone)
	case e.Unsafe && !f.Record.Spec.Unsafe:
		return changeSafe // before Restore, whose table would drop flushes again
	case (f.Status.Policy != devmapper.PolicySMQ || f.Status.Mode() != liveMode(e.Mode)) && !f.limited() && !f.cleanerStays():
		return changeRestore
	case e.Mode == volume.ModeWritethrough && asked == volume.ModeWriteback:
		return changeWriteback
	case e.Mode == volume.ModeWriteback && f.Record.Spec.Unsafe && f.Record.Filesystem == volume.FormatDone && f.Status.Mode() == devmapper.Writeback && (!e.Unsafe || !f.Drops):
		return changeUnsafe
	case f.waitsForHydration():
		return flushedOr(f, changeImpossible)
	case f.Degraded != "":
		// Also nothing is made larger on half a mirror.
		return flushedOr(f, changeImpossible)
	case f.Record.FlushPending():
		return changeFlushed // a pool without room may keep all below from coming about
	case f.Want.dataBytes > e.DataBytes:
		return changeGrow
	case f.Held:
		return flushedOr(f, changeImpossible)
	}
	return flushedOr(f, changeDone)
}

// needsNewCache tells a cache that cannot become what is asked for while it keeps its
// map: another size, or an SSD that it must not be on.
func needsNewCache(f changeFacts) bool {
	e := f.Entry
	switch {
	case f.Coarse != "", f.Single, f.Leaving, f.Unchecked:
		return true
	case f.renews():
		return true
	case e.Recovered && e.Mode == volume.ModeWritethrough && f.Want.dataBytes > e.DataBytes:
		return true // its longer table would call all of it dirty
	case e.ChunkSectors == 0, f.Want.dataBytes == 0 || f.Want.dataBytes <= e.DataBytes && f.Want.fits(e.DataBytes):
		return false
	case f.Want.dataBytes < e.DataBytes:
		return true
	}
	blocks := uint64(f.Want.dataBytes) / sectorSize / e.ChunkSectors
	return blocks > devmapper.MaxCacheBlocks || !devmapper.MetadataFits(e.MetaBytes, blocks)
}

// waitsForHydration tells a larger size that has to wait, because the data device is
// a clone of a fixed length until the hydration is complete.
func (f changeFacts) waitsForHydration() bool {
	return f.Entry.Cached() && f.Entry.Hydration != nil && f.Want.dataBytes > f.Entry.DataBytes
}

// limited tells a table that the dirty limit may have loaded and will take away
// (package dirtylimit).
func (f changeFacts) limited() bool {
	return f.Entry.Mode == volume.ModeWriteback && f.Status.Mode() == devmapper.Writethrough && !f.Record.Spec.DirtyLimit.IsZero()
}

// cleanerStays tells a cache over which no other table is loaded: all that is flushed would be
// dirty again, and a write to a dirty block goes to the SSD alone in every mode.
func (f changeFacts) cleanerStays() bool {
	return f.Entry.Recovered && f.Entry.Mode == volume.ModeWritethrough && f.Status.Policy == devmapper.PolicyCleaner
}

// renews tells a recovered cache that takes writes again by being made anew, because the cleaner is
// live over it and a table in writeback mode would call all of it dirty: one that is clean, and one
// that its dirty limit drains.
func (f changeFacts) renews() bool {
	return f.Entry.Recovered && f.Status.Policy == devmapper.PolicyCleaner && f.Record.Spec.Mode == volume.ModeWriteback &&
		f.Problem == "" && f.Want.dataBytes > 0 && (f.Entry.Mode == volume.ModeWritethrough || f.limited())
}

// flushDue reports whether a flush was asked for that the node has not done yet.
func (f changeFacts) flushDue() bool {
	return f.Record.FlushPending() && f.Entry.FlushDone != f.Record.FlushRequest
}

// flushedOr returns changeFlushed while a flush waits to be done or reported.
func flushedOr(f changeFacts, otherwise changeStep) changeStep {
	if f.Record.FlushPending() {
		return changeFlushed
	}
	return otherwise
}

// liveMode is the kernel's word for a mode.
func liveMode(m volume.CacheMode) devmapper.CacheMode {
	if m == volume.ModeWriteback {
		return devmapper.Writeback
	}
	return devmapper.Writethrough
}
