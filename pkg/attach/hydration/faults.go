package hydration

import "github.com/nearflash/nearflash/pkg/faultpoint"

// Fault points: one between any two steps of a hydration (I8).
var (
	faultHydrationRemapped = faultpoint.New("hydration.remapped")
	faultHydrationLeft     = faultpoint.New("hydration.left")
	faultHydrationSwapped  = faultpoint.New("hydration.swapped")
	faultHydrationWhole    = faultpoint.New("hydration.whole")
	faultHydrationRemoved  = faultpoint.New("hydration.removed")
	faultHydrationReported = faultpoint.New("hydration.reported")
)
