package heat

import "github.com/nearflash/nearflash/pkg/faultpoint"

// Fault point between the two steps of Add (I8), of which unstage is the one that is not repeated
// by itself.
var faultHeatWritten = faultpoint.New("unstage.heat")
