package state

import "github.com/nearflash/nearflash/pkg/faultpoint"

// BugTrustNodeName is a defect that tests put in to show that it would be noticed: the disks of
// whatever machine has the node's name are taken for those that the volume was last attached
// with (states.md, Whose disks these are).
var BugTrustNodeName = faultpoint.NewBug("trust-node-name")
