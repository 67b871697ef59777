package volume

import (
	"strconv"
	"strings"
)

// unitPrefix begins the product identification of the units that nearflash-target
// exports.
const unitPrefix = "nf-"

// UnitProduct is the product identification (SCSI INQUIRY, 16 characters) of a unit
// that is exported for a generation: the storage server's own word of who it was
// last given to, which a node reads with the unit and no backup of the cluster's
// objects can take back (states.md, A record that is older than the truth).
func UnitProduct(generation int64) string { return unitPrefix + strconv.FormatInt(generation, 36) }

// UnitGeneration is the inverse of UnitProduct; ok is false for the units of other
// servers, and of versions that did not say it.
func UnitGeneration(product string) (generation int64, ok bool) {
	digits, found := strings.CutPrefix(strings.TrimSpace(product), unitPrefix)
	if !found {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 36, 64)
	return n, err == nil && n > 0
}

// GivenSince tells whether a unit was given to another owner after an ownership, and under
// which generation. products are what its paths say.
func GivenSince(products []string, generation int64) (later int64, since bool) {
	for _, p := range products {
		if g, ok := UnitGeneration(p); ok && g > generation {
			return g, true
		}
	}
	return 0, false
}
