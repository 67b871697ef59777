package v1alpha1

// Condition types and reasons of a CachedVolume.
const (
	// ConditionCached is True while reads are served through the SSD cache.
	ConditionCached = "Cached"

	ReasonCacheActive = "CacheActive"
	ReasonModeNone    = "ModeNone"
	ReasonDetached    = "Detached"
	ReasonPoolMissing = "PoolMissing"
	ReasonPoolFull    = "PoolFull"
	// ReasonNamespaceShareFull: the caches of the claim's namespace have their share of the
	// node's pool (spec.namespaceSharePercent of its CachePool).
	ReasonNamespaceShareFull  = "NamespaceShareFull"
	ReasonKernelTargetMissing = "KernelTargetMissing"
	ReasonCacheDeviceError    = "CacheDeviceError"
	ReasonDropped             = "Dropped"
	// ReasonOriginErrors: requests to the storage server failed, so that the cache may hold
	// writes that it does not have, and was not kept when the volume left.
	ReasonOriginErrors = "OriginErrors"
	// ReasonOriginReplaced: the volume's address leads to another LUN of the storage
	// server than the one that the cache was of.
	ReasonOriginReplaced = "OriginReplaced"
	// ReasonReservationLost: another node or host has the reservation of a static volume.
	ReasonReservationLost = "ReservationLost"
	// ReasonBlockSizeTooLarge: the SSD's logical block is larger than the volume's, and a
	// filesystem made for the smaller one does not work above the larger.
	ReasonBlockSizeTooLarge = "BlockSizeTooLarge"
	// ReasonMirrorDegraded: a writeback volume writes through while one of the two copies of its
	// cache is lost, or out of date.
	ReasonMirrorDegraded = "MirrorDegraded"

	// ReasonDeviceEvacuated: the cache has left an SSD that is to be out of the pool
	// (spec.evacuate of the node's CachePool), and another one is not made yet.
	ReasonDeviceEvacuated = "DeviceEvacuated"
	// ReasonNotMirrored: the volume asks for a mirrored cache, and the node's pool has one SSD, or
	// keeps checksums.
	ReasonNotMirrored = "NotMirrored"
	// ReasonFlushesDropped: the cache takes writes in mode writeback-unsafe.
	ReasonFlushesDropped = "FlushesDropped"
	// ReasonFlushesPassed: flushes of a volume in that mode cannot be dropped, and go through.
	ReasonFlushesPassed = "FlushesPassed"

	// ConditionConsistent is False once a node has stopped uncleanly while it dropped the
	// flushes of the volume: writes may be missing, and newer ones be there. Nothing makes it
	// True; who has made the data anew takes the condition away.
	ConditionConsistent = "Consistent"

	ReasonUncleanStop = "UncleanStop"

	// ConditionApplied is True while the attached cache is as the spec asks: its
	// mode, its size, and no flush is outstanding. It is Unknown while the volume
	// is attached nowhere.
	ConditionApplied = "Applied"

	ReasonApplied     = "Applied"
	ReasonApplying    = "Applying"
	ReasonFlushing    = "Flushing"
	ReasonRejected    = "Rejected"
	ReasonNotAttached = "NotAttached"

	// ConditionCacheIntact is True if the last comparison of the whole cache with the
	// origin found nothing that the SSD had lost, and False once one does.
	ConditionCacheIntact = "CacheIntact"

	ReasonIntact = "Intact"
	// ReasonCacheCorrupted: the SSD returned something else than was written to it.
	ReasonCacheCorrupted = "CacheCorrupted"
	// ReasonSSDNotKeeping: it did not keep what was written in its place either.
	ReasonSSDNotKeeping = "SSDNotKeeping"
)
