package heat

import "github.com/nearflash/nearflash/pkg/faultpoint"

// Fault point between the two steps of Add (I8).
var faultHeatWritten = faultpoint.New("heat.written")
