package scrub

import "github.com/nearflash/nearflash/pkg/faultpoint"

var (
	faultOrdered   = faultpoint.New("scrub.ordered")
	faultJudged    = faultpoint.New("scrub.judged")
	faultReported  = faultpoint.New("scrub.reported")
	faultRenewed   = faultpoint.New("scrub.renewed")
	faultSuspended = faultpoint.New("scrub.guard-suspended")
	faultWritten   = faultpoint.New("scrub.guard-written")
	faultResumed   = faultpoint.New("scrub.guard-resumed")
)
