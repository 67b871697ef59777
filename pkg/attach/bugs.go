package attach

import "github.com/nearflash/nearflash/pkg/faultpoint"

// Defects that tests put in to show that they would be noticed; each breaks one
// invariant of states.md.
var (
	// bugNoFlush reports a writeback cache as flushed without a flush (I2).
	bugNoFlush = faultpoint.NewBug("no-flush")
	// bugAnyGeneration activates a retained cache of whatever generation (I3).
	bugAnyGeneration = faultpoint.NewBug("any-generation")
	// bugCrashedCache activates a writethrough cache after an unclean stop (I4).
	bugCrashedCache = faultpoint.NewBug("crashed-cache")
	// bugFormatUnread takes what cannot be read for blank, and formats it whatever the
	// record says (The filesystem).
	bugFormatUnread = faultpoint.NewBug("format-unread")
)
