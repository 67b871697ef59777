package lease

import "github.com/nearflash/nearflash/pkg/faultpoint"

// Fault points: one between any two steps of a lease (I8).
var (
	faultExportJournaled  = faultpoint.New("export.journaled")
	faultExportDevice     = faultpoint.New("export.device")
	faultExportExported   = faultpoint.New("export.exported")
	faultReleaseExport    = faultpoint.New("release.export")
	faultReleaseDevice    = faultpoint.New("release.device")
	faultReleaseJournal   = faultpoint.New("release.journal")
	faultReleaseWiping    = faultpoint.New("release.wiping")
	faultReleaseDiscarded = faultpoint.New("release.discarded")
	faultReadLeased       = faultpoint.New("read.leased")
	faultPrewarmAsked     = faultpoint.New("prewarm.asked")
	faultPrewarmTracked   = faultpoint.New("prewarm.tracked")
	faultPrewarmCommitted = faultpoint.New("prewarm.committed")
	faultPrewarmQuiet     = faultpoint.New("prewarm.quiet")
	faultPrewarmNoted     = faultpoint.New("prewarm.noted")
)
