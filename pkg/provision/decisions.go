package provision

import "github.com/nearflash/nearflash/pkg/volume"

// Claim is the decision of DecideClaim.
type Claim = claim

// DecideClaim is the table "The record (controller)" of docs/design/states.md, for
// whoever drives it without a cluster (e2e/model).
func DecideClaim(v volume.Volume, node string, stored int64) (Claim, error) {
	return decideClaim(v, node, stored)
}
