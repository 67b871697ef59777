package attach

import (
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// tuneFacts are what decideTune rests on.
type tuneFacts struct {
	Entry *Entry
	// Record is the API object's view.
	Record volume.Volume
	// LiveCache is true when the top device's table is a cache, and Status its
	// state; LiveOrigin when it is linear over the origin.
	LiveCache, LiveOrigin bool
	Status                devmapper.CacheStatus
	// Degraded says what the pool's mirror lacks, or is empty. The mode that Record
	// asks for is writethrough then if it was writeback.
	Degraded string
	// Broken says in which way the cache fails, or is empty.
	Broken string
	// Coarse says why the live cache's logical blocks are too large, or is empty.
	Coarse string
	// Leftover is true if the data device exists below a linear top device.
	Leftover bool
	// Want is the cache's shape by the record; the zero value when none is asked
	// for. Problem says why no cache can be had, or is empty; ProblemReason is its
	// word of api/v1alpha1.
	Want                   geometry
	Problem, ProblemReason string
}

// tuneStep is one step of the table "What changes while the volume is attached"
// in states.md.
type tuneStep string

const (
	tuneNothing   tuneStep = "Nothing"
	tuneSweep     tuneStep = "Sweep"
	tuneCache     tuneStep = "Cache"
	tuneUncache   tuneStep = "Uncache"
	tuneRecord    tuneStep = "Record"
	tuneClean     tuneStep = "Clean"
	tuneUnmark    tuneStep = "Unmark"
	tuneMark      tuneStep = "Mark"
	tuneRestore   tuneStep = "Restore"
	tuneWriteback tuneStep = "Writeback"
	tuneGrow      tuneStep = "Grow"
	tuneFlushed   tuneStep = "Flushed"
	// tuneImpossible: what is asked for cannot be had now; the message says why.
	tuneImpossible tuneStep = "Impossible"
	tuneDone       tuneStep = "Done"
)

// decideTune is that table, in its order.
func decideTune(f tuneFacts) tuneStep {
	e := f.Entry
	switch {
	case e == nil || e.State != StateStaged || e.Fence != f.Record.Fence || !f.Record.Published:
		return tuneNothing
	case f.LiveOrigin:
		return decideUncached(f)
	case !f.LiveCache:
		return tuneNothing
	case e.FailoverCause != "" && !e.Cached():
		return tuneNothing // see The cache device fails
	case f.Broken != "" || f.Status.Fail:
		return tuneImpossible
	case !e.Cached():
		// A step was killed; the table that is live is writethrough (states.md).
		if f.Record.Spec.Mode == volume.ModeNone || needsNewCache(f) {
			return tuneUncache
		}
		return tuneRecord
	}
	return decideCached(f)
}

// decideUncached decides for a volume that runs past its cache.
func decideUncached(f tuneFacts) tuneStep {
	switch {
	case f.Entry.Cached():
		// No step leaves this. Whatever did, what the cache may hold is kept.
		return tuneNothing
	case f.Leftover:
		return tuneSweep
	case f.Record.Spec.Mode == volume.ModeNone:
		return flushedOr(f, tuneDone)
	case f.Problem != "":
		return flushedOr(f, tuneImpossible)
	}
	return tuneCache
}

// decideCached decides for a volume whose cache is live and journalled.
func decideCached(f tuneFacts) tuneStep {
	e, asked := f.Entry, f.Record.Spec.Mode
	if e.Mode == volume.ModeWriteback && !f.Record.PossiblyDirty {
		// Given up while the node was cut off and its pod went on, or restored.
		return tuneMark
	}
	newCache := asked == volume.ModeNone || needsNewCache(f)
	switch {
	case e.Mode == volume.ModeWriteback:
		if asked != volume.ModeWriteback || newCache || f.flushDue() {
			return tuneClean
		}
	case e.Marked && (asked != volume.ModeWriteback || f.Coarse != ""):
		return tuneUnmark
	case newCache:
		return tuneUncache
	}
	switch {
	case (f.Status.Policy != devmapper.PolicySMQ || f.Status.Mode() != liveMode(e.Mode)) && !f.limited():
		return tuneRestore
	case e.Mode == volume.ModeWritethrough && asked == volume.ModeWriteback:
		return tuneWriteback
	case f.waitsForFill():
		return flushedOr(f, tuneImpossible)
	case f.Degraded != "":
		// Also nothing is made larger on half a mirror.
		return flushedOr(f, tuneImpossible)
	case f.Want.dataBytes > e.DataBytes:
		return tuneGrow
	}
	return flushedOr(f, tuneDone)
}

// needsNewCache tells a cache that cannot become what is asked for while it keeps its
// map: another size, or an SSD that it must not be on.
func needsNewCache(f tuneFacts) bool {
	e := f.Entry
	switch {
	case f.Coarse != "":
		return true
	case e.ChunkSectors == 0, f.Want.dataBytes == 0 || f.Want.dataBytes <= e.DataBytes && f.Want.fits(e.DataBytes):
		return false
	case f.Want.dataBytes < e.DataBytes:
		return true
	}
	blocks := uint64(f.Want.dataBytes) / sectorSize / e.ChunkSectors
	return blocks > devmapper.MaxCacheBlocks || !devmapper.MetadataFits(e.MetaBytes, blocks)
}

// waitsForFill tells a larger size that has to wait, because the data device is
// a clone of a fixed length until the fill is complete.
func (f tuneFacts) waitsForFill() bool {
	return f.Entry.Cached() && f.Entry.Fill != nil && f.Want.dataBytes > f.Entry.DataBytes
}

// limited tells a table that the dirty limit may have loaded and will take away
// (package dirtylimit).
func (f tuneFacts) limited() bool {
	return f.Entry.Mode == volume.ModeWriteback && f.Status.Mode() == devmapper.Writethrough && !f.Record.Spec.DirtyLimit.IsZero()
}

// flushDue tells whether a flush was asked for that the node has not done yet.
func (f tuneFacts) flushDue() bool {
	return f.Record.FlushPending() && f.Entry.FlushDone != f.Record.FlushRequest
}

// flushedOr returns tuneFlushed while a flush waits to be done or reported.
func flushedOr(f tuneFacts, otherwise tuneStep) tuneStep {
	if f.Record.FlushPending() {
		return tuneFlushed
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
