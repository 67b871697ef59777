package attach

import "github.com/nearflash/nearflash/pkg/faultpoint"

// Fault points: one between any two steps of stage, unstage and wipe. In a test
// build the process can be killed at each of them (I8).
var (
	faultStageJournaled  = faultpoint.New("stage.journaled")
	faultStageConnected  = faultpoint.New("stage.connected")
	faultStageAllocated  = faultpoint.New("stage.allocated")
	faultStageMarked     = faultpoint.New("stage.marked")
	faultStageActivating = faultpoint.New("stage.activating")
	faultStageDataDevice = faultpoint.New("stage.data-device")
	faultStageActivated  = faultpoint.New("stage.activated")
	faultStageStaged     = faultpoint.New("stage.staged")
	faultStageFormatted  = faultpoint.New("stage.formatted")
	faultStageMounted    = faultpoint.New("stage.mounted")

	faultUnstageUnmounted    = faultpoint.New("unstage.unmounted")
	faultUnstageFlushing     = faultpoint.New("unstage.flushing")
	faultUnstageCleaner      = faultpoint.New("unstage.cleaner")
	faultUnstageCleaned      = faultpoint.New("unstage.cleaned")
	faultUnstageFlushed      = faultpoint.New("unstage.flushed")
	faultUnstageRemoved      = faultpoint.New("unstage.removed")
	faultUnstageMarkedClean  = faultpoint.New("unstage.marked-clean")
	faultUnstageDisconnected = faultpoint.New("unstage.disconnected")
	faultUnstageResident     = faultpoint.New("unstage.resident")

	faultDetachJournaled    = faultpoint.New("detach.journaled")
	faultDetachRemoved      = faultpoint.New("detach.removed")
	faultDetachDisconnected = faultpoint.New("detach.disconnected")

	faultTuneJournaled   = faultpoint.New("tune.journaled")
	faultTuneAllocated   = faultpoint.New("tune.allocated")
	faultTuneCached      = faultpoint.New("tune.cached")
	faultTuneRecorded    = faultpoint.New("tune.recorded")
	faultTuneDenied      = faultpoint.New("tune.denied")
	faultTuneUncached    = faultpoint.New("tune.uncached")
	faultTuneDataRemoved = faultpoint.New("tune.data-removed")
	faultTuneCleaner     = faultpoint.New("tune.cleaner")
	faultTuneCleaned     = faultpoint.New("tune.cleaned")
	faultTuneTagged      = faultpoint.New("tune.tagged")
	faultTuneWriteback   = faultpoint.New("tune.writeback")
	faultTuneExtended    = faultpoint.New("tune.extended")
	faultTuneDataGrown   = faultpoint.New("tune.data-grown")
	faultTuneGrown       = faultpoint.New("tune.grown")

	faultStageTaken    = faultpoint.New("stage.taken")
	faultFillLent      = faultpoint.New("fill.lent")
	faultFillConnected = faultpoint.New("fill.connected")
	faultFillRestored  = faultpoint.New("fill.restored")
	faultFillPath      = faultpoint.New("fill.path")
	faultFillSource    = faultpoint.New("fill.source")
	faultFillClone     = faultpoint.New("fill.clone")
	faultFillGathered  = faultpoint.New("fill.gathered")
	faultFillLeft      = faultpoint.New("fill.left")
	faultFillSwapped   = faultpoint.New("fill.swapped")
	faultFillRemoved   = faultpoint.New("fill.removed")
	faultFillReported  = faultpoint.New("fill.reported")

	faultLendJournaled  = faultpoint.New("lend.journaled")
	faultLendDevice     = faultpoint.New("lend.device")
	faultLendExported   = faultpoint.New("lend.exported")
	faultReclaimExport  = faultpoint.New("reclaim.export")
	faultReclaimDevice  = faultpoint.New("reclaim.device")
	faultReclaimJournal = faultpoint.New("reclaim.journal")

	faultReloadLoaded = faultpoint.New("reload.loaded")

	faultWipeJournaled = faultpoint.New("wipe.journaled")
	faultWipeRemoved   = faultpoint.New("wipe.removed")
)
